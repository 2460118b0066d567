//! What cannot be read is told.

use std::sync::Arc;

use larder_testkit::MadeUpNvml;
use larder_testkit::machine::{MachinePlan, MadeUpMachine};
use larder_testkit::nvml::{Machine as Made, code};

use super::*;
use crate::node::pods::Known;
use crate::nvml;
use crate::report;
use crate::view::View;

#[tokio::test]
async fn a_gpu_that_is_dead_from_the_start_is_in_the_report() {
    let machine = MadeUpMachine::new(MachinePlan::eight_pairs()).unwrap();
    let mut made = Made::h100s(8);
    made.gpus[3].error = Some(code::GPU_IS_LOST);
    let made_up = MadeUpNvml::with(&made);
    let (sender, news) = mpsc::channel(16);
    let stop = CancellationToken::new();
    let settings = nvml::Settings { library: made_up.library(), ..nvml::Settings::default() };
    let driver = tokio::spawn(nvml::run(settings, sender, stop.clone()));
    let roots = Roots { sysfs: machine.sysfs(), dev: machine.dev() };
    let machine = Devices::new(roots, news).first().await;
    let view = View { machine: Arc::new(machine), ..View::default() };
    let report = report::of("n1", &view, &Known::default());
    let told: Vec<_> = report.oddities.iter().map(|oddity| &oddity.at).collect();
    assert_eq!(told, [&made.gpus[3].uuid]);
    assert_eq!(report.devices.len(), 7 + 8);
    stop.cancel();
    driver.await.unwrap().unwrap();
}
