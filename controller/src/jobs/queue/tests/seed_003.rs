use super::*;

/// 100 GPUs. The experiment uses all of them, half of them borrowed.
fn cluster(min: u32) -> World {
    let cohort = |name| queue(name, "company", quota(50, None, None));
    let mut world = World::new(vec![cohort("production"), cohort("research")], 100, 1);
    world.submit(job("experiment", "research", 0, (min, 100, 100)));
    world.step();
    assert_eq!(world.workers("experiment").len(), 100);
    world
}

#[test]
fn seed_003_a_production_job_takes_workers_50_to_99_of_an_experiment_and_no_other() {
    let mut world = cluster(10);
    world.submit(job("train", "production", 100, (50, 50, 50)));
    world.step();
    assert_eq!(world.workers("experiment"), (0..50).collect::<Vec<_>>());
    let Verdict::Run(shrunk) = world.verdict("experiment") else { panic!("it runs on") };
    assert_eq!(shrunk.why, "team/train of queue production with priority 100 needs the room of 50 pods");
    assert_eq!(world.waiting("train").why, "room is reserved for it; 50 pods are still terminating");
    // While those pods terminate, nothing more is preempted, and their room stays reserved.
    world.submit(job("other", "research", -1, (1, 1, 1)));
    world.step();
    assert_eq!(world.workers("experiment").len(), 50);
    assert!(world.waiting("train").claims && !world.waiting("other").claims);
    world.pods_end();
    world.step();
    assert_eq!((world.workers("experiment").len(), world.workers("train").len()), (50, 50));
    assert!(matches!(world.verdict("other"), Verdict::Wait(_)), "the queue has no quota left");
    // Afterwards the experiment grows back.
    world.end("train");
    world.end("other");
    world.step();
    world.grow("experiment");
    world.step();
    assert_eq!(world.workers("experiment"), (0..100).collect::<Vec<_>>());
}

// SEMANTICS: J4
#[test]
fn seed_003_an_experiment_that_cannot_shrink_so_far_is_not_shrunk_in_vain() {
    let mut world = cluster(60);
    world.submit(job("train", "production", 100, (50, 50, 50)));
    world.step();
    // Its 40 workers above the minimum are not enough. The experiment borrows, so the whole job stops.
    assert!(matches!(world.verdict("experiment"), Verdict::Stop { .. }));
    let mut world = cluster(60);
    world.queues[0].quotas.insert(GPU.into(), quota(40, None, None));
    world.queues[1].quotas.insert(GPU.into(), quota(60, None, None));
    world.submit(job("train", "production", -1, (50, 50, 50)));
    world.step();
    assert_eq!(world.workers("experiment").len(), 100, "a job that would borrow takes nothing of a higher priority");
}
