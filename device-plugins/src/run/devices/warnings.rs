//! What cannot be read is told.

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
async fn a_gpu_that_is_dead_from_the_start_is_in_the_report() {
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
    let told: Vec<_> = report.warnings.iter().map(|warning| &warning.at).collect();
    assert_eq!(told, [&made.gpus[3].uuid]);
    assert_eq!(report.devices.len(), 7 + 8);
    stop.cancel();
    driver.await.unwrap().unwrap();
}

/// What is odd on this machine, whose driver tells these news, and then what later news make of it.
async fn told(plan: MachinePlan, first: DriverNews, then: Vec<DriverNews>) -> Vec<Vec<Warning>> {
    let machine = FakeMachine::new(plan).unwrap();
    let roots = Roots { sysfs: machine.sysfs(), dev: machine.dev() };
    let (sender, news) = mpsc::channel(16);
    sender.send(first).await.unwrap();
    let mut devices = Devices::new(roots, "/no/nvml.so".into(), news);
    let mut told = vec![devices.first().await.gpu_warnings];
    for news in then {
        devices.hear(news);
        let machine = devices.tell_oddities();
        told.extend(machine.map(|event| match event {
            HealthEvent::Machine(machine) => machine.gpu_warnings,
            other => panic!("{other:?}"),
        }));
    }
    told
}

fn absent(why: &str) -> DriverNews {
    DriverNews::Absent { why: why.into() }
}

// SEMANTICS: D25
#[tokio::test]
async fn gpus_of_the_pci_bus_without_the_drivers_library_are_odd_until_it_answers() {
    let then = vec![absent("cannot open it"), absent("it is no library"), DriverNews::Answered];
    let told = told(MachinePlan::eight_pairs(), absent("cannot open it"), then).await;
    assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0], "once for each reason: {told:?}");
    let begin = "8 GPUs on the PCI bus are not offered: ";
    for (warnings, error) in told.iter().zip(["cannot open it", "it is no library"]) {
        assert_eq!(warnings[0].at, "/no/nvml.so");
        let words = format!("{begin}{error}; install NVIDIA's driver");
        assert!(warnings[0].why.starts_with(&words), "{warnings:?}");
    }
}

// SEMANTICS: D25
#[tokio::test]
async fn a_driver_that_fails_before_it_names_a_gpu_is_odd_and_later_it_is_not() {
    let failed = || DriverNews::Failed { why: "Driver/library version mismatch".into() };
    let plan = MachinePlan::eight_pairs();
    let place = Place { pci: plan.gpus[0].slot.pci.parse().unwrap(), ..Place::default() };
    let gpus = vec![Gpu { uuid: "GPU-0".into(), place, ..Gpu::default() }];
    let named = DriverNews::Gpus { driver: "580.1".into(), gpus, warnings: Vec::new() };
    let told = told(plan, failed(), vec![named, DriverNews::Answered, failed()]).await;
    assert_eq!(told.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0], "{told:?}");
    assert!(told[0][0].why.ends_with("not offered: Driver/library version mismatch"), "{told:?}");
}

// SEMANTICS: D25
#[tokio::test]
async fn a_machine_without_gpus_misses_no_library() {
    for plan in [MachinePlan::none(), MachinePlan { gpus: Vec::new(), ..MachinePlan::eight_pairs() }] {
        assert_eq!(told(plan, absent("cannot open it"), vec![absent("still not")]).await, [Vec::new()]);
    }
}
