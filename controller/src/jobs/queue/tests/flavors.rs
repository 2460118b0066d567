//! Flavors: quota by the kind of nodes.

use larder_api::queue::flavor::on;

use super::*;

/// Two nodes of 4 GPUs of each flavor, and quota of 4 of the first and 8 of the second.
fn world() -> World {
    let mut queue = queue("vision", "", quota(100, None, None));
    queue.quotas = [(on(GPU, "h100"), quota(4, None, None)), (on(GPU, "a100"), quota(8, None, None))].into();
    World::new(vec![queue], 4, 4)
}

fn flavor<'a>(world: &'a World, name: &str) -> &'a str {
    &world.job(name).roles[0].flavor
}

// SEMANTICS: J25
#[test]
fn a_job_falls_back_to_the_next_flavor_and_each_has_its_own_quota() {
    let mut world = world();
    for at in 0..4 {
        world.now += 1;
        world.submit(flavored(job(&format!("any-{at}"), "vision", 0, (4, 4, 4)), &FLAVORS));
    }
    world.submit(flavored(job("h100", "vision", 0, (1, 1, 1)), &FLAVORS[..1]));
    world.step();
    assert_eq!(["any-0", "any-1", "any-2"].map(|name| flavor(&world, name)), ["h100", "a100", "a100"]);
    assert_eq!(world.waiting("any-3").why, "queue vision uses 4 of 4 GPUs on h100, needs 4");
    assert_eq!(world.waiting("h100").lacks, Lack::Quota);
    for pod in world.jobs.iter().flat_map(|job| &job.pods) {
        let is_even = pod.node == "n000" || pod.node == "n002";
        assert_eq!(pod.flavor, FLAVORS[usize::from(!is_even)], "{}", pod.node);
    }
}

// SEMANTICS: J25
#[test]
fn a_job_that_waits_for_one_flavor_holds_up_none_that_needs_another() {
    let mut world = world();
    let on_one =
        |name: &str, flavor: &'static str, pods: u32| flavored(job(name, "vision", 0, (pods, pods, pods)), &[flavor]);
    world.submit(on_one("runs", "h100", 3));
    world.step();
    world.now += 1;
    world.submit(on_one("head", "h100", 4));
    world.step();
    assert!(world.waiting("head").is_head);
    world.now += 31 * 60;
    world.submit(on_one("other", "a100", 8));
    world.submit(on_one("same", "h100", 1));
    world.step();
    assert!(
        matches!(world.verdict("other"), Verdict::Start { .. }),
        "even where no job may overtake the head any more"
    );
    assert!(matches!(world.verdict("same"), Verdict::Wait(_)));
    // A job that may have both does not take what the head waits for.
    world.submit(flavored(job("both", "vision", 0, (1, 1, 1)), &FLAVORS));
    world.step();
    assert_eq!(world.waiting("both").why, "queue vision uses 8 of 8 GPUs on a100, needs 1");
}

// SEMANTICS: J25
#[test]
fn room_is_made_on_one_flavor_while_another_job_waits_for_another() {
    let mut world = world();
    let on_one = |name: &str, flavor: &'static str, priority: i32, pods: u32| {
        flavored(job(name, "vision", priority, (pods, pods, pods)), &[flavor])
    };
    world.submit(on_one("first", "h100", 9, 4));
    world.submit(on_one("low", "a100", 0, 8));
    world.step();
    world.submit(on_one("head", "h100", 6, 4));
    world.submit(on_one("urgent", "a100", 5, 4));
    world.step();
    assert!(world.waiting("head").is_head && !world.waiting("head").claims);
    assert!(world.waiting("urgent").claims, "{}", world.waiting("urgent").why);
}

// SEMANTICS: J25
#[test]
fn room_is_made_on_the_first_flavor_where_that_helps_and_pods_that_end_count_on_their_own() {
    let mut world = world();
    world.submit(flavored(job("high", "vision", 9, (4, 4, 4)), &FLAVORS[..1]));
    world.submit(flavored(job("low", "vision", 0, (8, 8, 8)), &FLAVORS[1..]));
    world.step();
    world.submit(flavored(job("next", "vision", 5, (4, 4, 4)), &FLAVORS));
    world.step();
    let claim = world.waiting("next");
    assert_eq!((claim.claims, &claim.flavors[..]), (true, &["a100".to_owned()][..]));
    // Until the pods have ended, the quota of their flavor is used.
    world.step();
    assert!(matches!(world.verdict("next"), Verdict::Wait(_)));
    world.pods_end();
    world.step();
    assert_eq!(flavor(&world, "next"), "a100");
    // A job that stops, and would rather have another flavor, leaves pods on its old one.
    world.queues[0].stop = Stop::Drain;
    world.step();
    world.queues[0].stop = Stop::No;
    world.queues[0].quotas.insert(on(GPU, "a100"), quota(4, None, None));
    world.submit(flavored(job("first", "vision", 10, (4, 4, 4)), &FLAVORS[1..]));
    world.step();
    assert!(matches!(world.verdict("first"), Verdict::Wait(_)), "a node is free, but the quota of `next` is not");
    world.pods_end();
    world.step();
    assert_eq!(flavor(&world, "first"), "a100");
    assert!(matches!(world.verdict("first"), Verdict::Start { .. }));
}

// SEMANTICS: J25
#[test]
fn a_job_that_no_flavor_suits_says_so_and_delays_no_other() {
    let mut world = world();
    world.submit(Job { unsuited: Some("role worker can have none".into()), ..job("odd", "vision", 9, (1, 1, 1)) });
    world.submit(flavored(job("good", "vision", 0, (4, 4, 4)), &FLAVORS));
    world.step();
    assert_eq!(world.waiting("odd").why, "role worker can have none");
    assert!(matches!(world.verdict("good"), Verdict::Start { .. }));
}
