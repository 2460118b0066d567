//! No order of events lets a queue exceed its limits.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// A job in a queue, or in none if there is no queue of this number, with its priority, its minimum of workers, and
    /// how many more it requests and may have.
    Submit(usize, i32, u32, u32, u32),
    Decide,
    /// The terminating pods of a job are deleted.
    PodsEnd(usize),
    /// A job accepts the room that it is offered.
    Grow(usize),
    /// Pods of others wait for room, and take it as soon as pods end.
    Others(usize),
    /// A job ends.
    End(usize),
    Wait(i64),
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..4_usize, 0..3_i32, 1..7_u32, 0..4_u32, 0..4_u32)
            .prop_map(|(queue, priority, min, more, most)| Event::Submit(queue, priority, min, more, most)),
        6 => Just(Event::Decide),
        3 => (0..8_usize).prop_map(Event::PodsEnd),
        2 => (0..8_usize).prop_map(Event::Grow),
        2 => (0..8_usize).prop_map(Event::End),
        1 => (1..4_usize).prop_map(Event::Others),
        1 => (0..4_000_i64).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 1..60)
}

/// Nominal quota, borrowing limit, lending limit, whether it is in the cohort, and weight.
type Made = (u64, Option<u64>, Option<u64>, bool, u32);

fn any_queues() -> impl Strategy<Value = Vec<Queue>> {
    let most = || prop::option::of(0..6_u64);
    let one = (0..9_u64, most(), most(), any::<bool>(), 1..4_u32);
    prop::collection::vec(one, 3).prop_map(|queues| {
        let queue = |(at, (nominal, borrow, lend, joins, weight)): (usize, Made)| {
            let cohort = if joins { "all" } else { "" };
            Queue { weight, ..queue(&format!("q{at}"), cohort, quota(nominal, borrow, lend)) }
        };
        queues.into_iter().enumerate().map(queue).collect()
    })
}

impl World {
    fn name(&self, at: usize) -> Option<String> {
        let at = at.checked_rem(self.jobs.len())?;
        Some(self.jobs[at].key.name.clone())
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Submit(queue, priority, min, more, most) => {
                let name = format!("j{}", self.now.0);
                let queue = self.queues.get(*queue).map_or(String::new(), |queue| queue.name.clone());
                self.submit(job(&name, &queue, *priority, (*min, min + more, min + more + most)));
                self.last.clear();
            }
            Event::Decide => self.step(),
            Event::PodsEnd(at) => {
                if let Some(job) = at.checked_rem(self.jobs.len()) {
                    self.jobs[job].pods.retain(|pod| !pod.leaving);
                    self.others_take_room();
                }
            }
            Event::Grow(at) => {
                if let Some(name) = self.name(*at) {
                    self.grow(&name);
                    self.last.remove(&Key::new("team", &name));
                }
            }
            Event::End(at) => {
                if let Some(name) = self.name(*at) {
                    self.end(&name);
                }
            }
            Event::Others(pods) => self.foreign += pods,
            Event::Wait(seconds) => self.now += *seconds,
        }
        self.now += 1;
    }

    /// Counts the pods themselves, including terminating ones, instead of trusting the decisions.
    fn check(&self) {
        let (mut lent, mut taken) = (0, 0);
        for queue in &self.queues {
            let (used, quota) = (self.used(&queue.name), queue.quotas[GPU]);
            if queue.cohort.is_empty() {
                assert!(used <= quota.nominal, "{} uses {used}", queue.name);
                continue;
            }
            assert!(
                used <= quota.nominal.saturating_add(quota.borrow.unwrap_or(u64::MAX)),
                "{} uses {used}",
                queue.name
            );
            let own = quota.nominal - quota.lend.unwrap_or(u64::MAX).min(quota.nominal);
            lent += quota.nominal - own;
            taken += used.saturating_sub(own);
        }
        assert!(taken <= lent, "{taken} of {lent} that are lent");
        for room in self.rooms() {
            assert!(room.used.get(GPU) <= self.gpus, "{} is full", room.node.meta.key.name);
        }
        for job in self.jobs.iter().filter(|job| job.is_admitted()) {
            let workers = self.workers(&job.key.name);
            assert_eq!(workers, (0..job.granted[0]).collect::<Vec<_>>(), "the highest indexes end");
            assert!(workers.len() as u32 >= job.roles[0].min && !workers.is_empty());
        }
    }

    /// Jobs in queues that have a reservation have room once the terminating pods are gone, if pods of others do not
    /// take it. Jobs without a queue may lose it to those in queues.
    fn check_claims(&self) {
        let mut after = Self {
            jobs: self.jobs.clone(),
            leftover: self.leftover.clone(),
            queues: self.queues.clone(),
            nodes: self.nodes.clone(),
            last: BTreeMap::new(),
            in_vain: BTreeMap::new(),
            foreign: 0,
            ..*self
        };
        after.pods_end();
        after.step();
        for job in self.jobs.iter().filter(|job| job.claims && job.is_queued()) {
            assert!(matches!(after.last[&job.key], Verdict::Start { .. }), "{}: {:?}", job.key, after.last[&job.key]);
        }
    }
}

#[test]
fn the_ending_pods_of_a_job_that_starts_again_count_beside_its_new_ones() {
    let mut world = World::new(vec![queue("q0", "", quota(9, None, None))], 5, 2);
    world.submit(job("again", "q0", 0, (4, 4, 4)));
    world.submit(job("other", "q0", 0, (1, 1, 1)));
    world.step();
    world.queues[0].stop = Stop::Drain;
    world.step();
    world.queues[0].stop = Stop::No;
    world.step();
    assert_eq!((world.workers("again").len(), world.used("q0")), (4, 9));
    assert!(matches!(world.verdict("other"), Verdict::Wait(_)));
    world.step();
    world.check();
}

proptest! {
    // SEMANTICS: J3
    #[test]
    fn no_order_of_events_lets_a_queue_exceed_its_quota(queues in any_queues(), events in any_events(), gpus in 1..5_u64) {
        let mut world = World::new(queues, 5, gpus);
        for event in &events {
            world.apply(event);
            world.check();
            if matches!(event, Event::Decide) {
                world.check_claims();
            }
        }
    }

    #[test]
    fn the_order_of_jobs_and_queues_does_not_matter(queues in any_queues(), events in any_events()) {
        let mut world = World::new(queues, 5, 3);
        for event in &events {
            world.apply(event);
        }
        let rooms = world.rooms();
        let cluster = Cluster::new(&rooms);
        let once = decide(&world.queues, &world.jobs, &[], &mut cluster.clone(), world.now);
        let (mut queues, mut jobs) = (world.queues.clone(), world.jobs.clone());
        queues.reverse();
        jobs.reverse();
        prop_assert_eq!(decide(&queues, &jobs, &[], &mut cluster.clone(), world.now), once);
    }

    // SEMANTICS: J3
    #[test]
    fn lowered_quotas_are_kept_once_pods_have_ended(before in any_queues(), after in any_queues(), events in any_events()) {
        let mut world = World::new(before, 5, 3);
        for event in &events {
            world.apply(event);
        }
        world.queues = after;
        world.step();
        world.pods_end();
        world.step();
        world.pods_end();
        world.check();
    }
}
