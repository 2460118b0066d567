//! One round: a look at all jobs, which decides what has become of each, which start, which give way, and what is written.
//!
//! The phases of a job in a round are the types of `turn`. The queues decide once for all jobs, from what the jobs
//! took of the decisions before, written or not; room that the queues hold for a job is given to no pod that has lost its node.
//! Kueue's verdicts come after that: nodes for its jobs are found in the room that is left. A job whose writes are under way
//! counts with all that it has, and makes no step until they end.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::{Phase, QueueStatus};

use crate::jobs::cluster_view::ClusterView;
use crate::jobs::dry_run::DryRuns;
use crate::jobs::job_state::JobState;
use crate::jobs::leftover_pods::{self, Accounting};
use crate::jobs::plan::Cluster;
use crate::jobs::queue::{self, Job, LeftoverPod, Queue};
use crate::jobs::queues;
use crate::jobs::turn::Checked;
use crate::jobs::turn::decide::{Decided, Placed, Ruled, Stepped};
use crate::time::{Earliest, Seconds};
use crate::warm_request::WarmRequest;
use crate::write::Write;
use larder_kube::key::Key;

/// The results of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// Writes by job.
    pub writes: Vec<(Key, Vec<Write>)>,
    /// The hashes of pod specs that the API server is to be asked about.
    pub dry_runs: Vec<String>,
    /// The data that jobs request, by dataset.
    pub warm_requests: BTreeMap<Key, Vec<WarmRequest>>,
    /// The status of each queue.
    pub queues: BTreeMap<String, QueueStatus>,
    /// When time alone may change something.
    pub again_at: Option<Seconds>,
}

/// Looks at all jobs. `draw` makes the key of a launcher.
pub fn round(
    view: &ClusterView<'_>,
    job_states: &mut BTreeMap<Key, JobState>,
    dry_runs: &mut DryRuns,
    draw: &dyn Fn() -> String,
) -> Round {
    let mut round = Round::default();
    let mut again = Earliest::default();
    remember(view, job_states);
    forget(dry_runs, job_states);
    let unmade = leftover_pods::unmade(view, job_states);

    let checked = check(view, job_states, dry_runs, &mut round.dry_runs, &mut again);
    let stepped: Vec<Stepped<'_>> = checked.into_iter().map(|job| job.step(view)).collect();

    let datasets: BTreeSet<Key> = stepped.iter().flat_map(|stepped| stepped.job.datasets()).collect();
    let rooms = view.rooms(&datasets.into_iter().collect::<Vec<_>>());
    let mut free = Cluster::new(&rooms);
    for stepped in stepped.iter().filter(|stepped| stepped.job.kueue_queue().is_some()) {
        stepped.job.take_room(view, &mut free);
    }

    let all: Vec<Queue> = view.jobs.queues.iter().filter_map(queues::queue).collect();
    let (jobs, leftover) = counted(view, stepped.iter().map(|stepped| &stepped.job), &unmade, &mut again);
    let mut verdicts = queue::decide(&all, &jobs, &leftover, &mut free, view.now);
    let ruled: Vec<Ruled<'_>> = stepped
        .into_iter()
        .map(|stepped| {
            let verdict = verdicts.remove(stepped.job.key);
            stepped.rule(view, verdict)
        })
        .collect();
    // Lost pods of all jobs come before starts of any job of Kueue: both take nodes from what is free.
    let placed: Vec<Placed<'_>> = ruled.into_iter().map(|job| job.place(view, &mut free)).collect();
    let decided: Vec<Decided<'_>> = placed.into_iter().map(|job| job.ask_kueue(view, &mut free)).collect();

    let (jobs, leftover) = counted(view, decided.iter().map(|decided| &decided.job), &unmade, &mut again);
    for queue in &all {
        if let Some(object) = view.jobs.queues.get(&Key::cluster(&queue.name)) {
            round.queues.insert(queue.name.clone(), queues::status(object, queue, &jobs, &leftover));
        }
    }
    let waiting = decided.iter().filter(|decided| decided.job.phase() == Phase::Queued).count();
    for job in decided {
        job.request_data(&mut round.warm_requests);
        let written = job.write(view, waiting, draw);
        again.extend(written.again.at());
        if !written.writes.is_empty() {
            round.writes.push((written.key, written.writes));
        }
    }
    round.again_at = again.at();
    round
}

/// Begins to remember new jobs, and forgets those that are gone or are run by others once no writes for them are under way.
fn remember(view: &ClusterView<'_>, job_states: &mut BTreeMap<Key, JobState>) {
    let is_under_way =
        |key: &Key, job_state: &JobState| job_state.pending.is_some() && !view.jobs.ready.contains_key(key);
    job_states.retain(|key, job_state| view.has(key, &job_state.uid) || is_under_way(key, job_state));
    for object in view.jobs.jobs.iter().filter(|object| object.is_ours()) {
        let key = &object.meta.key;
        if !job_states.contains_key(key) {
            job_states.insert(key.clone(), JobState::new(object));
        }
    }
}

/// Forgets the dry runs of jobs that are gone. While there are no more answers than jobs, answers about pods of no job are kept:
/// another job with such pods may come.
fn forget(dry_runs: &mut DryRuns, job_states: &BTreeMap<Key, JobState>) {
    dry_runs.retain(|_, dry_run| dry_run.asker().is_none_or(|job| job_states.contains_key(job)));
    if dry_runs.len() > job_states.len() {
        let profiles = job_states.values().filter_map(|job_state| job_state.profile.as_ref());
        let needed: BTreeSet<&str> = profiles.map(|profile| profile.spec_hash.as_str()).collect();
        dry_runs.retain(|spec_hash, _| needed.contains(spec_hash.as_str()));
    }
}

/// Checks all jobs but those that are gone or asleep.
fn check<'a>(
    view: &ClusterView<'a>,
    job_states: &'a mut BTreeMap<Key, JobState>,
    dry_runs: &mut DryRuns,
    asked: &mut Vec<String>,
    again: &mut Earliest,
) -> Vec<Checked<'a>> {
    let mut checked = Vec::new();
    for (key, job_state) in job_states {
        let Some(object) = view.jobs.jobs.get(key).filter(|_| view.has(key, &job_state.uid)) else { continue };
        if view.now < job_state.sleeps_until {
            again.note(job_state.sleeps_until);
            continue;
        }
        checked.push(Checked::new(view, key, object, job_state, dry_runs, asked));
    }
    checked
}

/// The jobs that count in queues, and the pods that other jobs have left behind.
fn counted<'a, 'b: 'a>(
    view: &ClusterView<'_>,
    turns: impl Iterator<Item = &'a Checked<'b>>,
    unmade: &BTreeMap<String, LeftoverPod>,
    again: &mut Earliest,
) -> (Vec<Job>, Vec<LeftoverPod>) {
    let mut jobs = Vec::new();
    let mut by_uid: BTreeMap<&str, Accounting<'_>> =
        unmade.keys().map(|uid| (uid.as_str(), Accounting::Counted)).collect();
    for turn in turns {
        let job = turn.queue_job(view);
        let accounting =
            if job.is_some() { Accounting::Counted } else { Accounting::Uncounted(turn.phase(), turn.roles()) };
        by_uid.insert(&turn.job_state.uid, accounting);
        jobs.extend(job);
    }
    let mut leftover = leftover_pods::pods(view, &by_uid, again);
    leftover.extend(unmade.values().cloned());
    (jobs, leftover)
}
