//! Sessions with the driver: how they begin and end, and drivers that hang or disappear during a session.

use std::time::Duration;

use larder_devices::nvml::{DriverNews, RecoveryAction, Settings};
use larder_testkit::FakeNvml;
use larder_testkit::nvml::{Machine, code};

use crate::{Driver, says, settings, xid};

// SEMANTICS: D16
#[tokio::test]
async fn a_driver_that_hangs_is_noticed_and_holds_up_two_threads() {
    let mut machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    let quick = Settings { silent_after: Duration::from_millis(200), ..settings(nvml.library()) };
    let mut driver = Driver::start(quick, 64);
    driver.gpus().await;
    machine.hang_ms = 3_600_000;
    nvml.set(&machine);
    says(&driver.failed().await, &["has not returned for 200ms"]);
    says(&driver.failed().await, &["has not returned for 200ms"]);
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter(|thread| {
        let name = std::fs::read_to_string(thread.as_ref().unwrap().path().join("comm"));
        name.is_ok_and(|name| name.starts_with("gpus-"))
    });
    assert_eq!(threads.count(), 2);
    machine.hang_ms = 0;
    nvml.set(&machine);
    driver.until(DriverNews::Answered).await;
    xid(&mut machine, 1, 79);
    nvml.set(&machine);
    assert_eq!(driver.xid().await, (machine.gpus[1].uuid.clone(), None, 79));
    driver.end().await;
}

// SEMANTICS: D16
#[tokio::test]
async fn a_driver_that_hangs_while_it_forgets_a_lost_gpu_is_noticed() {
    let mut machine = Machine::h100s(2);
    let nvml = FakeNvml::with(&machine);
    let quick = Settings { silent_after: Duration::from_millis(200), ..settings(nvml.library()) };
    let mut driver = Driver::start(quick, 64);
    driver.gpus().await;
    // Wait until the GPU's events are received.
    xid(&mut machine, 0, 31);
    nvml.set(&machine);
    driver.xid().await;
    machine.gpus[0].error = Some(code::GPU_IS_LOST);
    machine.free_hang_ms = 3_600_000;
    nvml.set(&machine);
    says(&driver.failed().await, &["nvmlEventSetFree has not returned for 200ms"]);
    machine.free_hang_ms = 0;
    nvml.set(&machine);
    driver.until(DriverNews::Answered).await;
    driver.end().await;
}

// SEMANTICS: D16
#[tokio::test]
async fn a_driver_that_hangs_does_not_hold_up_the_end() {
    let machine = Machine { hang_ms: 3_600_000, ..Machine::h100s(1) };
    let nvml = FakeNvml::with(&machine);
    let mut driver =
        Driver::start(Settings { silent_after: Duration::from_millis(100), ..settings(nvml.library()) }, 64);
    says(&driver.failed().await, &["nvmlInit"]);
    driver.end().await;
    // The abandoned thread ends when its call returns.
    nvml.set(&Machine::h100s(1));
}

// SEMANTICS: D16
#[tokio::test]
async fn a_library_that_is_missing_is_looked_for_again() {
    let nvml = FakeNvml::with(&Machine::h100s(2));
    let library = nvml.library().with_extension("2");
    let mut driver = Driver::start(settings(library.clone()), 64);
    says(&driver.absent().await, &["libnvidia-ml.so.2", "No such file"]);
    let part = library.with_extension("part");
    std::fs::copy(nvml.library(), &part).unwrap();
    std::fs::rename(&part, &library).unwrap();
    assert_eq!(driver.gpus().await.len(), 2);
    driver.end().await;
}

// SEMANTICS: D16
#[tokio::test]
async fn a_driver_that_comes_goes_and_is_replaced_is_asked_anew() {
    let mut machine = Machine::h100s(2);
    let nvml = FakeNvml::new();
    let mut driver = Driver::of(&nvml);
    says(&driver.absent().await, &["not loaded"]);
    nvml.set(&machine);
    assert_eq!(driver.gpus().await.len(), 2);
    // A new driver replaces the old one during a session.
    (machine.load, machine.driver) = (2, "590.1".to_owned());
    nvml.set(&machine);
    driver.failed().await;
    let version = |news: &DriverNews| match news {
        DriverNews::Gpus { driver, .. } => Some(driver.clone()),
        _ => None,
    };
    assert_eq!(driver.next(version).await, "590.1");
    driver.until(DriverNews::Answered).await;
    nvml.unload();
    says(&driver.absent().await, &["not loaded"]);
    nvml.set(&machine);
    assert_eq!(driver.gpus().await.len(), 2);
    xid(&mut machine, 1, 79);
    nvml.set(&machine);
    assert_eq!(driver.xid().await.2, 79);
    driver.end().await;
}

#[tokio::test]
async fn while_a_gpu_fails_sessions_are_begun_anew_and_xids_go_on() {
    let mut machine = Machine { lost_for_good: true, ..Machine::h100s(2) };
    let nvml = FakeNvml::with(&machine);
    let reopening = Settings { reopen_every: Duration::from_millis(1), ..settings(nvml.library()) };
    let mut driver = Driver::start(reopening, 64);
    driver.gpus().await;
    machine.gpus[0].error = Some(code::GPU_IS_LOST);
    nvml.set(&machine);
    driver.failed_gpu().await;
    for _ in 0..5 {
        driver.until(DriverNews::Answered).await;
    }
    machine.gpus[0].error = None;
    nvml.set(&machine);
    let back = machine.gpus[0].uuid.clone();
    assert_eq!(driver.recovery(&back).await, RecoveryAction::None);
    // The session that answered was the last to be replaced.
    driver.until(DriverNews::Answered).await;
    xid(&mut machine, 1, 79);
    nvml.set(&machine);
    assert_eq!(driver.xid().await.2, 79);
    assert!(!driver.seen.iter().any(|news| matches!(news, DriverNews::Failed { .. } | DriverNews::Absent { .. })));
    driver.end().await;
}

// SEMANTICS: D15
#[tokio::test]
async fn events_of_a_session_are_reported_before_the_next_session_begins() {
    let mut machine = Machine::h100s(2);
    let nvml = FakeNvml::with(&machine);
    let reopening = Settings { reopen_every: Duration::from_millis(1), ..settings(nvml.library()) };
    // The channel holds one item, so both threads send alternately: the session ends while more events are queued.
    let mut driver = Driver::start(reopening, 1);
    driver.until(DriverNews::Answered).await;
    machine.gpus[0].error = Some(code::GPU_IS_LOST);
    (0..50).for_each(|number| xid(&mut machine, 1, number));
    nvml.set(&machine);
    // Both threads are blocked on the full channel.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for number in 0..50 {
        assert_eq!(driver.xid().await.2, number);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    driver.end().await;
}
