//! A simulated cluster of GPU nodes, where pods are bound as soon as their job starts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::*;
use crate::jobs::plan::NodeRoom;
use crate::jobs::planned::{Plan, RefusedBy};
use crate::objects::Node;
use crate::time::Seconds;
use larder_kube::pod::amounts::Amounts;

mod events;
mod examples;
mod flavors;
mod many;
mod seed_003;
mod trees;

const GPU: &str = "nvidia.com/gpu";

/// The flavors of every other node.
const FLAVORS: [&str; 2] = ["h100", "a100"];

pub(super) struct World {
    pub(super) queues: Vec<Queue>,
    pub(super) jobs: Vec<Job>,
    pub(super) leftover: Vec<LeftoverPod>,
    nodes: Vec<Node>,
    gpus: u64,
    /// Pods of others with one GPU each that wait for room. They take it as soon as pods end.
    pub(super) foreign: usize,
    /// The roles of jobs on each of their flavors.
    choices: BTreeMap<Key, Vec<Vec<Role>>>,
    /// How often in a row jobs were preempted for a job in vain.
    in_vain: BTreeMap<Key, u32>,
    pub(super) now: Seconds,
    pub(super) last: BTreeMap<Key, Verdict>,
}

pub(super) fn quota(nominal: u64, borrow: Option<u64>, lend: Option<u64>) -> Quota {
    Quota { nominal, borrow, lend }
}

pub(super) fn queue(name: &str, cohort: &str, quota: Quota) -> Queue {
    Queue {
        name: name.into(),
        cohort: cohort.into(),
        quotas: [(GPU.to_owned(), quota)].into(),
        weight: 1,
        ..Queue::default()
    }
}

/// A job whose workers have one GPU each.
pub(super) fn job(name: &str, queue: &str, priority: i32, (min, wanted, max): (u32, u32, u32)) -> Job {
    let role =
        Role { name: "worker".into(), requests: [(GPU, 1)].into_iter().collect(), min, wanted, max, ..Role::default() };
    Job { key: Key::new("team", name), queue: queue.into(), priority, roles: vec![role], ..Job::default() }
}

/// A job that runs on one of these flavors, the first one rather.
pub(super) fn flavored(mut job: Job, flavors: &[&str]) -> Job {
    let on = |flavor: &&str| {
        let mut roles = job.roles.clone();
        for role in &mut roles {
            role.flavor = (*flavor).to_owned();
            role.places.labels.insert("gpu".into(), (*flavor).to_owned());
        }
        roles
    };
    let mut choices: Vec<Vec<Role>> = flavors.iter().map(on).collect();
    job.roles = choices.remove(0);
    job.fallbacks = choices;
    job
}

impl World {
    pub(super) fn new(queues: Vec<Queue>, nodes: usize, gpus: u64) -> Self {
        let node = |at: usize| {
            let mut node = Node { ready: true, ..Node::default() };
            node.meta.key = Key::cluster(&format!("n{at:03}"));
            node.labels.insert("gpu".into(), FLAVORS[at % 2].into());
            node
        };
        let nodes = (0..nodes).map(node).collect();
        Self {
            queues,
            jobs: Vec::new(),
            leftover: Vec::new(),
            nodes,
            gpus,
            foreign: 0,
            choices: BTreeMap::new(),
            in_vain: BTreeMap::new(),
            now: Seconds(1_000_000),
            last: BTreeMap::new(),
        }
    }

    pub(super) fn submit(&mut self, job: Job) {
        let choices = std::iter::once(&job.roles).chain(&job.fallbacks).cloned().collect();
        self.choices.insert(job.key.clone(), choices);
        self.jobs.push(Job { created: self.now, ..job });
    }

    fn rooms(&self) -> Vec<NodeRoom<'_>> {
        let used = |name: &str| -> u64 {
            let gpus = |job: &Job| -> u64 {
                let here = job.pods.iter().filter(|pod| pod.bound && pod.node == name);
                here.map(|pod| job.roles[pod.role].requests.get(GPU)).sum()
            };
            let left = self.leftover.iter().filter(|pod| pod.node == name).map(|pod| pod.requests.get(GPU));
            self.jobs.iter().map(gpus).chain(left).sum()
        };
        let room = |node: &'_ Node| -> Amounts { [(GPU, used(&node.meta.key.name))].into_iter().collect() };
        self.nodes
            .iter()
            .map(|node| NodeRoom {
                node,
                allocatable: Cow::Owned([(GPU, self.gpus)].into_iter().collect()),
                used: Cow::Owned(room(node)),
                held: BTreeMap::new(),
            })
            .collect()
    }

    /// Makes a decision and applies it, except growth and the end of pods.
    pub(super) fn step(&mut self) {
        let rooms = self.rooms();
        self.last = decide(&self.queues, &self.jobs, &self.leftover, &mut Cluster::new(&rooms), self.now);
        for job in &mut self.jobs {
            match &self.last[&job.key] {
                Verdict::Start { granted, nodes, flavors } => {
                    if let [_, fallbacks @ ..] = &self.choices[&job.key][..]
                        && let Some(roles) = fallbacks.iter().find(|roles| are_on(roles, flavors))
                    {
                        job.roles.clone_from(roles);
                    }
                    job.fallbacks.clear();
                    job.granted.clone_from(granted);
                    (job.claims, job.head_since, job.preempts_after) = (false, None, None);
                    self.in_vain.remove(&job.key);
                    job.awaits_nodes = nodes.is_empty();
                    for (role, nodes) in nodes.iter().enumerate() {
                        job.pods.extend((0..).zip(nodes).map(|(index, node)| HeldPod {
                            role,
                            index,
                            node: node.clone(),
                            bound: true,
                            flavor: flavors[role].clone(),
                            ..HeldPod::default()
                        }));
                    }
                }
                Verdict::Run(running) => keep(job, &running.granted),
                Verdict::Stop { .. } => {
                    keep(job, &vec![0; job.roles.len()]);
                    job.granted.clear();
                    if let [first, fallbacks @ ..] = &self.choices[&job.key][..]
                        && !fallbacks.is_empty()
                    {
                        (job.roles, job.fallbacks) = (first.clone(), fallbacks.to_vec());
                    }
                }
                Verdict::Wait(waiting) => {
                    if waiting.in_vain {
                        let in_vain = self.in_vain.entry(job.key.clone()).or_default();
                        *in_vain += 1;
                        job.preempts_after = Some(self.now + pause_after(*in_vain));
                    }
                    job.claims = waiting.claims;
                    job.claimed.clone_from(&waiting.flavors);
                    (job.is_passed_over, job.lacks_nodes) = (waiting.is_passed_over, waiting.lacks_nodes());
                    job.head_since = waiting.is_head.then(|| job.head_since.unwrap_or(self.now));
                }
            }
        }
    }

    /// Loses a node with its pods, which then need new nodes.
    pub(super) fn lose(&mut self, node: &str) {
        self.nodes.iter_mut().filter(|there| there.meta.key.name == node).for_each(|there| there.ready = false);
        for job in &mut self.jobs {
            let mut lost = vec![Vec::new(); job.roles.len()];
            for pod in job.pods.extract_if(.., |pod| pod.node == node && !pod.leaving) {
                lost[pod.role].push(pod.index);
            }
            job.unplaced = lost;
        }
    }

    /// Deletes the terminating pods.
    pub(super) fn pods_end(&mut self) {
        for job in &mut self.jobs {
            job.pods.retain(|pod| !pod.leaving);
        }
        self.others_take_room();
    }

    /// The scheduler gives the free room to the pods of others that wait.
    pub(super) fn others_take_room(&mut self) {
        let free = |room: &NodeRoom<'_>| self.gpus.saturating_sub(room.used.get(GPU)) as usize;
        let rooms: Vec<(String, usize)> =
            self.rooms().iter().map(|room| (room.node.meta.key.name.clone(), free(room))).collect();
        for (node, free) in rooms {
            let taken = free.min(self.foreign);
            self.foreign -= taken;
            let requests: Amounts = [(GPU, 1)].into_iter().collect();
            let pod = LeftoverPod { requests, node, stays: true, ..LeftoverPod::default() };
            self.leftover.extend(std::iter::repeat_n(pod, taken));
        }
    }

    /// A job accepts the room that the last decision offers, as far as pods of others have not taken it.
    pub(super) fn grow(&mut self, name: &str) {
        let at = self.jobs.iter().position(|job| job.key.name == name).unwrap();
        let Some(Verdict::Run(running)) = self.last.get(&self.jobs[at].key).cloned() else { return };
        for (role, most) in running.may_grow_to.iter().enumerate() {
            for index in self.jobs[at].granted(role)..*most {
                let (rooms, of_job) = (self.rooms(), &self.jobs[at].roles[role]);
                let free = |room: &&NodeRoom<'_>| room.used.get(GPU) < self.gpus && of_job.places.allow(room.node);
                let Some(room) = rooms.iter().find(free) else { return };
                let node = room.node.meta.key.name.clone();
                let flavor = self.jobs[at].roles[role].flavor.clone();
                self.jobs[at].pods.push(HeldPod { role, index, node, bound: true, flavor, ..HeldPod::default() });
                self.jobs[at].granted[role] = index + 1;
            }
        }
    }

    pub(super) fn end(&mut self, name: &str) {
        self.jobs.retain(|job| job.key.name != name);
    }

    pub(super) fn job(&self, name: &str) -> &Job {
        self.jobs.iter().find(|job| job.key.name == name).unwrap()
    }

    pub(super) fn verdict(&self, name: &str) -> &Verdict {
        &self.last[&Key::new("team", name)]
    }

    pub(super) fn waiting(&self, name: &str) -> &Waiting {
        match self.verdict(name) {
            Verdict::Wait(waiting) => waiting,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// The workers of a job that are not terminating.
    pub(super) fn workers(&self, name: &str) -> Vec<u32> {
        let mut workers: Vec<u32> =
            self.job(name).pods.iter().filter(|pod| !pod.leaving).map(|pod| pod.index).collect();
        workers.sort_unstable();
        workers
    }

    /// The GPUs that the pods of a queue use, including terminating pods.
    pub(super) fn used(&self, queue: &str) -> u64 {
        self.jobs.iter().filter(|job| job.queue == queue).map(|job| job.pods.len() as u64).sum()
    }
}

fn are_on(roles: &[Role], flavors: &[String]) -> bool {
    roles.iter().map(|role| &role.flavor).eq(flavors)
}

fn keep(job: &mut Job, granted: &[u32]) {
    for pod in &mut job.pods {
        pod.leaving |= pod.index >= granted[pod.role];
    }
    job.granted = granted.to_vec();
}
