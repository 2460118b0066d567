//! The status of a job: its phase, counters and conditions, and a sentence about what it waits for.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_api::training_job::checked::Queueing;
use larder_api::training_job::conditions::{JobConditionKind as Kind, JobReason as Reason};
use larder_api::training_job::{Restarts, RoleStatus, ShownJob};
use larder_api::{Phase, TrainingJobStatus};

use crate::jobs::condition::time;
use crate::jobs::eligibility::Eligibility;
use crate::jobs::job_state::JobState;
use crate::jobs::machine::{Cause, Observed, PodId, PodStage, Stage, State, waits_for};
use crate::jobs::objects::JobObject;
use crate::jobs::queue::{Lack, Verdict};
use crate::time::Seconds;

/// The inputs of a status.
pub struct Facts<'a> {
    pub now: Seconds,
    pub object: &'a JobObject,
    pub job_state: &'a JobState,
    pub observed: &'a Observed,
    pub eligibility: &'a Eligibility,
    /// The job names a queue that exists, or none.
    pub has_queue: bool,
    /// The verdict of the queues in this round.
    pub verdict: Option<&'a Verdict>,
}

fn is_in_kueue(object: &JobObject) -> bool {
    object.job.as_ref().is_ok_and(|job| matches!(job.queueing, Queueing::Kueue(_)))
}

/// A condition's status, reason and message.
type Finding = (bool, Reason, String);

/// Computes the status of a job, without the record.
pub fn status(facts: &Facts<'_>) -> TrainingJobStatus {
    let state = &facts.job_state.record.state;
    let waiting_for = waiting_for(facts);
    let conditions = conditions(facts, waiting_for.as_deref().unwrap_or_default());
    let roles = roles(facts);
    let restarts = restarts(state);
    let ready: u32 = roles.iter().map(|role| role.ready).sum();
    let desired: u32 = roles.iter().map(|role| role.desired).sum();
    let data = &facts.observed.data;
    let before = &facts.job_state.status;
    let shown_data = match &before.shown {
        // The value at the job's end: its nodes may serve other jobs since.
        Some(shown) if before.phase.is_some_and(Phase::is_terminal) => shown.data.clone(),
        _ => data.iter().map(|data| data.percent).min().map(|percent| format!("{percent}%")).unwrap_or_default(),
    };
    TrainingJobStatus {
        observed_generation: Some(facts.object.generation),
        phase: Some(state.phase),
        shown: Some(ShownJob {
            ready: if state.phase.has_pods() { format!("{ready}/{desired}") } else { String::new() },
            data: shown_data,
            restarts: restarts.total(),
            why: why(state, &conditions),
        }),
        roles,
        restarts,
        result: state.result.clone(),
        sweep: None,
        waiting_for,
        started: state.started.map(time),
        finished: state.finished.map(time),
        conditions,
        placement: facts.object.status.placement.clone(),
        record: None,
    }
}

fn restarts(state: &State) -> Restarts {
    let of = |cause| state.restarts.of(cause);
    Restarts {
        crashed: of(Cause::Crashed),
        preempted: of(Cause::Preempted),
        evicted: of(Cause::Evicted),
        node_lost: of(Cause::NodeLost),
        device_fault: of(Cause::DeviceFault),
    }
}

fn roles(facts: &Facts<'_>) -> Vec<RoleStatus> {
    let state = &facts.job_state.record.state;
    let mut roles: Vec<RoleStatus> = facts
        .observed
        .terms
        .roles
        .iter()
        .map(|role| RoleStatus { name: role.name.clone(), ..RoleStatus::default() })
        .collect();
    for (id, slot) in state.slots() {
        if let Some(role) = roles.get_mut(id.role) {
            role.desired += 1;
            role.done += u32::from(slot.stage == Stage::Done);
        }
    }
    for pod in facts.observed.pods.iter().filter(|pod| !pod.stage.has_ended()) {
        if let Some(role) = roles.get_mut(pod.id.role) {
            role.active += 1;
            role.ready += u32::from(pod.stage == PodStage::Ready && state.slot(pod.id).is_some());
        }
    }
    roles
}

fn waiting_for(facts: &Facts<'_>) -> Option<String> {
    let (state, job_state) = (&facts.job_state.record.state, facts.job_state);
    // For a job in one of Kueue's queues, the rejected object may be its Workload.
    let is_writing = state.phase.is_making() || state.phase == Phase::Queued && is_in_kueue(facts.object);
    let text = if let Some(refusal) = facts.eligibility.refusal().filter(|_| !state.phase.is_terminal()) {
        Some(refusal.why.clone())
    } else if let Some(refused) = job_state.refused.as_ref().filter(|_| is_writing) {
        Some(format!("the API server rejects one of the job's objects: {refused}"))
    } else if state.phase == Phase::Queued
        && let Some(waiting) = &job_state.waiting
    {
        Some(waiting.why.clone())
    } else {
        let waits = waits_for(state, facts.observed, facts.now);
        waits.map(|waits| match &facts.observed.scheduler_message {
            Some(message) => format!("{waits}: {message}"),
            None => waits,
        })
    };
    text.filter(|text| !text.is_empty()).map(|text| text.chars().take(1000).collect())
}

fn conditions(facts: &Facts<'_>, waits: &str) -> Vec<Condition> {
    let state = &facts.job_state.record.state;
    let before = &facts.job_state.status.conditions;
    let now = time(facts.now);
    let all = [
        (Kind::Valid, valid(facts)),
        (Kind::QuotaReserved, quota(facts, waits)),
        (Kind::DataWarm, data(facts, waits)),
        (Kind::Placed, placed(facts, waits)),
    ];
    // A job has these once it has ended, as Kubernetes' own Jobs do: each condition costs bytes in every status.
    let ended = [(Kind::Complete, complete(state)), (Kind::Failed, failed(facts))];
    let ended = ended.into_iter().filter(|(_, finding)| finding.is_some());
    let condition = |(kind, finding): (Kind, Option<Finding>)| {
        let old = kind.find(before);
        let Some((is, reason, message)) = finding else { return old.cloned() };
        let is_same = old.filter(|old| old.status == if is { "True" } else { "False" });
        let since = is_same.map_or_else(|| now.clone(), |old| old.last_transition_time.clone());
        let message: String = message.chars().take(1000).collect();
        Some(kind.is(is, reason, message, facts.object.generation, since))
    };
    all.into_iter().chain(ended).filter_map(condition).collect()
}

/// `None` leaves the condition as it was.
fn valid(facts: &Facts<'_>) -> Option<Finding> {
    match facts.eligibility {
        Eligibility::Refused(refusal) => Some((false, refusal.reason, refusal.why.clone())),
        Eligibility::Unanswered => None,
        Eligibility::Eligible | Eligibility::QuotaUsed(_) => Some((true, Reason::Accepted, String::new())),
    }
}

/// `None` leaves the condition as it was. A job that has ended keeps its condition.
fn quota(facts: &Facts<'_>, waits: &str) -> Option<Finding> {
    let state = &facts.job_state.record.state;
    let is_in_queue = facts.object.job.as_ref().is_ok_and(|job| job.queueing != Queueing::None);
    if state.phase.is_terminal() {
        return None;
    }
    if state.holds_room() && !facts.has_queue {
        let queue = &facts.job_state.queue;
        let message = format!("there is no queue {queue} any more: the job goes on, and its pods count in no queue");
        return Some((true, Reason::NoQueue, message));
    }
    if state.holds_room() {
        let reason = if is_in_queue { Reason::Reserved } else { Reason::NoQueue };
        return Some((true, reason, String::new()));
    }
    if state.phase == Phase::Suspended {
        return Some((false, Reason::Suspended, String::new()));
    }
    if let Some(Verdict::Stop { why }) = facts.verdict {
        return Some((false, Reason::Preempted, why.clone()));
    }
    let reason = match facts.job_state.waiting.as_ref().map(|waiting| waiting.lacks) {
        _ if !facts.eligibility.may_queue() => Reason::Waiting,
        None | Some(Lack::Nodes | Lack::Cluster | Lack::Pause) => Reason::Waiting,
        Some(Lack::Namespace) => Reason::ResourceQuotaUsed,
        Some(_) if is_in_kueue(facts.object) => Reason::KueueDecides,
        Some(Lack::Turn) => Reason::NotItsTurn,
        Some(Lack::Queue) => Reason::QueueStopped,
        Some(Lack::Quota) => Reason::QuotaUsed,
    };
    Some((false, reason, waits.to_owned()))
}

fn data(facts: &Facts<'_>, waits: &str) -> Option<Finding> {
    let state = &facts.job_state.record.state;
    let data = &facts.observed.data;
    if facts.object.job.as_ref().is_ok_and(|job| job.datasets.is_empty()) {
        return Some((true, Reason::NoData, String::new()));
    }
    match state.phase {
        Phase::DataWarming => Some((false, Reason::Warming, waits.to_owned())),
        Phase::Queued | Phase::Suspended => Some((false, Reason::Waiting, String::new())),
        // Reported once, when the job starts.
        _ if Kind::DataWarm.find(&facts.job_state.status.conditions).is_some_and(|old| old.status == "True") => None,
        _ if data.iter().all(|data| data.percent >= data.enough) => Some((true, Reason::Cached, String::new())),
        _ => Some((true, Reason::WarmTimeout, String::new())),
    }
}

fn placed(facts: &Facts<'_>, waits: &str) -> Option<Finding> {
    let state = &facts.job_state.record.state;
    match state.phase {
        // Its pods have run, even if they ended before the controller observed them.
        Phase::Succeeded => return Some((true, Reason::Bound, String::new())),
        Phase::Failed => return None,
        _ => {}
    }
    if !state.phase.has_pods() {
        let reason = match facts.job_state.waiting.as_ref().map(|waiting| waiting.lacks) {
            _ if facts.eligibility.refusal().is_some() || state.phase != Phase::Queued => Reason::Waiting,
            Some(Lack::Nodes) => Reason::NoRoom,
            Some(Lack::Cluster) => Reason::LargerThanTheCluster,
            Some(Lack::Pause) => Reason::NotBoundInTime,
            _ => Reason::Waiting,
        };
        let message = if reason == Reason::Waiting { String::new() } else { waits.to_owned() };
        return Some((false, reason, message));
    }
    let bound = facts.observed.pods.iter().filter(|pod| pod.stage != PodStage::Pending);
    let bound: BTreeSet<PodId> = bound.map(|pod| pod.id).collect();
    if state.slots().all(|(id, slot)| slot.stage == Stage::Done || bound.contains(&id)) {
        return Some((true, Reason::Bound, String::new()));
    }
    let reason = if state.planned_again { Reason::NotBoundInTime } else { Reason::Binding };
    Some((false, reason, waits.to_owned()))
}

fn complete(state: &State) -> Option<Finding> {
    (state.phase == Phase::Succeeded).then_some((true, Reason::Succeeded, String::new()))
}

fn failed(facts: &Facts<'_>) -> Option<Finding> {
    let state = &facts.job_state.record.state;
    if state.phase != Phase::Failed {
        return None;
    }
    let is_late = state.ends(&facts.observed.terms).is_some_and(|ends| state.finished.is_some_and(|at| at >= ends));
    let reason = match is_late {
        _ if state.is_failed_by_rule => Reason::FailedByRule,
        true => Reason::DeadlineExceeded,
        false => Reason::CrashedTooOften,
    };
    Some((true, reason, state.why.clone()))
}

/// One word: the reason of the first condition that blocks the job, or how it ended.
fn why(state: &State, conditions: &[Condition]) -> String {
    let reason = |kind: Kind| kind.find(conditions).map(|condition| condition.reason.clone()).unwrap_or_default();
    match state.phase {
        Phase::Running | Phase::Succeeded => String::new(),
        Phase::Failed => reason(Kind::Failed),
        _ => {
            let order = [Kind::Valid, Kind::QuotaReserved, Kind::DataWarm, Kind::Placed];
            let holds_up = |kind: &Kind| {
                let waits = Reason::Waiting.as_str();
                kind.find(conditions).is_some_and(|condition| condition.status == "False" && condition.reason != waits)
            };
            order.into_iter().find(holds_up).map(reason).unwrap_or_default()
        }
    }
}
