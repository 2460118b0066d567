use k8s_openapi::api::core::v1::Toleration;

use super::*;

fn alone(nominal: u64) -> World {
    World::new(vec![queue("vision", "", quota(nominal, None, None))], 4, 4)
}

#[test]
fn priority_comes_first_and_then_the_older_job() {
    let mut world = alone(4);
    world.submit(job("old", "vision", 0, (4, 4, 4)));
    world.submit(job("urgent", "vision", 5, (4, 4, 4)));
    world.step();
    assert!(matches!(world.verdict("urgent"), Verdict::Start { .. }));
    assert_eq!(world.waiting("old").why, "queue vision uses 4 of 4 GPUs, needs 4");
    world.jobs[1].ends = Some(Seconds(1_000_600));
    world.end("none");
    world.step();
    let why = &world.waiting("old").why;
    assert_eq!(
        why,
        "queue vision uses 4 of 4 GPUs, needs 4; next to end: team/urgent (4), by 13:56 UTC at its deadline"
    );
}

// SEMANTICS: K7
#[test]
fn a_job_learns_no_name_of_another_namespace() {
    let mut world = alone(8);
    let mut stranger = job("secret", "vision", 0, (8, 8, 8));
    stranger.key = Key::new("strangers", "secret");
    let mut first = job("private", "vision", 0, (8, 8, 8));
    first.key = Key::new("strangers", "private");
    first.ends = Some(Seconds(1_000_600));
    world.submit(first);
    world.step();
    world.now += 1;
    world.submit(stranger);
    world.now += 1;
    world.submit(job("mine", "vision", 0, (8, 8, 8)));
    world.step();
    let why = &world.waiting("mine").why;
    assert!(why.starts_with("waits behind a job of another namespace, which came first"), "{why}");
}

#[test]
fn a_small_job_passes_the_head_for_half_an_hour_at_most() {
    let mut world = alone(8);
    world.submit(job("first", "vision", 0, (6, 6, 6)));
    world.submit(job("head", "vision", 0, (8, 8, 8)));
    world.now += 1;
    world.submit(job("small", "vision", 0, (1, 1, 1)));
    world.submit(job("as-large", "vision", 0, (8, 8, 8)));
    world.step();
    assert!(matches!(world.verdict("small"), Verdict::Start { .. }));
    assert!(world.waiting("head").is_head && !world.waiting("as-large").is_head);
    assert_eq!(
        world.waiting("as-large").why,
        "waits behind team/head, which came first; only jobs that request less of every resource may overtake it"
    );
    world.now += 30 * 60;
    world.submit(job("late", "vision", 0, (1, 1, 1)));
    world.step();
    assert_eq!(
        world.waiting("late").why,
        "waits behind team/head, which has found no room for 30 min: no job may overtake it any more"
    );
    world.end("first");
    world.end("small");
    world.step();
    assert!(matches!(world.verdict("head"), Verdict::Start { .. }));
}

#[test]
fn room_that_an_overdue_head_needs_is_held_from_all_queues() {
    let mut world =
        World::new(vec![queue("a", "", quota(16, None, None)), queue("b", "", quota(16, None, None))], 2, 4);
    world.submit(job("one", "a", 0, (4, 4, 4)));
    world.submit(job("two", "b", 0, (4, 4, 4)));
    world.step();
    world.submit(job("head", "a", 0, (8, 8, 8)));
    world.step();
    assert!(world.waiting("head").why.starts_with("8 pods of role worker, each with 1 GPU, need room: 0 fit now"));
    world.now += 30 * 60;
    world.end("two");
    world.submit(job("passes", "b", 0, (4, 4, 4)));
    world.step();
    assert!(matches!(world.verdict("passes"), Verdict::Wait(_)), "{:?}", world.verdict("passes"));
    world.end("one");
    world.step();
    assert!(matches!(world.verdict("head"), Verdict::Start { .. }));
}

#[test]
fn queues_take_turns_by_their_share_for_their_weight() {
    let mut heavy = queue("heavy", "all", quota(6, None, None));
    heavy.weight = 3;
    let mut world = World::new(vec![heavy, queue("light", "all", quota(6, None, None))], 2, 4);
    world.queues[0].quotas.insert(GPU.into(), quota(0, None, None));
    world.queues[1].quotas.insert(GPU.into(), quota(0, None, None));
    world.queues.push(queue("lends", "all", quota(8, None, None)));
    for at in 0..8 {
        world.submit(job(&format!("heavy-{at}"), "heavy", 0, (1, 1, 1)));
        world.submit(job(&format!("light-{at}"), "light", 0, (1, 1, 1)));
    }
    world.step();
    assert_eq!((world.used("heavy"), world.used("light")), (6, 2));
}

// SEMANTICS: J3
#[test]
fn a_queue_borrows_what_it_may_and_lends_what_it_must() {
    let queues = vec![
        queue("a", "all", quota(4, Some(3), None)),
        queue("b", "all", quota(4, None, Some(2))),
        queue("c", "all", quota(2, None, Some(0))),
    ];
    let mut world = World::new(queues, 4, 4);
    for at in 0..10 {
        world.submit(job(&format!("a{at}"), "a", 0, (1, 1, 1)));
    }
    world.step();
    assert_eq!(world.used("a"), 6, "4 of its own and 2 that b lends");
    world.queues[1].quotas.insert(GPU.into(), quota(4, None, None));
    world.step();
    assert_eq!(world.used("a"), 7, "it borrows 3 at most");
    assert_eq!(
        world.waiting("a9").why,
        "waits behind team/a7, which came first; only jobs that request less of every resource may overtake it"
    );
    assert_eq!(world.waiting("a7").why, "queue a uses 7 GPUs, 3 of them borrowed, and may use 7 now; needs 1");
    world.submit(job("never", "a", 9, (9, 9, 9)));
    world.step();
    assert_eq!(world.waiting("never").why, "needs 9 GPUs, but queue a can never use more than 7");
    assert!(!world.waiting("never").warm && !world.waiting("never").is_head);
}

#[test]
fn lowered_quotas_are_given_back_by_surplus_first() {
    let mut world = alone(16);
    world.submit(job("elastic", "vision", 5, (2, 8, 8)));
    world.submit(job("rigid", "vision", 0, (4, 4, 4)));
    world.step();
    world.queues[0].quotas.insert(GPU.into(), quota(8, None, None));
    world.step();
    assert_eq!((world.workers("elastic").len(), world.workers("rigid").len()), (4, 4));
    world.queues[0].quotas.insert(GPU.into(), quota(3, None, None));
    world.pods_end();
    world.step();
    assert_eq!((world.workers("elastic").len(), world.workers("rigid").len()), (3, 0));
}

#[test]
fn stopped_queues_start_nothing_and_drained_ones_end_what_runs() {
    let mut world = alone(16);
    world.submit(job("runs", "vision", 0, (1, 2, 4)));
    world.step();
    world.queues[0].stop = Stop::Hold;
    world.submit(job("waits", "vision", 9, (1, 1, 1)));
    world.submit(job("lost", "none", 0, (1, 1, 1)));
    world.step();
    assert!(matches!(world.verdict("runs"), Verdict::Run(running) if running.may_grow_to == [2]));
    assert_eq!(world.waiting("waits").why, "queue vision is stopped (spec.stop)");
    assert_eq!(world.waiting("lost").why, "there is no queue none");
    world.queues[0].stop = Stop::Drain;
    world.step();
    assert!(matches!(world.verdict("runs"), Verdict::Stop { .. }));
    world.queues[0].stop = Stop::No;
    world.step();
    assert!(matches!(world.verdict("waits"), Verdict::Start { .. }));
}

#[test]
fn whole_jobs_go_after_all_surplus_and_lower_priorities_before_higher() {
    let mut world = alone(16);
    world.submit(job("low", "vision", 0, (4, 4, 4)));
    world.submit(job("lower", "vision", -1, (4, 4, 4)));
    world.submit(job("elastic", "vision", 1, (2, 8, 8)));
    world.step();
    world.submit(job("urgent", "vision", 2, (8, 8, 8)));
    world.step();
    assert_eq!(world.workers("elastic").len(), 4);
    assert_eq!((world.workers("low").len(), world.workers("lower").len()), (4, 0));
    world.submit(job("equal", "vision", 2, (1, 1, 1)));
    world.pods_end();
    world.step();
    assert_eq!(world.workers("urgent").len(), 8);
    assert!(world.waiting("equal").claims, "it takes one more of the surplus");
    assert_eq!(world.workers("elastic").len(), 3);
}

// SEMANTICS: J4
#[test]
fn nothing_ends_where_the_nodes_would_still_have_no_place() {
    // There is quota for all jobs, and half of each node is used by other pods that cannot be preempted.
    let mut world = alone(16);
    world.submit(job("low", "vision", 0, (4, 4, 4)));
    world.submit(job("same", "vision", 5, (8, 8, 8)));
    world.step();
    let mut urgent = job("urgent", "vision", 5, (2, 2, 2));
    urgent.roles[0].requests = [(GPU, 4)].into_iter().collect();
    world.queues[0].quotas.clear();
    world.submit(urgent.clone());
    world.step();
    assert!(world.waiting("urgent").claims, "with the node that is empty one more is enough");
    let mut world = alone(16);
    world.submit(job("low", "vision", 0, (4, 4, 4)));
    world.submit(job("same", "vision", 5, (9, 9, 9)));
    world.queues[0].quotas.clear();
    world.step();
    world.submit(urgent);
    world.step();
    assert!(!world.waiting("urgent").claims);
    assert_eq!(world.workers("low").len(), 4);
}

#[test]
fn a_job_whose_pods_were_not_bound_lets_others_go_first() {
    let mut world = alone(4);
    world.submit(Job { not_before: Some(world.now + 60), ..job("bad", "vision", 9, (4, 4, 4)) });
    world.submit(job("good", "vision", 0, (4, 4, 4)));
    world.step();
    assert!(matches!(world.verdict("good"), Verdict::Start { .. }));
    assert_eq!(world.waiting("bad").why, "it is retried at 13:47 UTC");
    world.now += 60;
    world.step();
    assert!(!world.waiting("bad").claims, "others would end for nothing again");
    world.now += 30 * 60;
    world.step();
    assert!(world.waiting("bad").claims);
}

// SEMANTICS: J15
#[test]
fn room_that_pods_of_others_take_costs_one_job_each_time_and_ever_less_often() {
    let mut world = World::new(vec![queue("vision", "", quota(64, None, None))], 4, 4);
    for at in 0..8 {
        world.submit(job(&format!("low-{at}"), "vision", 0, (2, 2, 2)));
    }
    world.step();
    world.submit(job("high", "vision", 5, (2, 2, 2)));
    world.foreign = 100;
    let (began, mut preempted) = (world.now, Vec::new());
    for _ in 0..3_600 {
        world.step();
        let stops = world.last.values().filter(|verdict| matches!(verdict, Verdict::Stop { .. })).count();
        preempted.extend(std::iter::repeat_n(world.now - began, stops));
        world.pods_end();
        world.now += 1;
    }
    assert_eq!(preempted, [0, 61, 182, 423, 904, 1_865]);
    // It takes the first room that is left to it.
    world.foreign = 0;
    world.leftover.truncate(10);
    world.step();
    assert!(matches!(world.verdict("high"), Verdict::Start { .. }), "{:?}", world.verdict("high"));
}

// SEMANTICS: J15
#[test]
fn nothing_ends_for_a_job_before_its_data_is_where_it_would_run() {
    let mut world = alone(8);
    world.submit(job("low", "vision", 0, (8, 8, 8)));
    world.step();
    world.submit(Job { is_cold: true, ..job("high", "vision", 5, (4, 4, 4)) });
    world.step();
    let waiting = world.waiting("high");
    assert!(waiting.is_head && !waiting.claims && waiting.nodes.len() == 1, "{waiting:?}");
    assert!(waiting.why.ends_with("before other jobs are preempted for it"), "{}", waiting.why);
    assert_eq!(world.workers("low").len(), 8);
    let nodes = waiting.nodes.clone();
    world.jobs[1].is_cold = false;
    world.step();
    assert!(world.waiting("high").claims && world.workers("low").is_empty());
    assert_eq!(world.waiting("high").nodes, nodes, "its data stays on them meanwhile");
}

// SEMANTICS: J16
#[test]
fn many_jobs_that_find_no_room_have_their_turns_and_none_is_left_out() {
    // Jobs of one pod that differ in the taints that they tolerate, as somebody may make them by the thousand.
    let mut world = World::new(Vec::new(), 2, 4);
    world.submit(job("full", "", 0, (8, 8, 8)));
    world.step();
    let odd = |name: &str, at: usize| {
        let mut odd = job(name, "", 0, (1, 1, 1));
        let key = Some(format!("taint-{at}"));
        odd.roles[0].places.tolerations.push(Toleration { key, ..Toleration::default() });
        odd
    };
    for at in 0..200 {
        world.submit(odd(&format!("j{at:03}"), at));
    }
    // Those of another namespace have turns of their own.
    let mut other = odd("other", 1_000);
    other.key.namespace = "other".to_owned();
    world.submit(other);
    let mut tried = BTreeMap::new();
    for round in 0..8 {
        world.step();
        let now =
            world.last.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Wait(waiting) if !waiting.is_untried));
        let now: Vec<Key> = now.map(|(key, _)| key.clone()).collect();
        assert!(now.len() <= 34, "round {round}: {}", now.len());
        for key in now {
            *tried.entry(key).or_insert(0) += 1;
        }
    }
    assert_eq!(tried.len(), 201, "each has had its turn");
    assert_eq!(tried[&Key::new("other", "other")], 8);
    // Room that becomes free is found by the next that have their turn.
    world.end("full");
    for _ in 0..8 {
        world.step();
    }
    assert_eq!(world.jobs.iter().filter(|job| job.is_admitted()).count(), 8);
}

/// The number of waiting jobs for which the last decision has looked for room.
fn tried(decided: &BTreeMap<Key, Verdict>) -> usize {
    decided.values().filter(|verdict| matches!(verdict, Verdict::Wait(waiting) if !waiting.is_untried)).count()
}

// SEMANTICS: J16
#[test]
fn jobs_that_no_node_could_ever_run_have_their_turns_like_others() {
    let mut world = World::new(vec![queue("vision", "", quota(300, None, None))], 2, 4);
    for at in 0..200 {
        let mut odd = job(&format!("odd-{at:03}"), "vision", 0, (1, 1, 1));
        odd.roles[0].places.labels.insert("kind".into(), format!("kind-{at}"));
        world.submit(odd);
    }
    world.now += 1;
    world.submit(job("good", "vision", 0, (1, 1, 1)));
    for round in 0..8 {
        world.step();
        assert!(tried(&world.last) <= 32, "round {round}: {}", tried(&world.last));
    }
    assert!(world.job("good").is_admitted(), "{:?}", world.verdict("good"));
}

// SEMANTICS: J16
#[test]
fn a_job_that_comes_while_others_have_their_turns_has_its_own() {
    let mut world = World::new(vec![queue("vision", "", quota(300, None, None))], 2, 4);
    for at in 0..40 {
        let mut odd = job(&format!("odd-{at:03}"), "vision", 0, (1, 1, 1));
        odd.roles[0].places.labels.insert("kind".into(), format!("kind-{at}"));
        world.submit(odd);
    }
    world.submit(Job { not_before: Some(world.now + 1), ..job("later", "vision", -1, (1, 1, 1)) });
    world.step();
    world.now += 1;
    world.submit(job("new", "vision", 0, (1, 1, 1)));
    // The last turn of all others: nothing else would cause another decision.
    world.step();
    for name in ["new", "later"] {
        assert!(matches!(world.verdict(name), Verdict::Start { .. }), "{name}: {:?}", world.verdict(name));
    }
}

// SEMANTICS: J16
#[test]
fn of_running_jobs_that_are_alike_one_looks_for_room_to_grow_in_vain() {
    let mut world = World::new(vec![queue("vision", "", quota(300, None, None))], 2, 4);
    for at in 0..8 {
        world.submit(job(&format!("job-{at}"), "vision", 0, (1, 1, 4)));
    }
    world.step();
    assert!(world.jobs.iter().all(Job::is_admitted));
    {
        let (rooms, fallbacks) = (world.rooms(), vec![Vec::new(); world.jobs.len()]);
        let jobs: Vec<&Job> = world.jobs.iter().collect();
        let mut pass = Pass::new(&world.queues, &jobs, &fallbacks, &[], &Cluster::new(&rooms), world.now);
        pass.grow();
        assert_eq!(pass.not_grown.len(), 1);
    }
    // Room is found once there is some.
    world.end("job-0");
    world.step();
    let grows = |job: &&Job| matches!(&world.last[&job.key], Verdict::Run(running) if running.may_grow_to == [2]);
    assert_eq!(world.jobs.iter().filter(grows).count(), 1);
}

// SEMANTICS: J16
#[test]
fn jobs_that_request_nothing_have_their_turns_like_others_and_keep_none_from_its_place() {
    let mut world = World::new(vec![queue("vision", "", quota(300, None, None))], 2, 4);
    for at in 0..100 {
        let mut empty = job(&format!("empty-{at:03}"), "vision", 9, (1, 1, 1));
        empty.roles[0].requests = Amounts::default();
        let key = Some(format!("taint-{at}"));
        empty.roles[0].places.tolerations.push(Toleration { key, ..Toleration::default() });
        world.submit(empty);
    }
    world.submit(Job { head_since: Some(world.now), ..job("first", "vision", 0, (1, 1, 1)) });
    world.submit(job("next", "vision", 0, (1, 1, 1)));
    // The nodes have as many pods as they may.
    let full = |node| NodeRoom {
        node,
        allocatable: Cow::Owned([(GPU, 4), ("pods", 1)].into_iter().collect()),
        used: Cow::Owned([("pods", 1)].into_iter().collect()),
        held: BTreeMap::new(),
    };
    let rooms: Vec<NodeRoom<'_>> = world.nodes.iter().map(full).collect();
    let decided = decide(&world.queues, &world.jobs, &[], &mut Cluster::new(&rooms), world.now);
    assert!(tried(&decided) <= 34, "{}", tried(&decided));
    let heads = decided.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Wait(waiting) if waiting.is_head));
    let heads: Vec<&str> = heads.map(|(key, _)| key.name.as_str()).collect();
    assert_eq!(heads, ["first"]);
}

// SEMANTICS: J16
#[test]
fn a_job_whose_pods_may_share_nodes_does_not_wait_for_one_whose_pods_must_not() {
    let mut world = World::new(Vec::new(), 2, 4);
    let mut apart = job("apart", "", 9, (3, 3, 3));
    apart.roles[0].apart = true;
    world.submit(apart);
    world.submit(job("together", "", 0, (3, 3, 3)));
    world.step();
    assert_eq!(world.waiting("apart").lacks, Lack::Cluster);
    assert!(matches!(world.verdict("together"), Verdict::Start { .. }), "{:?}", world.verdict("together"));
}

// SEMANTICS: J17
#[test]
fn the_first_job_of_a_queue_that_lacks_nodes_and_no_quota_starts_for_an_autoscaler() {
    let scales =
        |name: &str, queue: &str, pods: u32| Job { may_await_nodes: true, ..job(name, queue, 0, (pods, pods, pods)) };
    // A pool of no nodes, and one that is full of pods that no other job may preempt.
    for (nodes, full) in [(0, false), (2, true)] {
        let quotas = [("batch", 8), ("speech", 2), ("vision", 12)];
        let queues = quotas.map(|(name, nominal)| queue(name, "", quota(nominal, None, None))).to_vec();
        let mut world = World::new(queues, nodes, 4);
        if full {
            world.submit(job("full", "batch", 0, (8, 8, 8)));
            world.step();
        }
        world.submit(scales("first", "vision", 8));
        world.submit(scales("second", "vision", 2));
        world.submit(scales("beyond", "vision", 99));
        world.submit(scales("other", "speech", 2));
        world.submit(job("native", "speech", 9, (1, 1, 1)));
        world.step();
        let starts = |name: &str| matches!(world.verdict(name), Verdict::Start { nodes, .. } if nodes.is_empty());
        assert_eq!(["first", "second", "beyond", "native"].map(starts), [true, false, false, false]);
        // One job of a queue waits for nodes at a time.
        world.step();
        assert!(matches!(world.verdict("second"), Verdict::Wait(_)), "{:?}", world.verdict("second"));
        // Once the first has its nodes, the next one has its turn.
        world.jobs.iter_mut().for_each(|job| job.awaits_nodes = false);
        world.step();
        assert!(matches!(world.verdict("second"), Verdict::Start { .. }));
    }
}

// SEMANTICS: J14
#[test]
fn a_job_starts_on_nodes_that_have_not_refused_its_pods() {
    let mut world = alone(16);
    let refused_by = |node: &str| RefusedBy { role: 0, node: node.into(), at: Seconds(1_000_000) };
    world.submit(Job {
        refused_by: vec![refused_by("n000"), refused_by("n001")],
        ..job("train", "vision", 0, (4, 4, 4))
    });
    world.step();
    assert!(world.job("train").pods.iter().all(|pod| pod.node == "n002"), "{:?}", world.job("train").pods);
}

// SEMANTICS: J6
#[test]
fn the_next_two_of_each_queue_are_warmed_ahead() {
    let mut world = alone(4);
    for (at, name) in ["runs", "next", "second", "third"].into_iter().enumerate() {
        world.now += at as i64;
        world.submit(job(name, "vision", 0, (4, 4, 4)));
    }
    world.submit(job("too-large", "vision", 9, (5, 5, 5)));
    world.step();
    let warm = ["next", "second", "third", "too-large"].map(|name| world.waiting(name).warm);
    assert_eq!(warm, [true, true, false, false]);
}

// SEMANTICS: J6
#[test]
fn jobs_that_cannot_start_soon_take_no_turn_of_those_that_are_warmed_ahead() {
    let mut world = alone(4);
    world.submit(job("runs", "vision", 0, (4, 4, 4)));
    world.step();
    let shortage = Some("a ResourceQuota of its namespace is used up".to_owned());
    world.submit(Job { shortage, ..job("short", "vision", 9, (4, 4, 4)) });
    world.submit(Job { not_before: Some(world.now + 61), ..job("late", "vision", 9, (4, 4, 4)) });
    world.submit(Job { not_before: Some(world.now + 30), ..job("soon", "vision", 9, (4, 4, 4)) });
    world.submit(job("next", "vision", 0, (4, 4, 4)));
    world.step();
    let warm = ["short", "late", "soon", "next"].map(|name| world.waiting(name).warm);
    assert_eq!(warm, [false, false, true, true]);
}

#[test]
fn an_elastic_job_does_not_grow_past_a_job_that_waits() {
    let mut world = alone(16);
    world.submit(job("elastic", "vision", 0, (2, 8, 16)));
    world.submit(job("rigid", "vision", 0, (8, 8, 8)));
    world.step();
    world.submit(job("head", "vision", 0, (8, 8, 8)));
    world.end("rigid");
    world.jobs.last_mut().unwrap().roles[0].requests = [(GPU, 2)].into_iter().collect();
    world.step();
    assert!(world.waiting("head").is_head);
    assert!(matches!(world.verdict("elastic"), Verdict::Run(running) if running.may_grow_to == [8]));
    world.end("head");
    world.step();
    assert!(matches!(world.verdict("elastic"), Verdict::Run(running) if running.may_grow_to == [16]));
}

#[test]
fn pods_that_a_job_has_left_use_quota_until_they_are_gone_and_nobody_ends_for_room_that_they_leave() {
    let mut world = World::new(vec![queue("vision", "", quota(8, None, None))], 2, 4);
    world.submit(job("low", "vision", 0, (4, 4, 4)));
    world.step();
    let node = |pod: &HeldPod| if pod.node == "n000" { "n001" } else { "n000" };
    let node = node(&world.job("low").pods[0]).to_owned();
    let requests = [(GPU, 1)].into_iter().collect();
    let left = LeftoverPod { queue: "vision".into(), requests, node, ..LeftoverPod::default() };
    world.leftover = vec![left; 4];
    world.submit(job("high", "vision", 5, (4, 4, 4)));
    world.step();
    assert_eq!((world.job("low").granted(0), world.waiting("high").claims), (4, true));
    assert!(world.waiting("high").why.contains("4 pods"), "{}", world.waiting("high").why);
    world.leftover.clear();
    world.step();
    assert!(matches!(world.verdict("high"), Verdict::Start { .. }));
    // Pods that are not terminating make no room.
    world.end("high");
    world.leftover = vec![LeftoverPod {
        queue: "vision".into(),
        requests: [(GPU, 4)].into_iter().collect(),
        stays: true,
        ..LeftoverPod::default()
    }];
    world.submit(job("next", "vision", 0, (4, 4, 4)));
    world.step();
    assert_eq!(world.waiting("next").why, "queue vision uses 8 of 8 GPUs, needs 4");
}

// SEMANTICS: J3
#[test]
fn pods_that_ended_jobs_keep_stop_no_other_job() {
    let all = |nominal: u64| {
        vec![queue("vision", "all", quota(nominal, None, None)), queue("speech", "all", quota(8, None, None))]
    };
    let mut world = World::new(all(8), 4, 4);
    world.submit(job("own", "vision", 0, (1, 4, 4)));
    world.submit(job("borrows", "speech", 0, (10, 10, 10)));
    world.step();
    let left = |gpus: u64| {
        let requests = [(GPU, gpus)].into_iter().collect();
        vec![LeftoverPod { queue: "vision".into(), requests, stays: true, ..LeftoverPod::default() }]
    };
    world.leftover = left(1_000_000);
    world.step();
    assert_eq!((world.workers("own").len(), world.workers("borrows").len()), (4, 10));
    world.submit(job("next", "vision", 0, (1, 1, 1)));
    world.step();
    assert!(!world.waiting("next").why.is_empty(), "nothing starts meanwhile");
    world.end("next");
    // Excess of the jobs themselves is given back.
    world.end("borrows");
    world.queues = vec![queue("vision", "", quota(3, None, None))];
    world.step();
    assert_eq!(world.workers("own").len(), 3);
    world.leftover = left(1);
    world.step();
    assert_eq!(world.workers("own").len(), 3);
}

#[test]
fn room_that_was_freed_for_a_job_is_not_given_to_pods_that_have_lost_their_node() {
    let mut world = World::new(vec![queue("vision", "", quota(20, None, None))], 4, 4);
    world.submit(job("low", "vision", 0, (4, 8, 8)));
    world.submit(job("unlucky", "vision", 0, (4, 4, 4)));
    world.submit(job("other", "vision", 9, (4, 4, 4)));
    world.step();
    world.submit(job("high", "vision", 5, (4, 4, 4)));
    world.step();
    assert_eq!((world.workers("low").len(), world.waiting("high").claims), (4, true));
    let lost = world.job("unlucky").pods[0].node.clone();
    world.lose(&lost);
    world.step();
    let plan = |world: &World| match world.verdict("unlucky") {
        Verdict::Run(running) => running.plan.clone(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(plan(&world), Some(Plan::None(_))), "{:?}", plan(&world));
    world.pods_end();
    world.step();
    assert!(matches!(world.verdict("high"), Verdict::Start { .. }));
    assert!(matches!(plan(&world), Some(Plan::None(_))), "{:?}", plan(&world));
    world.end("high");
    world.step();
    assert!(matches!(plan(&world), Some(Plan::Nodes(pods)) if pods.len() == 4));
}

#[test]
fn a_pod_is_not_replaced_while_it_runs_if_the_quota_has_no_room_for_both() {
    let mut world = alone(4);
    world.submit(job("train", "vision", 0, (4, 4, 4)));
    world.step();
    let train = &mut world.jobs[0];
    (train.pods[2].leaving, train.unplaced, train.replaces_live) = (true, vec![vec![2]], true);
    let has_plan = |world: &World| match world.verdict("train") {
        Verdict::Run(running) => running.plan.is_some(),
        other => panic!("{other:?}"),
    };
    world.step();
    assert!(!has_plan(&world));
    world.pods_end();
    world.jobs[0].replaces_live = false;
    world.step();
    assert!(has_plan(&world));
}

#[test]
fn a_job_without_a_queue_waits_for_no_other() {
    let mut world = World::new(Vec::new(), 2, 4);
    world.submit(job("first", "", 0, (6, 6, 6)));
    world.step();
    world.submit(job("large", "", 0, (8, 8, 8)));
    world.step();
    assert!(!world.waiting("large").is_head);
    world.now += 30 * 60;
    world.submit(job("late", "", 0, (2, 2, 2)));
    world.step();
    assert!(matches!(world.verdict("late"), Verdict::Start { .. }), "{:?}", world.verdict("late"));
}

#[test]
fn a_job_without_a_queue_comes_after_the_jobs_of_all_queues() {
    let mut world = World::new(vec![queue("vision", "", quota(8, None, None))], 2, 4);
    world.submit(job("free", "", 9, (8, 8, 8)));
    world.now += 1;
    world.submit(job("train", "vision", 0, (8, 8, 8)));
    world.step();
    assert!(matches!(world.verdict("train"), Verdict::Start { .. }), "{:?}", world.verdict("train"));
    // It preempts no job of a queue, whatever its priority.
    world.step();
    assert!(matches!(world.verdict("train"), Verdict::Run(_)) && !world.waiting("free").claims);
}

// SEMANTICS: J4
#[test]
fn any_job_within_its_nominal_quota_preempts_jobs_without_a_queue() {
    let mut world = World::new(vec![queue("vision", "", quota(8, None, None))], 2, 4);
    world.submit(job("elastic", "", 9, (2, 4, 4)));
    world.submit(job("whole", "", 9, (4, 4, 4)));
    world.step();
    world.now += 1;
    world.submit(job("first", "vision", 0, (2, 2, 2)));
    world.step();
    assert_eq!(world.workers("elastic"), [0, 1], "the surplus goes first");
    assert!(world.waiting("first").claims && matches!(world.verdict("whole"), Verdict::Run(_)));
    world.pods_end();
    world.step();
    assert!(matches!(world.verdict("first"), Verdict::Start { .. }));
    // A job of the queue that has a lower priority lasts longer than one without a queue.
    world.now += 1;
    world.submit(job("second", "vision", 5, (4, 4, 4)));
    world.step();
    assert!(matches!(world.verdict("whole"), Verdict::Stop { .. }), "{:?}", world.verdict("whole"));
    assert!(matches!(world.verdict("first"), Verdict::Run(_)));
}

// SEMANTICS: J13
#[test]
fn room_that_is_freed_for_a_job_without_a_queue_goes_to_a_job_of_a_queue() {
    let mut world = World::new(vec![queue("vision", "", quota(8, None, None))], 2, 4);
    world.submit(job("low", "", 0, (8, 8, 8)));
    world.step();
    world.submit(job("high", "", 5, (8, 8, 8)));
    world.step();
    assert!(world.waiting("high").claims);
    world.submit(job("train", "vision", 0, (8, 8, 8)));
    world.step();
    assert!(world.waiting("train").claims && world.waiting("high").in_vain);
    world.pods_end();
    world.step();
    assert!(matches!(world.verdict("train"), Verdict::Start { .. }), "{:?}", world.verdict("train"));
}

#[test]
fn a_job_that_borrows_preempts_no_job_without_a_queue() {
    let queues = vec![queue("vision", "all", quota(2, None, None)), queue("speech", "all", quota(8, None, None))];
    let mut world = World::new(queues, 2, 4);
    world.submit(job("free", "", 0, (8, 8, 8)));
    world.step();
    world.submit(job("borrows", "vision", 9, (4, 4, 4)));
    world.step();
    assert!(!world.waiting("borrows").claims && matches!(world.verdict("free"), Verdict::Run(_)));
    world.submit(job("own", "vision", 0, (2, 2, 2)));
    world.end("borrows");
    world.step();
    assert!(world.waiting("own").claims);
}

/// A job without a queue whose four pods are planned on a node and not created.
fn planned(name: &str, reservation: Reservation) -> Job {
    let pod = |index| HeldPod { index, node: "n000".into(), ..HeldPod::default() };
    Job { granted: vec![4], pods: (0..4).map(pod).collect(), reservation, ..job(name, "", 0, (4, 4, 4)) }
}

// SEMANTICS: J6
#[test]
fn a_job_without_a_queue_holds_no_room_while_it_waits_for_its_data() {
    let alone = || World::new(vec![queue("vision", "", quota(8, None, None))], 1, 4);
    let is_on = |world: &World, name: &str| matches!(world.verdict(name), Verdict::Run(_));
    for (other, queue) in [("queued", "vision"), ("free", "")] {
        let mut world = alone();
        world.submit(planned("cold", Reservation::Released));
        world.step();
        assert!(is_on(&world, "cold"), "nobody else needs the room");
        world.submit(job(other, queue, 0, (4, 4, 4)));
        world.step();
        assert!(matches!(world.verdict(other), Verdict::Start { .. }), "{other}: {:?}", world.verdict(other));
        let Verdict::Stop { why } = world.verdict("cold") else { panic!("{other}: {:?}", world.verdict("cold")) };
        assert!(why.contains("a job without a queue reserves none"), "{why}");
    }
    // Several may wait for data on the same nodes. The first that is warm takes them.
    let mut world = alone();
    for name in ["one", "two"] {
        world.submit(planned(name, Reservation::Released));
    }
    world.step();
    assert!(is_on(&world, "one") && is_on(&world, "two"));
    world.jobs[1].reservation = Reservation::Due;
    world.submit(job("free", "", 0, (4, 4, 4)));
    world.step();
    assert!(is_on(&world, "two") && matches!(world.verdict("one"), Verdict::Stop { .. }));
    assert!(matches!(world.verdict("free"), Verdict::Wait(_)));
    // A job of a queue comes before one that is warm.
    world.jobs[0].reservation = Reservation::Held;
    world.submit(job("queued", "vision", 0, (4, 4, 4)));
    world.step();
    assert!(matches!(world.verdict("queued"), Verdict::Start { .. }));
    assert!(matches!(world.verdict("two"), Verdict::Stop { .. }));
}

#[test]
fn a_job_without_a_queue_does_not_wait_for_data_on_a_node_that_has_failed() {
    let mut world = World::new(Vec::new(), 1, 4);
    world.submit(planned("cold", Reservation::Released));
    world.nodes[0].ready = false;
    world.step();
    assert!(matches!(world.verdict("cold"), Verdict::Stop { .. }), "{:?}", world.verdict("cold"));
}
