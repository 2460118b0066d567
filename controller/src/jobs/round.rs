//! One round: decides about all jobs what has happened to each, which start, which are preempted, and what is written.
//!
//! The phases of a job in a round are the types of `turn`. The queues decide once for all jobs, from what the jobs took
//! of earlier decisions, written or not. Room that is reserved for a job in a queue is not given to pods that have lost
//! their nodes. Kueue's verdicts come afterwards: nodes for its jobs are found in the remaining room. A job with writes
//! in flight counts with everything it has, and makes no step until they complete. A job at rest counts as an earlier
//! round has found it, and takes part only if the queues decide anything new about it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use larder_api::Phase;

use crate::jobs::cluster_view::{ClusterView, dataset_key};
use crate::jobs::dry_run::DryRuns;
use crate::jobs::job_state::JobState;
use crate::jobs::leftover_pods::{self, Accounting};
use crate::jobs::plan::Cluster;
use crate::jobs::pod_decisions::Decisions;
use crate::jobs::pod_turns::{self, PodTurns};
use crate::jobs::pod_waits::PodWaits;
use crate::jobs::queue::{self, Job, LeftoverPod, Queue};
use crate::jobs::queued_pods;
use crate::jobs::queues::{self, Report};
use crate::jobs::turn::check::check;
use crate::jobs::turn::decide::{Decided, Placed, Ruled, Stepped};
use crate::jobs::turn::rest::Resting;
use crate::jobs::turn::room::Counted;
use crate::jobs::turn::writes::JobNumbers;
use crate::jobs::turn::{Checked, nodes};
use crate::objects::by_uid;
use crate::time::{Earliest, Seconds};
use crate::warm_request::{Requester, WarmRequest};
use crate::write::Write;
use larder_kube::key::Key;

#[derive(Debug, Default)]
pub struct Round {
    pub writes: Vec<(Key, Vec<Write>)>,
    /// The pod-spec hashes for which a dry run is needed.
    pub dry_runs: Vec<String>,
    /// The warm requests of jobs, by dataset.
    pub warm_requests: BTreeMap<Key, Vec<WarmRequest>>,
    pub queues: BTreeMap<String, Report>,
    /// The decisions about pods of other programs.
    pub pods: Decisions,
    /// The memory of the queues about pods of other programs that wait.
    pub pod_waits: PodWaits,
    /// When the next round is due if nothing changes before.
    pub again_at: Option<Seconds>,
}

/// Decides about all jobs. `draw` generates the key of a launcher.
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
    let mut turns = PodTurns::new(&view.jobs.ready, job_states);
    let unmade = leftover_pods::unmade(view, job_states);
    let fences = view.jobs.jobs.iter().filter_map(|object| view.runs_until(object));
    again.extend(fences.filter(|until| *until > view.now).min());

    let (checked, mut resting) = check_all(view, job_states, dry_runs, &mut round.dry_runs);
    let mut stepped: Vec<Stepped<'_>> = checked.into_iter().map(|job| job.step(view)).collect();

    let at_rest = resting.iter().filter_map(Resting::counted).flat_map(|job| &job.datasets);
    let datasets = stepped.iter().flat_map(|stepped| stepped.job.datasets());
    let datasets: BTreeSet<Key> = datasets.chain(at_rest.map(|(key, _)| key.clone())).collect();
    let rooms = view.rooms(&datasets.into_iter().collect::<Vec<_>>());
    let mut free = Cluster::new(&rooms);
    for stepped in stepped.iter().filter(|stepped| stepped.job.kueue_queue().is_some()) {
        stepped.take_room(view, &mut free);
    }

    let all: Vec<Queue> = queues::queues(view.jobs.queues.iter());
    let (queued, ending) = queued_pods::counted(view, &mut again);
    let queued: Vec<Arc<Job>> = queued.into_iter().map(Arc::new).collect();
    let (mut jobs, mut leftover) =
        counted(view, stepped.iter().map(|stepped| stepped.counted(view)), &resting, &unmade, &mut again);
    jobs.extend(queued.iter().cloned());
    leftover.extend(ending.iter().cloned());
    let mut verdicts = queue::decide(&all, &jobs, &leftover, &mut free, view.now);
    let woken = resting.extract_if(.., |job| !job.rests_with(verdicts.get(&job.object.meta.key)));
    stepped.extend(woken.map(|job| job.wake(view, dry_runs, &mut round.dry_runs)));
    stepped.sort_by_key(|stepped| stepped.job.key());
    (round.pods, round.pod_waits) = queued_pods::decide(view, &mut verdicts, &mut again);
    let ruled: Vec<Ruled<'_>> = stepped
        .into_iter()
        .map(|stepped| {
            let verdict = verdicts.remove(stepped.job.key());
            stepped.rule(view, verdict)
        })
        .collect();
    // Lost pods of all jobs are placed before any job of Kueue starts, because both take nodes from the same free room.
    let placed: Vec<Placed<'_>> = ruled.into_iter().map(|job| job.place(view, &mut free)).collect();
    let mut decided: Vec<Decided<'_>> = placed.into_iter().map(|job| job.ask_kueue(view, &mut free)).collect();

    let (mut jobs, mut leftover) =
        counted(view, decided.iter().map(|decided| decided.counted(view)), &resting, &unmade, &mut again);
    jobs.extend(queued);
    leftover.extend(ending);
    let names: BTreeSet<&str> = all.iter().map(|queue| queue.name.as_str()).collect();
    for queue in &all {
        if let Some(object) = view.jobs.queues.get(&Key::cluster(&queue.name)) {
            let status = queues::status(object, queue, &jobs, &leftover);
            let problem = queues::problem(object, queue, &names, view.flavors);
            round.queues.insert(queue.name.clone(), Report { status, problem });
        }
    }
    let in_phase = |phase: Phase| decided.iter().filter(|decided| decided.job.phase() == phase).count();
    let numbers = JobNumbers { queued: in_phase(Phase::Queued), starting: in_phase(Phase::Starting) };
    let mut warm_requests = Vec::new();
    for rest in resting.iter().filter_map(Resting::rest) {
        again.note(rest.until);
        warm_requests.extend(rest.warm_requests.iter().cloned());
    }
    // Jobs that have been in their phase for longer create their pods first.
    decided.sort_by_key(Decided::since);
    for mut job in decided {
        warm_requests.extend(job.warm_requests());
        let room = turns.room(&job.job.key().namespace);
        if room == 0 && job.creates_pods() {
            again.note(view.now + 1);
            if !job.hold_back(view.now) {
                continue;
            }
        }
        let written = job.write(view, numbers, room, draw);
        again.extend(written.again.at());
        if !written.writes.is_empty() {
            turns.add(&written.key.namespace, pod_turns::weight(&written.writes));
            round.writes.push((written.key, written.writes));
        }
    }
    warm_requests.sort_by(|(_, request), (_, other)| request.by.cmp(&other.by));
    for (dataset, request) in warm_requests {
        round.warm_requests.entry(dataset).or_default().push(request);
    }
    keep_data_of_sweeps(view, job_states, &mut round.warm_requests);
    round.again_at = again.at();
    round
}

/// Keeps the data of sweeps on the nodes where their trials run or have run, for the next trials.
fn keep_data_of_sweeps(
    view: &ClusterView<'_>,
    job_states: &BTreeMap<Key, JobState>,
    requests: &mut BTreeMap<Key, Vec<WarmRequest>>,
) {
    for sweep in view.jobs.jobs.iter().filter(|job| job.is_ours() && job.trial_spec.is_some()) {
        let is_over = sweep.status.phase.is_some_and(Phase::is_terminal);
        let Some(job) = sweep.job.as_ref().ok().filter(|job| !is_over && !job.suspend && !job.datasets.is_empty())
        else {
            continue;
        };
        let mut kept = BTreeSet::new();
        for trial in view.jobs.jobs.of(&by_uid(&sweep.meta.uid)) {
            if let (Some(job_state), Ok(job)) = (job_states.get(&trial.meta.key), &trial.job) {
                kept.extend(nodes(&job_state.record.state, &view.pods_of(trial, job)));
            }
        }
        kept.retain(|node| view.nodes.get(&Key::cluster(node)).is_some());
        if kept.is_empty() {
            continue;
        }
        let by = Requester::Job(sweep.meta.key.clone());
        let request = WarmRequest::on(by, Seconds(sweep.meta.created), kept.into_iter().collect(), false);
        for mount in &job.datasets {
            requests.entry(dataset_key(&mount.dataset)).or_default().push(request.clone());
        }
    }
}

/// Adds new jobs. Drops jobs that were deleted, or that another controller runs, once none of their writes is in
/// flight.
fn remember(view: &ClusterView<'_>, job_states: &mut BTreeMap<Key, JobState>) {
    let is_under_way =
        |key: &Key, job_state: &JobState| job_state.pending.is_some() && !view.jobs.ready.contains_key(key);
    job_states.retain(|key, job_state| view.has(key, &job_state.uid) || is_under_way(key, job_state));
    for object in view.jobs.jobs.iter().filter(|object| object.may_have_pods()) {
        let key = &object.meta.key;
        if !job_states.contains_key(key) {
            job_states.insert(key.clone(), JobState::new(object, view.now));
        }
    }
}

/// Drops the dry runs of deleted jobs. While there are no more results than jobs, results without a job are kept,
/// because another job with such pods may come.
fn forget(dry_runs: &mut DryRuns, job_states: &BTreeMap<Key, JobState>) {
    dry_runs.retain(|_, dry_run| dry_run.asker().is_none_or(|job| job_states.contains_key(job)));
    if dry_runs.len() > job_states.len() {
        let profiles = job_states.values().filter_map(|job_state| job_state.profile.as_ref());
        let needed: BTreeSet<&str> = profiles.map(|profile| profile.spec_hash.as_str()).collect();
        dry_runs.retain(|spec_hash, _| needed.contains(spec_hash.as_str()));
    }
}

/// Checks all jobs that exist and do not rest. Returns them and those that rest.
fn check_all<'a>(
    view: &ClusterView<'a>,
    job_states: &'a mut BTreeMap<Key, JobState>,
    dry_runs: &mut DryRuns,
    asked: &mut Vec<String>,
) -> (Vec<Checked<'a>>, Vec<Resting<'a>>) {
    let (mut checked, mut resting) = (Vec::new(), Vec::new());
    for (key, job_state) in job_states {
        let Some(object) = view.job(key, &job_state.uid) else { continue };
        match Resting::new(view, object, job_state) {
            Ok(job) => resting.push(job),
            Err(job_state) => checked.push(check(view, object, job_state, dry_runs, asked)),
        }
    }
    (checked, resting)
}

/// The jobs that count in queues, and the pods that other jobs have left behind.
fn counted<'a>(
    view: &ClusterView<'_>,
    awake: impl Iterator<Item = Counted<'a>>,
    resting: &'a [Resting<'_>],
    unmade: &[LeftoverPod],
    again: &mut Earliest,
) -> (Vec<Arc<Job>>, Vec<LeftoverPod>) {
    let mut jobs = Vec::new();
    let mut by_uid: HashMap<&str, Accounting<'_>> = HashMap::new();
    for Counted { uid, job, accounting } in awake {
        by_uid.insert(uid, accounting);
        jobs.extend(job);
    }
    for (job, counted) in resting.iter().filter_map(|job| Some((job, job.counted()?))) {
        by_uid.insert(&job.object.meta.uid, Accounting::Counted);
        jobs.push(Arc::clone(counted));
    }
    jobs.sort_by(|job, other| job.key.cmp(&other.key));
    let mut leftover = leftover_pods::pods(view, &by_uid, again);
    leftover.extend(unmade.iter().cloned());
    leftover.extend(view.elsewhere.iter().cloned());
    (jobs, leftover)
}
