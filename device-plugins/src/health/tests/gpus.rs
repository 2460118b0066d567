use std::time::Duration;

use super::world::{World, gpu, hca, slice};
use crate::config::{HealthConfig, XidAction};
use crate::health::{Event, Memory, Notice, Now, Reason, RecoveryAction, Remembered};

const QUIET: f64 = 60.0;

fn all_gpus() -> Vec<crate::resource::DeviceKey> {
    vec![gpu(0), gpu(1), gpu(2), slice(2, 0), slice(2, 1)]
}

fn devices_out(world: &World) -> Vec<crate::resource::DeviceKey> {
    world.out().into_iter().map(|(device, _)| device).collect()
}

// SEMANTICS: D15
#[test]
fn faults_of_applications_are_reported_and_take_no_gpu_out_of_service() {
    let mut world = World::new();
    assert_eq!(world.xid(0, 13), Some(XidAction::RestartWorker));
    assert_eq!(world.xid(0, 31), Some(XidAction::RestartWorker));
    assert_eq!(world.xid(1, 94), Some(XidAction::RestartWorker));
    assert_eq!(world.xid(1, 63), Some(XidAction::Watch));
    assert_eq!(world.xid(1, 43), None);
    assert_eq!((world.out(), world.health.remember()), (vec![], Memory::default()));
}

// SEMANTICS: D15
#[test]
fn an_xid_of_a_slice_concerns_the_slice_if_it_is_the_workers_and_the_gpu_if_it_drains() {
    let mut world = World::new();
    let event = |xid, ci| Event::Xid { gpu: "GPU-2".to_owned(), slice: Some((8, ci)), xid };
    let told = |device, xid, meaning, action| vec![Notice { device, xid, meaning, action }];
    let (page_fault, restart) = ("GPU memory page fault", XidAction::RestartWorker);
    assert_eq!(world.see(event(31, Some(0))), told(slice(2, 1), 31, page_fault, restart));
    assert_eq!(world.see(event(31, None)), told(slice(2, 1), 31, page_fault, restart));
    // An unknown slice.
    assert_eq!(world.see(event(31, Some(5))), told(gpu(2), 31, page_fault, restart));
    assert_eq!(world.out(), []);
    assert_eq!(world.see(event(95, Some(0))), told(gpu(2), 95, "Uncontained memory error", XidAction::DrainGpu));
    assert_eq!(devices_out(&world), [gpu(2), slice(2, 0), slice(2, 1)]);
}

// SEMANTICS: D15
#[test]
fn a_drained_gpu_is_back_when_the_driver_asks_for_nothing_and_it_was_quiet() {
    let mut world = World::new();
    assert_eq!(world.xid(0, 95), Some(XidAction::DrainGpu));
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)]);
    assert_eq!(world.message(&gpu(0)), "Xid 95: Uncontained memory error");
    world.pass(50.0);
    // A second Xid restarts the quiet time, but not the fault.
    world.xid(0, 48);
    world.pass(QUIET - 0.1);
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)]);
    assert_eq!(world.health.faults()[&gpu(0)].since, world.start.wall);
    world.pass(0.1);
    assert_eq!((world.out(), world.next()), (vec![], None));
}

// SEMANTICS: D15
#[test]
fn xid_154_announces_what_keeps_a_gpu_out() {
    let mut world = World::new();
    assert_eq!(world.xid(0, 154), Some(XidAction::Watch));
    assert_eq!(world.out(), []);
    world.recovery(0, RecoveryAction::GpuReset);
    world.recovery(1, RecoveryAction::Other(6));
    assert_eq!(devices_out(&world), [gpu(0), gpu(1)]);
    assert_eq!(world.message(&gpu(0)), "the driver asks for a reset of the GPU");
    assert_eq!(world.message(&gpu(1)), "the driver asks for recovery action 6");
    world.pass(10_000.0);
    assert_eq!((devices_out(&world), world.next()), (vec![gpu(0), gpu(1)], None));
    // The quiet time begins with the reset, and each has its own.
    world.recovery(0, RecoveryAction::None);
    world.pass(30.0);
    world.recovery(1, RecoveryAction::None);
    // A repeated event changes nothing.
    world.recovery(0, RecoveryAction::None);
    world.pass(29.9);
    assert_eq!(devices_out(&world), [gpu(0), gpu(1)]);
    world.pass(0.1);
    assert_eq!(devices_out(&world), [gpu(1)]);
    world.pass(30.0);
    assert_eq!(world.out(), []);
}

// SEMANTICS: D15
#[test]
fn a_fault_that_needs_the_node_takes_all_gpus_and_gives_them_back_together() {
    let mut world = World::new();
    assert_eq!(world.xid(1, 79), Some(XidAction::DrainNode));
    assert_eq!(devices_out(&world), all_gpus());
    assert!(
        world.message(&slice(2, 1)).contains("GPU has fallen off the bus on GPU-1"),
        "{}",
        world.message(&slice(2, 1))
    );
    // The GPU is removed as well.
    world.pass(10.0);
    world.machine_without(&[gpu(1)]);
    assert_eq!(world.out()[1], (gpu(1), Reason::Gone));
    world.pass(10_000.0);
    assert_eq!(devices_out(&world), all_gpus());
    world.machine_without(&[]);
    world.pass(1.0);
    assert_eq!(devices_out(&world), all_gpus(), "whether it needs a reset was not read since");
    world.recovery(1, RecoveryAction::None);
    assert_eq!(world.out(), [], "nothing has been wrong with it for longer than the quiet time");
    // A later, milder Xid does not lower the action.
    world.xid(0, 79);
    world.xid(0, 95);
    world.recovery(0, RecoveryAction::GpuReset);
    world.pass(QUIET);
    assert_eq!(devices_out(&world), all_gpus());
    world.recovery(0, RecoveryAction::None);
    world.pass(QUIET);
    assert_eq!(world.out(), []);
    world.xid(0, 95);
    world.recovery(0, RecoveryAction::NodeReboot);
    assert_eq!(devices_out(&world), all_gpus());
}

// SEMANTICS: D15
#[test]
fn settings_and_families_decide_about_an_xid() {
    let mut world = World::new();
    let config =
        HealthConfig { xids: vec![(79, XidAction::DrainGpu), (31, XidAction::Ignore)], ..HealthConfig::default() };
    world.health.configure(config, world.now);
    assert_eq!((world.xid(0, 79), world.xid(0, 31)), (Some(XidAction::DrainGpu), None));
    assert_eq!(devices_out(&world), [gpu(0)]);
    // An Xid without a row, and a GPU that no inventory has named.
    assert_eq!((world.xid(1, 4711), world.xid(9, 13)), (Some(XidAction::DrainGpu), Some(XidAction::RestartWorker)));
    assert_eq!(devices_out(&world), [gpu(0), gpu(1)]);
}

// SEMANTICS: D16
#[test]
fn a_driver_that_hangs_for_a_minute_takes_its_gpus_out_after_half_of_it() {
    let mut world = World::new();
    world.fails();
    world.pass(10.0);
    world.fails();
    // An inventory read during the hang may have no GPU.
    world.machine_without(&[gpu(0), gpu(1), gpu(2)]);
    world.pass(19.9);
    assert_eq!(world.out(), []);
    world.pass(0.1);
    assert_eq!(devices_out(&world), all_gpus());
    assert_eq!(world.out()[0].1, Reason::DriverSilent);
    assert_eq!(world.message(&gpu(0)), "NVML does not answer: timed out");
    world.machine_without(&[gpu(0), gpu(1), gpu(2)]);
    world.pass(30.0);
    assert_eq!(world.out()[0].1, Reason::DriverSilent);
    world.machine_without(&[]);
    world.see(Event::DriverAnswered);
    assert_eq!((world.out(), world.next()), (vec![], None), "at once");
    assert!(!world.is_out(&hca(1)));
    // Silences do not add up.
    for _ in 0..5 {
        world.fails();
        world.pass(29.0);
        world.see(Event::DriverAnswered);
    }
    assert_eq!(world.out(), []);
}

// SEMANTICS: D16
#[test]
fn nothing_changes_while_the_driver_is_silent() {
    let mut world = World::new();
    world.xid(0, 95);
    world.pass(50.0);
    world.fails();
    world.pass(29.0);
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)], "quiet for long enough, but queries do not succeed");
    world.see(Event::DriverAnswered);
    assert_eq!(world.out(), []);
}

// SEMANTICS: D16
#[test]
fn one_gpu_that_does_not_answer_is_alone() {
    let mut world = World::new();
    world.gpu_fails(0);
    world.gpu_fails(1);
    world.pass(29.0);
    world.recovery(1, RecoveryAction::None);
    assert_eq!(world.out(), []);
    world.pass(1.0);
    assert_eq!(world.out(), [(gpu(0), Reason::DriverSilent)]);
    assert_eq!(world.message(&gpu(0)), "the GPU does not answer: GPU is lost");
    // Answers of the other GPUs do not clear its fault.
    world.see(Event::DriverAnswered);
    assert_eq!(world.out(), [(gpu(0), Reason::DriverSilent)]);
    world.xid(0, 95);
    world.pass(QUIET);
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)]);
    world.recovery(0, RecoveryAction::None);
    assert_eq!(world.out(), []);
}

// SEMANTICS: D18
#[test]
fn a_gpu_that_is_gone_stays_known_and_a_slice_that_is_taken_away_does_not() {
    let mut world = World::new();
    world.machine_without(&[gpu(1), gpu(2)]);
    let gone: Vec<_> = all_gpus()[1..].iter().map(|device| (device.clone(), Reason::Gone)).collect();
    assert_eq!(world.out(), gone);
    assert_eq!(world.health.machine().gpus.len(), 3);
    // A driver that does not answer does not bring the GPU back.
    world.fails();
    world.machine_without(&[gpu(1), gpu(2)]);
    assert_eq!(world.out(), gone);
    // A GPU that the driver names counts as present even before `DriverAnswered`, which is sent last.
    world.machine_without(&[gpu(1)]);
    assert_eq!(devices_out(&world), [gpu(1)]);
    world.see(Event::DriverAnswered);
    world.machine_without(&[slice(2, 1)]);
    assert_eq!(world.out(), []);
    assert_eq!(world.health.machine().gpus[2].slices().len(), 1);
}

// SEMANTICS: D18
#[test]
fn a_gpu_that_is_lost_while_the_driver_is_silent_is_gone_once_it_answers() {
    let mut world = World::new();
    world.down = [1].into();
    world.fails();
    // The driver returns without two GPUs: the machine is sent first, `DriverAnswered` last.
    world.machine_without(&[gpu(1), gpu(2)]);
    assert_eq!(world.out(), []);
    // Port readings since then are newer than the port states in that machine.
    world.ports(1, &[true, false]);
    world.see(Event::DriverAnswered);
    let gone: Vec<_> = all_gpus()[1..].iter().map(|device| (device.clone(), Reason::Gone)).collect();
    assert_eq!(world.out(), gone);
    world.pass(1000.0);
    assert_eq!(world.out(), gone);
    world.down.clear();
    world.machine_without(&[]);
    assert_eq!(world.out(), []);
}

// SEMANTICS: D15
#[test]
fn a_driver_without_recovery_actions_gives_no_gpu_back_that_was_not_reset() {
    let mut world = World::new();
    for n in 0..3 {
        world.recovery(n, RecoveryAction::Unsupported);
    }
    assert_eq!(world.out(), []);
    world.xid(0, 95);
    world.pass(10_000.0);
    assert_eq!((world.out(), world.next()), (vec![(gpu(0), Reason::GpuFault)], None));
    let recovery = &world.health.faults()[&gpu(0)].recovery;
    assert!(recovery.contains("the driver does not report recovery actions"), "{recovery}");
    // Neither a failure of NVML nor a GPU that does not answer for a while is a reset.
    world.fails();
    world.gpu_fails(0);
    world.see(Event::DriverAnswered);
    world.recovery(0, RecoveryAction::Unsupported);
    world.pass(10_000.0);
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)]);
    // A GPU that leaves the bus and is found again was initialized anew.
    world.machine_without(&[gpu(0)]);
    world.machine_without(&[]);
    world.pass(10_000.0);
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)], "it was not asked since");
    world.recovery(0, RecoveryAction::Unsupported);
    assert_eq!(world.out(), []);
    // Its next fault needs a reset of its own.
    world.xid(0, 48);
    world.pass(10_000.0);
    assert_eq!(world.out(), [(gpu(0), Reason::GpuFault)]);
    // Another driver that reports the actions decides.
    world.recovery(0, RecoveryAction::None);
    assert_eq!(world.out(), [], "quiet for longer than the quiet time");

    // The node has to be rebooted, which is another boot's file.
    world.xid(1, 79);
    world.machine_without(&[gpu(1)]);
    world.machine_without(&[]);
    world.recovery(1, RecoveryAction::Unsupported);
    world.pass(100_000.0);
    assert_eq!((devices_out(&world), world.next()), (all_gpus(), None));
    let recovery = &world.health.faults()[&gpu(0)].recovery;
    assert_eq!(recovery, "the node is rebooted: the driver does not report recovery actions");
}

// SEMANTICS: D15
#[test]
fn a_repair_of_memory_that_is_done_shows_that_the_gpu_was_reset() {
    let mut world = World::new();
    world.recovery(0, RecoveryAction::Unsupported);
    world.xid(0, 64);
    // An older driver reports only that remapping waits for a reset.
    world.recovery(0, RecoveryAction::GpuReset);
    world.pass(10_000.0);
    let memory = world.health.remember();
    world.recovery(0, RecoveryAction::Unsupported);
    world.pass(QUIET - 0.1);
    assert_eq!(devices_out(&world), [gpu(0)]);
    world.pass(0.1);
    assert_eq!((world.out(), world.next()), (vec![], None));
    // The reset may happen while no process runs.
    let mut restarted = World::at(world.now, &memory);
    restarted.recovery(0, RecoveryAction::Unsupported);
    assert_eq!((devices_out(&restarted), restarted.next()), (vec![gpu(0)], Some(QUIET)));
    // An Xid after the reset counts.
    restarted.xid(0, 95);
    restarted.pass(10_000.0);
    assert_eq!(devices_out(&restarted), [gpu(0)]);
}

// SEMANTICS: D15
#[test]
fn each_further_fault_of_a_gpu_within_a_day_doubles_its_quiet_time() {
    let mut world = World::new();
    let quiet_of = |world: &mut World, n: u8| {
        world.xid(n, 95);
        // Xids during a fault are part of it.
        world.xid(n, 48);
        let quiet = world.next().unwrap() - (world.now.instant - world.start.instant).as_secs_f64();
        world.pass(quiet - 0.1);
        assert_eq!(devices_out(world), [gpu(n)]);
        world.pass(0.2);
        assert_eq!(world.out(), []);
        quiet.round() as u64
    };
    assert_eq!([0; 6].map(|n| quiet_of(&mut world, n)), [60, 120, 240, 480, 960, 1920]);
    assert_eq!(quiet_of(&mut world, 1), 60, "another GPU has its own");
    // Over a restart of the process.
    let text = |memory: &Memory| (serde_json::to_string(&memory.faults), serde_json::to_string(&memory.history));
    let kept = world.health.remember();
    let (faults, history) = text(&kept);
    let (faults, history) =
        (serde_json::from_str(&faults.unwrap()).unwrap(), serde_json::from_str(&history.unwrap()).unwrap());
    let read = Memory { faults, history };
    assert_eq!(read, kept);
    let mut world = World::at(world.now, &read);
    (0..3).for_each(|n| world.recovery(n, RecoveryAction::None));
    assert_eq!([0; 4].map(|n| quiet_of(&mut world, n)), [3840, 7680, 14_400, 14_400], "up to four hours");
    assert_eq!(world.health.remember().history.len(), 2);
    // A day later they are forgotten.
    world.pass(86_400.0);
    assert_eq!([0, 0].map(|n| quiet_of(&mut world, n)), [60, 120]);
    // A quiet time that is longer stands.
    let config = HealthConfig { gpu_quiet: Duration::from_secs(20_000), ..HealthConfig::default() };
    world.health.configure(config, world.now);
    assert_eq!(quiet_of(&mut world, 0), 20_000);
    // A clock that is set back keeps no fault for longer than a day.
    world.now.wall -= Duration::from_secs(1_000_000);
    world.health.configure(HealthConfig::default(), world.now);
    assert!(quiet_of(&mut world, 0) > 60);
    world.pass(86_400.0);
    assert_eq!(quiet_of(&mut world, 0), 60);
}

// SEMANTICS: D17
#[test]
fn a_restart_of_the_process_makes_no_gpu_healthy() {
    let mut world = World::new();
    world.xid(0, 95);
    world.xid(1, 79);
    world.pass(20.0);
    let memory = world.health.remember();
    let faults: Vec<Remembered> = serde_json::from_str(&serde_json::to_string(&memory.faults).unwrap()).unwrap();
    assert_eq!((faults.len(), &faults), (2, &memory.faults));
    let read = Memory { faults, ..Memory::default() };

    let later = Now { instant: world.now.instant, wall: world.now.wall + Duration::from_secs(30) };
    let mut restarted = World::at(later, &read);
    assert_eq!(devices_out(&restarted), all_gpus());
    assert_eq!(restarted.health.faults()[&gpu(0)].since, world.start.wall);
    // No fault ends before the driver was queried.
    restarted.pass(1000.0);
    assert_eq!(devices_out(&restarted), all_gpus());
    restarted.recovery(0, RecoveryAction::None);
    restarted.recovery(1, RecoveryAction::GpuReset);
    assert_eq!(devices_out(&restarted), all_gpus());
    restarted.recovery(1, RecoveryAction::None);
    restarted.pass(QUIET);
    assert_eq!((restarted.out(), restarted.health.remember()), (vec![], Memory::default()));

    // The time that passed before the restart counts: 50 of 60 s.
    let mut restarted = World::at(later, &read);
    restarted.recovery(0, RecoveryAction::None);
    restarted.recovery(1, RecoveryAction::None);
    assert_eq!(restarted.next(), Some(10.0));

    // A clock that was set back, and an entry whose action is not a fault.
    let earlier = Now { instant: world.now.instant, wall: world.start.wall - Duration::from_secs(1000) };
    let mut odd = read.clone();
    odd.faults[1].action = XidAction::Watch;
    let mut restarted = World::at(earlier, &odd);
    restarted.recovery(0, RecoveryAction::None);
    assert_eq!((devices_out(&restarted), restarted.next()), (vec![gpu(0)], Some(QUIET)));

    // A file of version 0.1, which does not say whether the GPU was reset.
    let old = r#"{"gpu": "GPU-0", "action": "drainGpu", "what": "Xid 95", "since": 1000000, "last": 1000000}"#;
    let old = Memory { faults: vec![serde_json::from_str(old).unwrap()], ..Memory::default() };
    let mut restarted = World::at(later, &old);
    restarted.recovery(0, RecoveryAction::Unsupported);
    restarted.pass(10_000.0);
    assert_eq!(devices_out(&restarted), [gpu(0)]);
    restarted.recovery(0, RecoveryAction::None);
    assert_eq!(restarted.out(), []);
}
