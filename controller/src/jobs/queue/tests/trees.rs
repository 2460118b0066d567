//! Trees of queues, and the jobs that they let preempt.

use larder_api::queue::{Preemption, Preempts};

use super::*;

fn below(name: &str, parent: &str, nominal: u64) -> Queue {
    Queue { parent: parent.into(), ..queue(name, "", quota(nominal, None, None)) }
}

/// Two departments of a company, with 8 GPUs each; research has two queues of 4.
fn company() -> World {
    let queues = vec![
        below("company", "", 0),
        below("research", "company", 0),
        below("vision", "research", 4),
        below("speech", "research", 4),
        below("sales", "company", 8),
    ];
    World::new(queues, 4, 4)
}

// SEMANTICS: J3
#[test]
fn a_department_lends_within_itself_first_and_takes_back_what_it_has_lent_to_others() {
    let mut world = company();
    world.submit(job("sales", "sales", 0, (1, 12, 12)));
    world.submit(job("speech", "speech", 0, (4, 4, 4)));
    world.step();
    assert_eq!((world.used("sales"), world.used("speech")), (12, 4), "sales borrows the half of research");
    // Vision stays within the quota of research, and so takes back only what sales has borrowed.
    world.submit(job("vision", "vision", 0, (4, 4, 4)));
    world.step();
    world.pods_end();
    world.step();
    assert_eq!((world.used("sales"), world.used("speech"), world.used("vision")), (8, 4, 4));
    // Beyond that it takes nothing of equals.
    world.submit(job("more", "vision", 0, (1, 1, 1)));
    world.step();
    assert!(!world.waiting("more").claims);
    // When speech has ended, vision borrows from its sister.
    world.end("speech");
    world.step();
    assert_eq!(world.used("vision"), 5);
}

// SEMANTICS: J3
#[test]
fn limits_of_a_queue_are_those_of_all_queues_below_it_together() {
    let mut world = company();
    world.queues[1].quotas.insert(GPU.into(), quota(0, Some(2), Some(3)));
    for at in 0..16 {
        world.submit(job(&format!("vision-{at:02}"), "vision", 0, (1, 1, 1)));
        world.submit(job(&format!("speech-{at:02}"), "speech", 0, (1, 1, 1)));
    }
    world.step();
    assert_eq!((world.used("vision"), world.used("speech")), (5, 5), "8 of research and 2 borrowed");
    let mut world = company();
    world.queues[1].quotas.insert(GPU.into(), quota(0, Some(2), Some(3)));
    world.submit(job("sales", "sales", 0, (1, 16, 16)));
    world.step();
    assert_eq!(world.used("sales"), 11, "research lends 3");
}

// SEMANTICS: J3
#[test]
fn the_department_that_uses_less_has_its_turn_first() {
    let mut world = company();
    for queue in &mut world.queues {
        queue.quotas.insert(GPU.into(), quota(0, None, None));
    }
    world.queues[0].quotas.insert(GPU.into(), quota(16, None, None));
    for at in 0..16 {
        for queue in ["vision", "speech", "sales"] {
            world.submit(job(&format!("{queue}-{at:02}"), queue, 0, (1, 1, 1)));
        }
    }
    world.step();
    assert_eq!((world.used("sales"), world.used("vision"), world.used("speech")), (8, 4, 4));
}

// SEMANTICS: J7
#[test]
fn queues_that_are_above_themselves_start_nothing_and_others_go_on() {
    let mut world = company();
    world.queues[1].obstacle = Some("research is below vision".into());
    world.submit(job("stuck", "research", 0, (1, 1, 1)));
    world.queues[1].parent = "vision".into();
    world.submit(job("runs", "sales", 0, (8, 8, 8)));
    world.step();
    assert_eq!(world.waiting("stuck").why, "research is below vision");
    assert!(matches!(world.verdict("runs"), Verdict::Start { .. }));
}

// SEMANTICS: J4
#[test]
fn a_queue_preempts_as_its_switches_say() {
    // Whether a job of `priority` in queue a is given room of a job with the priority 0 in queue a, or in queue b,
    // which borrows.
    let takes = |preemption: Preemption, victim: &str, priority: i32, pods: u32| {
        let mut world = World::new(
            vec![
                Queue { preemption, ..queue("a", "all", quota(4, None, None)) },
                queue("b", "all", quota(4, None, None)),
            ],
            2,
            4,
        );
        world.submit(job("victim", victim, 0, (8, 8, 8)));
        world.step();
        world.submit(job("taker", "a", priority, (pods, pods, pods)));
        world.step();
        world.waiting("taker").claims
    };
    let default = Preemption::default();
    let never = Preempts::Never;
    // (switches, victim, priority, pods, takes)
    for (preemption, victim, priority, pods, expected) in [
        (default, "a", 1, 4, true),
        (default, "a", 0, 4, false),
        (Preemption { within_queue: never, ..default }, "a", 1, 4, false),
        (default, "b", 0, 4, true),
        (Preemption { reclaim: Preempts::LowerPriority, ..default }, "b", 0, 4, false),
        (Preemption { reclaim: Preempts::LowerPriority, ..default }, "b", 1, 4, true),
        (Preemption { reclaim: never, ..default }, "b", 1, 4, false),
        (default, "b", 1, 6, true),
        (default, "b", 0, 6, false),
        (Preemption { while_borrowing: never, ..default }, "b", 1, 6, false),
        (Preemption { while_borrowing: never, ..default }, "b", 1, 4, true),
    ] {
        let text = format!("{preemption:?} {victim} {priority} {pods}");
        assert_eq!(takes(preemption, victim, priority, pods), expected, "{text}");
    }
}

// SEMANTICS: J4
#[test]
fn an_elastic_job_gives_its_surplus_to_equals_and_keeps_its_minimum() {
    let world = |preemption: Preemption| {
        let mut world = World::new(vec![Queue { preemption, ..queue("a", "", quota(8, None, None)) }], 2, 4);
        world.submit(job("elastic", "a", 0, (2, 4, 8)));
        world.step();
        world.step();
        world.grow("elastic");
        assert_eq!(world.used("a"), 8, "it has grown over the whole queue");
        world.now += 1;
        world.submit(job("equal", "a", 0, (5, 5, 5)));
        world.step();
        world
    };
    let mut lends = world(Preemption::default());
    assert_eq!((lends.workers("elastic"), lends.waiting("equal").claims), (vec![0, 1, 2], true));
    lends.pods_end();
    lends.step();
    assert_eq!(lends.workers("equal").len(), 5);
    lends.submit(job("another", "a", 0, (2, 2, 2)));
    lends.step();
    assert_eq!((lends.workers("elastic").len(), lends.waiting("another").claims), (3, false), "one is not enough");
    let keeps = world(Preemption { within_queue: Preempts::Never, ..Preemption::default() });
    assert_eq!(keeps.workers("elastic").len(), 8);
}
