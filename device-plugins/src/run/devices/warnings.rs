//! What cannot be read is reported.

use std::sync::Arc;

use larder_testkit::FakeNvml;
use larder_testkit::machine::{FakeMachine, MachinePlan};
use larder_testkit::nvml::{Machine as Made, code};

use super::*;
use crate::node::pods::Known;
use crate::nvml;
use crate::report;
use crate::view::View;

// SEMANTICS: D25
#[tokio::test]
async fn a_gpu_that_never_answered_is_reported_as_a_warning() {
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let mut made = Made::h100s(8);
    made.gpus[3].error = Some(code::GPU_IS_LOST);
    let fake = FakeNvml::with(&made);
    let (sender, news) = mpsc::channel(16);
    let stop = CancellationToken::new();
    let settings = nvml::Settings { library: fake.library(), ..nvml::Settings::default() };
    let driver = tokio::spawn(nvml::run(settings, sender, stop.clone()));
    let roots = Roots { sysfs: machine.sysfs(), dev: machine.dev() };
    let machine = Devices::new(roots, fake.library(), news).first().await;
    let view = View { machine: Arc::new(machine), ..View::default() };
    let report = report::of("n1", &view, &Known::default());
    let reported: Vec<_> = report.warnings.iter().map(|warning| &warning.at).collect();
    assert_eq!(reported, [&made.gpus[3].uuid]);
    assert_eq!(report.devices.len(), 7 + 8);
    stop.cancel();
    driver.await.unwrap().unwrap();
}

/// The warnings of a machine after the first news of its driver, and after each change that later news cause.
async fn reported(plan: MachinePlan, first: DriverNews, then: Vec<DriverNews>) -> Vec<Vec<Warning>> {
    let machine = FakeMachine::new(plan).unwrap();
    let roots = Roots { sysfs: machine.sysfs(), dev: machine.dev() };
    let (sender, news) = mpsc::channel(16);
    sender.send(first).await.unwrap();
    let mut devices = Devices::new(roots, "/no/nvml.so".into(), news);
    let mut reported = vec![devices.first().await.gpu_warnings];
    for news in then {
        devices.apply(news);
        let machine = devices.report_warnings();
        reported.extend(machine.map(|event| match event {
            HealthEvent::Machine(machine) => machine.gpu_warnings,
            other => panic!("{other:?}"),
        }));
    }
    reported
}

fn absent(why: &str) -> DriverNews {
    DriverNews::Absent { why: why.into() }
}

// SEMANTICS: D25
#[tokio::test]
async fn gpus_on_the_pci_bus_without_a_driver_library_are_a_warning_until_the_driver_answers() {
    let then = vec![absent("cannot open it"), absent("it is no library"), DriverNews::Answered];
    let reported = reported(MachinePlan::eight_pairs(), absent("cannot open it"), then).await;
    assert_eq!(reported.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0], "once for each reason: {reported:?}");
    let begin = "8 GPUs on the PCI bus are not offered: ";
    for (warnings, error) in reported.iter().zip(["cannot open it", "it is no library"]) {
        assert_eq!(warnings[0].at, "/no/nvml.so");
        let words = format!("{begin}{error}; install NVIDIA's driver");
        assert!(warnings[0].why.starts_with(&words), "{warnings:?}");
    }
}

// SEMANTICS: D25
#[tokio::test]
async fn a_driver_failure_is_a_warning_only_before_it_has_listed_a_gpu() {
    let failed = || DriverNews::Failed { why: "Driver/library version mismatch".into() };
    let plan = MachinePlan::eight_pairs();
    let place = Place { pci: plan.gpus[0].slot.pci.parse().unwrap(), ..Place::default() };
    let gpus = vec![Gpu { uuid: "GPU-0".into(), place, ..Gpu::default() }];
    let named = DriverNews::Gpus { driver: "580.1".into(), gpus, warnings: Vec::new() };
    let reported = reported(plan, failed(), vec![named, DriverNews::Answered, failed()]).await;
    assert_eq!(reported.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0], "{reported:?}");
    assert!(reported[0][0].why.ends_with("not offered: Driver/library version mismatch"), "{reported:?}");
}

// SEMANTICS: D25
#[tokio::test]
async fn a_machine_without_gpus_needs_no_library() {
    for plan in [MachinePlan::none(), MachinePlan { gpus: Vec::new(), ..MachinePlan::eight_pairs() }] {
        assert_eq!(reported(plan, absent("cannot open it"), vec![absent("still not")]).await, [Vec::new()]);
    }
}
