//! One job that may run in other clusters: its status, and the writes of this cluster about it.
//!
//! ```text
//!              choice                         Cluster unreachable for `failover`
//!  unplaced ──────────► placed in a cluster ─────────────────────────────────► unplaced, has left the cluster
//!                       (`here`: an ordinary job)
//! ```
//! The status says where the job is before anything is written there. A cluster that the job has left, and that may
//! still have its copy, stays in the status until it says that it has none. A finalizer keeps a deleted job for as long.

use larder_api::names::{ELSEWHERE_FINALIZER, HERE};
use larder_api::training_job::conditions::{JobConditionKind, JobReason};
use larder_api::training_job::{ClusterTerm, Placement, ShownJob};
use larder_api::{Phase, TrainingJobStatus};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;
use serde_json::json;

use super::choice::Choice;
use super::known::{Clusters, Link};
use super::objects::RemoteJob;
use crate::jobs::condition::time;
use crate::jobs::objects::JobObject;
use crate::time::Seconds;
use crate::write::{Change, Write};

/// The reasons of jobs that wait for room or quota.
const ROOM: [JobReason; 2] = [JobReason::QuotaUsed, JobReason::NoCluster];
/// A job that waits for the one reports no earlier than after this time that it waits for the other.
const ROOM_NEWS_SECONDS: i64 = 60;

/// The decision about a job.
#[derive(Debug, Default)]
pub struct Outcome {
    pub writes: Vec<Write>,
    /// The cluster that the job leaves. It must get no newer lease before the copy is gone.
    pub leaves: Option<String>,
    /// When to decide again if nothing changes before.
    pub again_at: Option<Seconds>,
}

/// Decides about a job. `keep_ended` is how long ended jobs are kept, in seconds.
pub fn decide(
    object: &JobObject,
    clusters: &Clusters,
    choice: Option<&Choice>,
    keep_ended: Option<i64>,
    now: Seconds,
) -> Outcome {
    let (key, uid) = (&object.meta.key, object.meta.uid.as_str());
    let mut placement = object.status.placement.clone().unwrap_or_default();
    placement.left.retain(|cluster| clusters.may_have(cluster, key, uid));
    let is_away = !placement.cluster.is_empty();
    let mut outcome = Outcome::default();
    if object.meta.deleting {
        // A copy in a cluster that it has left has no pods, and is deleted as a copy of no job. A job that is here must
        // not stay: its pods end after it.
        if object.is_finalized() && !clusters.may_have(&placement.cluster, key, uid) {
            outcome.writes.push(finalize(object, false));
        }
        return outcome;
    }
    if placement.cluster == HERE {
        // The status of a job that runs here is written by those that run it, but for what it has left.
        if object.status.placement.as_ref() != Some(&placement) {
            let status = json!({"placement": {"left": placement.left}});
            let fields = json!({"metadata": {"uid": uid}, "status": status});
            outcome.writes.push(Write::new(Kind::TrainingJob, &key.namespace, &key.name, Change::MergeStatus(fields)));
        }
        return outcome;
    }
    let mut status = object.status.clone();
    if is_away {
        let link = clusters.links.get(&placement.cluster);
        match link.filter(|link| link.is_reachable(clusters.now)) {
            Some(link) if !clusters.is_leaving(&placement.cluster, uid) => {
                placement.unknown_since = None;
                mirror(&mut status, object, link, &placement.cluster);
            }
            _ => lose(&mut status, &mut placement, object, link, clusters, now, &mut outcome),
        }
        let ttl = object.job.as_ref().ok().and_then(|job| job.ttl_after_finished);
        let ttl = ttl.map(|ttl| i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)).into_iter().chain(keep_ended).min();
        let is_ended = object.status.phase.is_some_and(Phase::is_terminal);
        if let (true, Some(finished), Some(ttl)) = (is_ended, &object.status.finished, ttl) {
            let at = Seconds::of(finished) + ttl;
            if at <= now {
                outcome.writes.push(Write::new(
                    Kind::TrainingJob,
                    &key.namespace,
                    &key.name,
                    Change::Delete(uid.to_owned()),
                ));
                return outcome;
            }
            outcome.again_at = outcome.again_at.into_iter().chain([at]).min();
        }
    } else {
        outcome.again_at = place(&mut status, &mut placement, object, choice, now);
    }
    // The finalizer comes first: a job that is deleted in between has no copy yet.
    let may_have_copies = !placement.left.is_empty() || !placement.cluster.is_empty() && placement.cluster != HERE;
    if may_have_copies && !object.is_finalized() {
        outcome.writes.push(finalize(object, true));
        return outcome;
    }
    status.placement = Some(placement);
    if status != object.status {
        // A write that arrives after a later one must not move the job back.
        let metadata = json!({"uid": uid, "resourceVersion": object.meta.version.to_string()});
        let fields = json!({"metadata": metadata, "status": status});
        outcome.writes.push(Write::new(Kind::TrainingJob, &key.namespace, &key.name, Change::ApplyStatus(fields)));
    }
    outcome
}

/// Adds or removes the finalizer of this controller. The version makes the API refuse the change if others have changed
/// the list meanwhile.
fn finalize(object: &JobObject, is_to_have: bool) -> Write {
    let mut finalizers: Vec<&str> = object.finalizers.iter().map(String::as_str).collect();
    if is_to_have {
        finalizers.push(ELSEWHERE_FINALIZER);
    } else {
        finalizers.retain(|name| *name != ELSEWHERE_FINALIZER);
    }
    let (key, version) = (&object.meta.key, object.meta.version.to_string());
    let metadata = json!({"uid": object.meta.uid, "resourceVersion": version, "finalizers": finalizers});
    Write::new(Kind::TrainingJob, &key.namespace, &key.name, Change::Merge(json!({"metadata": metadata})))
}

/// Copies the status of the job over there. It is about the spec here if the copy has it and has been acted on.
fn mirror(status: &mut TrainingJobStatus, object: &JobObject, link: &Link, cluster: &str) {
    let (key, uid) = (&object.meta.key, object.meta.uid.as_str());
    let Some(copy) = link.job(key, uid) else {
        if status.phase.is_some_and(Phase::is_terminal) {
            return;
        }
        let is_new = status.phase.is_none_or(|phase| phase == Phase::Queued) && status.waiting_for.is_none();
        if is_new && link.refusal(key, uid).is_none() && link.other_home(key).is_none() {
            // It is created in a moment.
            return;
        }
        let why = match link.refusal(key, uid) {
            Some(why) => format!("cluster {cluster} refuses the job: {why}"),
            None if link.other_home(key).is_some() => format!("cluster {cluster} runs the job for another home"),
            None => format!("is being created in cluster {cluster}"),
        };
        *status = TrainingJobStatus {
            phase: Some(Phase::Queued),
            waiting_for: Some(why.chars().take(1000).collect()),
            conditions: status.conditions.clone(),
            placement: status.placement.take(),
            ..TrainingJobStatus::default()
        };
        return;
    };
    // A job that has ended does not begin again, whatever the other cluster says. Its last pods may still be ending there.
    if status.phase.is_some_and(Phase::is_terminal) && copy.status.phase != status.phase {
        return;
    }
    let is_current = |copy: &RemoteJob| {
        copy.home.generation == object.generation && copy.status.observed_generation == Some(copy.generation)
    };
    let generation = if is_current(copy) { Some(object.generation) } else { status.observed_generation };
    let placement = status.placement.take();
    *status = TrainingJobStatus { observed_generation: generation, placement, ..copy.status.clone() };
    status.phase = status.phase.or(Some(Phase::Queued));
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
    }
}

/// The job is in a cluster that does not answer. It runs on there. With `failover`, it leaves the cluster in time.
fn lose(
    status: &mut TrainingJobStatus,
    placement: &mut Placement,
    object: &JobObject,
    link: Option<&Link>,
    clusters: &Clusters,
    now: Seconds,
    outcome: &mut Outcome,
) {
    if status.phase.is_some_and(Phase::is_terminal) {
        return;
    }
    let cluster = placement.cluster.clone();
    let silent = link.map_or(0, |link| link.silent_seconds(clusters.now));
    let failover = object.failover();
    // A process that does not know how long the link has been lost waits for all of the time. A job that another home
    // has taken over runs on there.
    let is_taken = |link: &Link| link.other_home(&object.meta.key).is_some();
    let is_due = clusters.is_leaving(&cluster, &object.meta.uid)
        || link.is_some_and(|link| !is_taken(link)) && failover.is_some_and(|failover| silent > failover);
    if is_due {
        outcome.leaves = Some(cluster.clone());
        placement.left.push(cluster.clone());
        *placement = Placement { left: std::mem::take(&mut placement.left), ..Placement::default() };
        let why = format!("has left cluster {cluster}, which has not answered for {silent} s");
        *status = TrainingJobStatus {
            phase: Some(Phase::Queued),
            restarts: status.restarts,
            waiting_for: Some(why),
            ..TrainingJobStatus::default()
        };
        return;
    }
    outcome.again_at = failover.filter(|failover| silent <= *failover).map(|failover| now + (failover - silent) + 1);
    let is_forgotten = clusters.objects.get(&Key::cluster(&cluster)).is_none();
    if !is_forgotten && link.is_none_or(|link| !link.is_silent(clusters.now)) {
        return;
    }
    let since = placement.unknown_since.get_or_insert_with(|| time(now - silent));
    status.waiting_for = Some(if is_forgotten {
        format!("there is no Cluster {cluster} any more, and the job runs on there")
    } else {
        format!("cluster {cluster} has not answered since {}, and the job runs on there", since.0)
    });
    status.shown.get_or_insert_default().why = "Unknown".to_owned();
}

/// The job is in no other cluster. Returns when its status is due, if that may wait.
fn place(
    status: &mut TrainingJobStatus,
    placement: &mut Placement,
    object: &JobObject,
    choice: Option<&Choice>,
    now: Seconds,
) -> Option<Seconds> {
    if !placement.cluster.is_empty() {
        return None;
    }
    let shown = status.shown.take();
    status.observed_generation = Some(object.generation);
    let is_suspended = object.job.as_ref().is_ok_and(|job| job.suspend);
    status.phase = Some(if is_suspended { Phase::Suspended } else { Phase::Queued });
    match choice {
        _ if is_suspended => status.waiting_for = None,
        Some(Choice::Place { cluster, terms }) => {
            status.waiting_for = None;
            status.conditions.clear();
            placement.cluster.clone_from(cluster);
            placement.since = Some(time(now));
            placement.terms.clone_from(terms);
        }
        Some(Choice::Wait { terms, reason, why }) => {
            // The numbers change all the time. They are written when the outcome changes.
            let gist = |terms: &[ClusterTerm]| -> Vec<(String, bool, String)> {
                terms.iter().map(|term| (term.cluster.clone(), term.fits, term.why.clone())).collect()
            };
            let (mut was, mut is) = (gist(&placement.terms), gist(terms));
            was.sort();
            is.sort();
            let why: String = why.chars().take(1000).collect();
            if let Some(old) = status.conditions.iter().find(|old| old.status == "False") {
                let says_so = || status.waiting_for.as_deref().is_some_and(|was| words(was).eq(words(&why)));
                let is_same = old.reason == reason.as_str();
                if is_same && was == is && says_so() {
                    status.shown = shown;
                    return None;
                }
                // Room and quota come and go with each job that begins or ends.
                let is_room = |reason: &str| ROOM.iter().any(|of_room| of_room.as_str() == reason);
                let due = Seconds::of(&old.last_transition_time) + ROOM_NEWS_SECONDS;
                if !is_same && is_room(&old.reason) && is_room(reason.as_str()) && now < due {
                    status.shown = shown;
                    return Some(due);
                }
            }
            if was != is {
                placement.terms.clone_from(terms);
            }
            status.shown = Some(ShownJob { why: reason.to_string(), ..ShownJob::default() });
            let kind = reason.conditions().first().copied().unwrap_or(JobConditionKind::Valid);
            let old = kind.find(&status.conditions).filter(|old| old.status == "False");
            let since = old.map_or_else(|| time(now), |old| old.last_transition_time.clone());
            status.conditions = vec![kind.is(false, *reason, why.as_str(), object.generation, since)];
            status.waiting_for = Some(why);
        }
        None => {}
    }
    None
}

/// The words of a text without numbers and their units.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_number = |word: &str| word.trim_end_matches([',', ';', ')']).parse::<f64>().is_ok();
    let mut is_unit = false;
    text.split_whitespace().filter(move |word| !(std::mem::replace(&mut is_unit, is_number(word)) || is_number(word)))
}

#[cfg(test)]
mod tests;
