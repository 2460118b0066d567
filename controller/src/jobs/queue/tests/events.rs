//! No order of events lets a queue exceed its limits.

use larder_api::queue::flavor::{on, split};
use larder_api::queue::{Preemption, Preempts};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// A job in a queue, or in none if there is no queue of this number, with its priority, its minimum of workers, how
    /// many more it requests and may have, and how many flavors it may have.
    Submit(usize, i32, u32, u32, u32, usize),
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
        4 => (0..6_usize, 0..3_i32, 1..7_u32, 0..4_u32, 0..4_u32, 0..3_usize).prop_map(
            |(queue, priority, min, more, most, flavors)| Event::Submit(queue, priority, min, more, most, flavors)
        ),
        6 => Just(Event::Decide),
        3 => (0..8_usize).prop_map(Event::PodsEnd),
        2 => (0..8_usize).prop_map(Event::Grow),
        2 => (0..8_usize).prop_map(Event::End),
        1 => (1..4_usize).prop_map(Event::Others),
        1 => (0..4_000_i64).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 1..60)
}

/// Nominal quota, borrowing limit, lending limit, where it is, weight, the jobs that its jobs preempt, and the nominal
/// quota of a flavor if that is limited.
type Made = (u64, Option<u64>, Option<u64>, usize, u32, Preemption, Option<u64>);

fn any_preemption() -> impl Strategy<Value = Preemption> {
    let any_of = |all: &'static [Preempts]| prop::sample::select(all);
    let lower = || any_of(&[Preempts::Never, Preempts::LowerPriority]);
    let all = any_of(&[Preempts::Never, Preempts::LowerPriority, Preempts::Any]);
    let made = |(within_queue, reclaim, while_borrowing)| Preemption { within_queue, reclaim, while_borrowing };
    (lower(), all, lower()).prop_map(made)
}

/// Five queues, each alone, in the cohort, or below one of the queues before it.
fn any_queues() -> impl Strategy<Value = Vec<Queue>> {
    let most = || prop::option::of(0..6_u64);
    let of_flavor = prop::option::of(0..9_u64);
    let one = (0..9_u64, most(), most(), 0..6_usize, 1..4_u32, any_preemption(), of_flavor);
    prop::collection::vec(one, 5).prop_map(|queues| {
        let queue = |(at, (nominal, borrow, lend, place, weight, preemption, of_flavor)): (usize, Made)| {
            let cohort = if place == 1 { "all" } else { "" };
            let parent = place.checked_sub(2).filter(|above| *above < at).map_or(String::new(), |at| format!("q{at}"));
            let mut queue = queue(&format!("q{at}"), cohort, quota(nominal, borrow, lend));
            queue.quotas.extend(of_flavor.map(|nominal| (on(GPU, FLAVORS[0]), quota(nominal, borrow, lend))));
            Queue { weight, parent, preemption, ..queue }
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
            Event::Submit(queue, priority, min, more, most, flavors) => {
                let name = format!("j{}", self.now.0);
                let queue = self.queues.get(*queue).map_or(String::new(), |queue| queue.name.clone());
                let job = job(&name, &queue, *priority, (*min, min + more, min + more + most));
                let is_flavored = *flavors > 0 && !queue.is_empty();
                self.submit(if is_flavored { flavored(job, &FLAVORS[..*flavors]) } else { job });
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

    /// The pods of a queue that count against a quota, including terminating ones: the pods themselves count, and not
    /// the decisions.
    fn counted(&self, queue: &str, name: &str) -> u64 {
        let flavor = split(name).1;
        let of_queue = self.jobs.iter().filter(|job| job.queue == queue).flat_map(|job| &job.pods);
        of_queue.filter(|pod| flavor.is_none_or(|flavor| pod.flavor == flavor)).count() as u64
    }

    /// The usage and the capacity of the group of a queue.
    fn shared(&self, queue: &Queue, name: &str) -> (u64, u64) {
        let own = queue.quotas.get(name);
        let (mut used, mut capacity) = own.map_or((0, 0), |own| (self.counted(&queue.name, name), own.nominal));
        for below in self.queues.iter().filter(|below| below.parent == queue.name) {
            let (passed, lent) = self.passed(below, name);
            used += passed;
            capacity += lent;
        }
        (used, capacity)
    }

    /// The parts of the usage and of the capacity of a group that count above it.
    fn passed(&self, queue: &Queue, name: &str) -> (u64, u64) {
        let (used, capacity) = self.shared(queue, name);
        let limits = queue.quotas.get(name).copied().unwrap_or(quota(0, None, None));
        let most = capacity.saturating_add(limits.borrow.unwrap_or(u64::MAX));
        assert!(used <= most, "{} uses {used} of {most} {name}", queue.name);
        let lent = limits.lend.unwrap_or(u64::MAX).min(capacity);
        (used.saturating_sub(capacity - lent), lent)
    }

    fn check(&self) {
        for name in [GPU.to_owned(), on(GPU, FLAVORS[0])] {
            let (mut taken, mut lent) = (0, 0);
            for queue in self.queues.iter().filter(|queue| queue.parent.is_empty()) {
                if queue.cohort.is_empty() {
                    let (used, capacity) = self.shared(queue, &name);
                    assert!(used <= capacity, "{} uses {used} of {capacity} {name}", queue.name);
                } else {
                    let (takes, gives) = self.passed(queue, &name);
                    taken += takes;
                    lent += gives;
                }
            }
            assert!(taken <= lent, "{taken} of {lent} {name} that are lent");
        }
        for pod in self.jobs.iter().flat_map(|job| &job.pods).filter(|pod| !pod.flavor.is_empty()) {
            let node = self.nodes.iter().find(|node| node.meta.key.name == pod.node).unwrap();
            assert_eq!(node.labels["gpu"], pod.flavor, "a pod is on a node of its flavor");
        }
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
            choices: self.choices.clone(),
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
            // A job without a flavor may be planned on other nodes by then, which a job with one needs.
            let is_uniform = world.jobs.iter().all(|job| job.roles[0].flavor.is_empty());
            if matches!(event, Event::Decide) && is_uniform {
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
    fn every_job_starts_once_unless_it_never_could(queues in any_queues(), events in any_events(), gpus in 1..5_u64) {
        let mut world = World::new(queues, 5, gpus);
        for event in events.iter().filter(|event| matches!(event, Event::Submit(..))) {
            world.apply(event);
        }
        // All jobs that have room end, so the next has its turn.
        for _ in 0..2 * world.jobs.len() + 2 {
            world.step();
            world.pods_end();
            world.jobs.retain(|job| !job.is_admitted());
            world.now += 31 * 60;
        }
        for job in &world.jobs {
            let waiting = world.waiting(&job.key.name);
            let is_larger = waiting.lacks == Lack::Cluster || waiting.why.contains("can never use more than");
            prop_assert!(is_larger, "{}: {}", job.key, waiting.why);
        }
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
