//! Jobs that rest: when they do, and that rounds decide the same as if none did.

mod ops;
mod world;

use larder_kube::kinds::KueueKind;
use ops::{Op, any_op};
use proptest::prelude::*;
use world::{KEEP_SECONDS, NODES, World, of_kind, of_team};

use super::*;
use crate::jobs::planned::RefusedBy;

/// True if a job runs and rests.
fn rests(world: &World, name: &str) -> bool {
    let state = &world.states[0];
    let job_state = &state.jobs.job_states[&Key::new("team-a", name)];
    job_state.rest.as_ref().is_some_and(|rest| rest.counted.is_some() && rest.wakes == state.jobs.wakes)
}

/// Rounds until all statuses are written.
fn settle(world: &mut World) {
    for _ in 0..3 {
        world.apply(&Op::Wait(20));
        world.round();
    }
}

/// Submits `j0`, and runs all of its pods.
fn run_job(world: &mut World, pods: u32, reads: bool) {
    world.apply(&Op::Submit(0, pods, reads));
    for at in 0..NODES {
        world.apply(&Op::Cached(at, 2));
    }
    world.round();
    world.round();
    (0..pods as usize).for_each(|at| world.apply(&Op::Run(at)));
    settle(world);
    assert!(rests(world, "j0"), "{:#?}", world.states[0].jobs.job_states);
}

/// A world in which `j0` runs with two pods, and rests.
fn with_a_job_at_rest(reads: bool) -> World {
    let mut world = World::new();
    run_job(&mut world, 2, reads);
    world
}

#[test]
fn a_job_that_runs_rests_until_something_that_it_depends_on_changes() {
    let wakes = |op: Op| {
        let mut world = with_a_job_at_rest(true);
        let on = |pod: usize| world.pods().nth(pod).expect("a pod")["spec"]["nodeName"].clone();
        assert_eq!((on(0), on(1)), ("n00000".into(), "n00000".into()));
        world.apply(&op);
        let is_awake = !rests(&world, "j0");
        world.round();
        is_awake
    };
    for op in [
        Op::Fail(0, true),
        Op::Succeed(1),
        Op::Gone(1),
        Op::Leaves(0),
        Op::Ready(0, false),
        Op::OutOfService(0, true),
        Op::NodeGone(0),
        Op::Cached(0, 1),
        Op::Dataset(1),
        Op::DatasetGone,
        Op::Suspend(0, true),
        Op::Quota(1),
        Op::Priority(2),
        Op::Type(1),
        Op::Settings(0),
        Op::Settings(2),
        Op::Part(Part::Gangs, true),
        Op::Part(Part::Kueue, false),
        Op::Part(Part::Clusters, false),
    ] {
        assert!(wakes(op.clone()), "{op:?}");
    }
    for op in [
        Op::Wait(1),
        Op::Ready(1, false),
        Op::Cached(1, 1),
        Op::Submit(1, 1, true),
        Op::Foreign(1, true),
        Op::CacheQuota(true),
        Op::Sweep(true),
        Op::OfKueue(KueueKind::ResourceFlavor, false),
        Op::Lease,
    ] {
        assert!(!wakes(op.clone()), "{op:?}");
    }
}

#[test]
fn a_gang_of_the_scheduler_rests_until_its_pod_group_changes() {
    let at_rest = || {
        let mut world = World::new();
        world.apply(&Op::Part(Part::Gangs, true));
        run_job(&mut world, 2, false);
        world
    };
    for op in [Op::Gang(0, false), Op::GroupGone(0), Op::Part(Part::Gangs, false)] {
        let mut world = at_rest();
        world.apply(&op);
        assert!(!rests(&world, "j0"), "{op:?}");
        world.round();
    }
    // Its group is made again.
    let mut world = at_rest();
    world.apply(&Op::GroupGone(0));
    assert_eq!(world.nth(Kind::PodGroup, 0), None);
    world.round();
    assert_eq!(world.nth(Kind::PodGroup, 0), Some(of_team("j0-1")));
}

// SEMANTICS: J11
#[test]
fn an_ended_trial_is_deleted_in_time_once_its_sweep_is_gone() {
    let mut world = World::new();
    world.apply(&Op::Sweep(true));
    world.apply(&Op::Submit(3, 1, false));
    world.round();
    world.round();
    world.apply(&Op::Run(0));
    settle(&mut world);
    world.apply(&Op::Succeed(0));
    settle(&mut world);
    world.apply(&Op::Wait(KEEP_SECONDS));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Succeeded), 1, "its sweep deletes it");
    world.apply(&Op::Sweep(false));
    world.round();
    assert_eq!(of_kind(&world.objects, Kind::TrainingJob).count(), 0);
}

#[test]
fn a_failed_job_of_kueue_leaves_the_room_of_pods_that_are_gone_to_others() {
    let mut world = World::new();
    // Two GPUs are left.
    for op in [Op::NodeGone(1), Op::NodeGone(2), Op::Foreign(0, true), Op::Submit(4, 2, false)] {
        world.apply(&op);
    }
    world.round();
    world.round();
    world.apply(&Op::Admit(0, true));
    world.round();
    (0..2).for_each(|at| world.apply(&Op::Run(at)));
    settle(&mut world);
    assert_eq!(phases(&world.states[0], Phase::Running), 1);
    world.apply(&Op::Submit(3, 2, false));
    settle(&mut world);
    assert_eq!(phases(&world.states[0], Phase::Queued), 1);
    world.apply(&Op::Fail(0, true));
    world.round();
    assert_eq!((phases(&world.states[0], Phase::Failed), phases(&world.states[0], Phase::Queued)), (1, 1));
    world.apply(&Op::Gone(1));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Starting), 1);
}

#[test]
fn a_job_at_rest_is_stopped_when_its_queue_drains() {
    let mut world = with_a_job_at_rest(false);
    let spec = json!({"namespaces": ["team-a"], "quota": {"nvidia.com/gpu": {"nominal": 6}}, "stop": "drain"});
    // A queue that is changed without a new generation wakes no job, but the verdict does.
    let generation = world.states[0].jobs.queues.get(&Key::cluster("red")).expect("a queue").generation;
    let metadata = json!({"name": "red", "uid": "uid-red", "generation": generation});
    let queue = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec});
    world.put(Kind::JobQueue, queue);
    assert!(rests(&world, "j0"));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Running), 0);
    assert!(world.pods().all(|pod| pod["metadata"]["deletionTimestamp"].is_string()));
}

#[test]
fn a_job_rests_on_nodes_that_report_no_device_fault() {
    let mut world = World::new();
    for at in 0..NODES {
        world.edit_node(at, |node| {
            let works = json!({"type": "larder.dev/DeviceFault", "status": "False"});
            node["status"]["conditions"].as_array_mut().expect("conditions").push(works);
        });
    }
    run_job(&mut world, 2, false);
}

#[test]
fn a_job_at_rest_forgets_after_an_hour_which_nodes_refused_its_pods() {
    let mut world = with_a_job_at_rest(false);
    let at = world.now;
    for state in &mut world.states {
        let job_state = state.jobs.job_states.get_mut(&Key::new("team-a", "j0")).expect("a job");
        job_state.record.state.refused_by = vec![RefusedBy { role: 0, node: "n00001".to_owned(), at }];
        job_state.rest = None;
    }
    world.round();
    assert!(rests(&world, "j0"));
    world.apply(&Op::Wait(3_600));
    world.round();
    let job_state = &world.states[0].jobs.job_states[&Key::new("team-a", "j0")];
    assert!(job_state.record.state.refused_by.is_empty(), "{:?}", job_state.record);
}

#[test]
fn an_ended_job_rests_beside_a_pod_that_does_not_say_when_it_ends() {
    let mut world = with_a_job_at_rest(false);
    world.apply(&Op::Leaves(0));
    world.round();
    world.round();
    assert_eq!(world.pods().count(), 3, "its successor is there, too");
    world.apply(&Op::Run(1));
    world.round();
    (1..3).for_each(|pod| world.apply(&Op::Succeed(pod)));
    world.round();
    assert_eq!(phases(&world.states[0], Phase::Succeeded), 1);
    (0..NODES).for_each(|node| world.apply(&Op::OutOfService(node, true)));
    for _ in 0..3 {
        world.round();
        world.apply(&Op::Wait(20));
    }
}

#[test]
fn a_job_sees_the_data_on_the_node_of_a_pod_that_is_done() {
    let mut world = World::new();
    // Two of its three pods have room on a node.
    (0..NODES).for_each(|at| world.apply(&Op::Foreign(at, true)));
    run_job(&mut world, 3, true);
    let nodes: Vec<String> = world.pods().map(|pod| pod["spec"]["nodeName"].to_string()).collect();
    let is_alone = |at: &usize| nodes.iter().filter(|node| **node == nodes[*at]).count() == 1;
    let done = (0..3).find(is_alone).expect("a pod that has a node of its own");
    world.apply(&Op::Succeed(done));
    settle(&mut world);
    let node = (0..NODES).find(|at| nodes[done].contains(&format!("n{at:05}"))).expect("its node");
    world.apply(&Op::Cached(node, 1));
    settle(&mut world);
    let status = &world.job("j0")["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["shown"]["data"], "75%", "all of two bytes on one node, and one on the other");
}

#[test]
fn a_job_that_has_ended_shows_what_its_nodes_held_at_its_end() {
    let mut world = with_a_job_at_rest(true);
    (0..2).for_each(|at| world.apply(&Op::Succeed(at)));
    settle(&mut world);
    assert_eq!(phases(&world.states[0], Phase::Succeeded), 1);
    world.apply(&Op::Cached(0, 1));
    world.apply(&Op::Priority(2));
    settle(&mut world);
    assert_eq!(world.job("j0")["status"]["shown"]["data"], "100%");
}

proptest! {
    #[test]
    fn rounds_decide_the_same_as_if_no_job_rested(ops in prop::collection::vec(any_op(), 1..80)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.round();
        }
    }
}
