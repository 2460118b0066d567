//! One look at all jobs: what has become of each, which start and which give way, and what is to be written.
//!
//! For each job, the state machine makes a step with what is observed, and one with the queues' verdict. The queues decide once for
//! all jobs, from what the jobs took of the decisions before, written or not; room that they hold for a job is not given to pods
//! that have lost their nodes either. Jobs in Kueue's queues come after them: for Kueue's verdict, nodes are found in the room that
//! is left. Jobs whose writes are under way are part of that, and make no step until the writes end.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::{Phase, QueueStatus};

use crate::jobs::cluster_view::Scene;
use crate::jobs::dry_run::Trials;
use crate::jobs::job_state::Memory;
use crate::jobs::leftover_pods::{self, Standing};
use crate::jobs::machine::Observed;
use crate::jobs::plan::{self, Cluster};
use crate::jobs::planned::{Plan, PlannedPod};
use crate::jobs::pod_group::choice::Planner;
use crate::jobs::queue::{self, Job, LeftPod, Queue};
use crate::jobs::queues;
use crate::jobs::turn::{Actor, again};
use crate::kueue::wish::Wish;
use crate::write::Write;
use larder_kube::key::Key;

/// The results of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// Writes by job.
    pub writes: Vec<(Key, Vec<Write>)>,
    /// The likenesses of the pods that the API server is to be asked about.
    pub tries: Vec<String>,
    /// What jobs wish, by dataset.
    pub wishes: BTreeMap<Key, Vec<Wish>>,
    /// The status of each queue.
    pub queues: BTreeMap<String, QueueStatus>,
    /// When time alone may change something.
    pub again_at: Option<i64>,
}

/// Looks at all jobs. `draw` makes the key of a launcher.
pub fn round(
    scene: &Scene<'_>,
    memories: &mut BTreeMap<Key, Memory>,
    trials: &mut Trials,
    draw: &dyn Fn() -> String,
) -> Round {
    let mut round = Round::default();
    remember(scene, memories);
    forget(trials, memories);
    let unmade = leftover_pods::unmade(scene, memories);
    let mut actors: Vec<Actor<'_>> =
        memories.iter_mut().filter_map(|(key, memory)| enter(scene, key, memory, trials, &mut round)).collect();
    for actor in &mut actors {
        actor.step(scene);
    }
    let named: BTreeSet<Key> = actors.iter().flat_map(Actor::datasets).collect();
    let rooms = scene.rooms(&named.into_iter().collect::<Vec<_>>());
    let mut cluster = Cluster::new(&rooms);
    for actor in actors.iter().filter(|actor| actor.kueue_queue().is_some()) {
        actor.take_room(scene, &mut cluster);
    }
    let all: Vec<Queue> = scene.jobs.queues.iter().filter_map(queues::queue).collect();
    let (facts, left) = counted(scene, &actors, &unmade, &mut round);
    let mut verdicts = queue::decide(&all, &facts, &left, &mut cluster, scene.now);
    for actor in &mut actors {
        if let Some(verdict) = verdicts.remove(actor.key) {
            actor.hear(scene, verdict);
        }
    }
    replan(scene, &mut actors, &mut cluster);
    for actor in &mut actors {
        actor.hear_kueue(scene, &mut cluster);
    }
    let (facts, left) = counted(scene, &actors, &unmade, &mut round);
    for queue in &all {
        if let Some(object) = scene.jobs.queues.get(&Key::cluster(&queue.name)) {
            round.queues.insert(queue.name.clone(), queues::status(object, queue, &facts, &left));
        }
    }
    let waiting = actors.iter().filter(|actor| actor.phase() == Phase::Queued).count();
    for actor in actors {
        actor.wish(&mut round.wishes);
        let key = actor.key;
        let writes = actor.write(scene, waiting, draw, &mut round.again_at);
        if !writes.is_empty() {
            round.writes.push((key.clone(), writes));
        }
    }
    round
}

/// The jobs that count, and the pods that others have left behind.
fn counted(
    scene: &Scene<'_>,
    actors: &[Actor<'_>],
    unmade: &BTreeMap<String, LeftPod>,
    round: &mut Round,
) -> (Vec<Job>, Vec<LeftPod>) {
    let mut jobs = Vec::new();
    let mut standings: BTreeMap<&str, Standing<'_>> =
        unmade.keys().map(|uid| (uid.as_str(), Standing::Counted)).collect();
    for actor in actors {
        let facts = actor.facts(scene);
        let roles = actor.memory.profile.as_ref().map_or(&[][..], |profile| &profile.roles);
        let standing = if facts.is_some() { Standing::Counted } else { Standing::In(actor.phase(), roles) };
        standings.insert(&actor.memory.uid, standing);
        jobs.extend(facts);
    }
    let mut left = leftover_pods::pods(scene, &standings, |at| again(&mut round.again_at, at));
    left.extend(unmade.values().cloned());
    (jobs, left)
}

/// Begins to remember new jobs, and forgets those that are gone or are run by others once no writes for them are under way.
fn remember(scene: &Scene<'_>, memories: &mut BTreeMap<Key, Memory>) {
    let is_under_way = |key: &Key, memory: &Memory| memory.pending.is_some() && !scene.jobs.ready.contains_key(key);
    memories.retain(|key, memory| scene.has(key, &memory.uid) || is_under_way(key, memory));
    for object in scene.jobs.jobs.iter().filter(|object| object.is_ours()) {
        let key = &object.meta.key;
        if !memories.contains_key(key) {
            memories.insert(key.clone(), Memory::new(object));
        }
    }
}

/// Finds out what a job is, and whether it can run.
fn enter<'a>(
    scene: &Scene<'a>,
    key: &'a Key,
    memory: &'a mut Memory,
    trials: &mut Trials,
    round: &mut Round,
) -> Option<Actor<'a>> {
    let object = scene.jobs.jobs.get(key).filter(|_| scene.has(key, &memory.uid))?;
    if scene.now < memory.sleeps_until {
        again(&mut round.again_at, memory.sleeps_until);
        return None;
    }
    let is_idle = memory.is_idle();
    let mut actor = Actor {
        key,
        object,
        memory,
        job: None,
        kind: None,
        refusal: None,
        is_tried: true,
        shortage: None,
        pods: Vec::new(),
        observed: Observed::default(),
        actions: Vec::new(),
        verdict: None,
        is_idle,
        planner: Planner::default(),
        places: None,
        for_kueue: Vec::new(),
    };
    if let Err(refusal) = actor.check(scene, trials, &mut round.tries) {
        // It waits for nothing but that.
        actor.memory.waiting = None;
        actor.refusal = Some(refusal);
    }
    Some(actor)
}

/// Finds nodes for the pods of jobs that have lost theirs, where the queues do not: for jobs of Kueue's, in the room that is left,
/// and where the scheduler chooses.
fn replan(scene: &Scene<'_>, actors: &mut [Actor<'_>], free: &mut Cluster<'_>) {
    for actor in actors.iter_mut().filter(|actor| actor.kueue_queue().is_some() || !actor.is_planned()) {
        let pods = actor.unplaced(scene);
        if pods.iter().all(Vec::is_empty) {
            continue;
        }
        if !actor.is_planned() {
            let nowhere = |role: usize| move |index: &u32| PlannedPod { role, index: *index, node: None };
            let planned = pods.iter().enumerate().flat_map(|(role, pods)| pods.iter().map(nowhere(role)));
            actor.observed.plan = Some(Plan::Nodes(planned.collect()));
            actor.step(scene);
            continue;
        }
        let Some(gang) = actor.gang(scene, free, &pods) else { continue };
        actor.observed.plan = Some(match plan::place(free, &gang) {
            Ok(placement) => {
                let mut planned = Vec::new();
                for (role, (indexes, nodes)) in pods.iter().zip(&placement.roles).enumerate() {
                    for (index, node) in indexes.iter().zip(nodes) {
                        free.take(*node, &gang.roles[role].requests, 1);
                        planned.push(PlannedPod { role, index: *index, node: Some(free.name(*node).to_owned()) });
                    }
                }
                Plan::Nodes(planned)
            }
            Err(shortage) => Plan::None(shortage.to_string()),
        });
        actor.step(scene);
    }
}

/// Forgets what was asked for jobs that are gone. As long as there are no more answers than jobs, those about pods of no job are
/// kept: another one like it may come.
fn forget(trials: &mut Trials, memories: &BTreeMap<Key, Memory>) {
    trials.retain(|_, trial| trial.asker().is_none_or(|job| memories.contains_key(job)));
    if trials.len() > memories.len() {
        let profiles = memories.values().filter_map(|memory| memory.profile.as_ref());
        let needed: BTreeSet<&str> = profiles.map(|profile| profile.likeness.as_str()).collect();
        trials.retain(|likeness, _| needed.contains(likeness.as_str()));
    }
}
