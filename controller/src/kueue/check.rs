//! The states of the AdmissionChecks of one Workload, and whether one of Larder's checks is active. Pure.
//!
//! The deadline counts from the reservation time in the Workload, so a controller that starts late does not extend it.
//! If the data does not arrive, only the deadline decides: missing data never blocks a job permanently.

use k8s_openapi::jiff::Timestamp;
use larder_api::names::{DATASETS_ANNOTATION, MIN_WARM_ANNOTATION, WARM_DEADLINE_ANNOTATION};
use larder_dataset::size::parse_duration;
use serde_json::{Value, json};

use crate::kueue::objects::{Check, Patience};
use crate::kueue::workload::{CheckState, Workload};
use crate::time::Seconds;
use crate::warm_request::{Progress, Warmth};
use crate::write::{Change, Write};
use larder_kube::fields::hour;
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};

const PENDING: &str = "Pending";
const READY: &str = "Ready";

/// The default percentage from which on a job starts.
const MIN_WARM: u64 = 90;

/// The default deadline.
const DEADLINE_SECONDS: i64 = 600;

/// The longest deadline: 30 days.
const DEADLINE_MAX_SECONDS: i64 = 30 * 24 * 3600;

/// How long a new message without a new state is delayed.
const SMALL_NEWS_SECONDS: i64 = 15;

/// The inputs of the states of a Workload's checks.
#[derive(Debug)]
pub struct Situation<'a> {
    /// Seconds since 1970.
    pub now: Seconds,
    pub version: KueueVersion,
    pub workload: &'a Workload,
    /// Larder's checks that the Workload waits for.
    pub checks: Vec<&'a Check>,
    /// The datasets of the Workload and their progress; `None`: not known yet.
    pub datasets: Vec<(Key, Option<Progress>)>,
    /// Seconds since this process last wrote the states. Small changes are delayed by this.
    pub status_age: i64,
}

/// The decision about a Workload.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The write of the states.
    pub write: Option<Write>,
    /// Decide again at this time if nothing changes before.
    pub again_at: Option<Seconds>,
}

impl Outcome {
    fn again(&mut self, at: Seconds) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

/// Decides the states of Larder's checks of a Workload.
pub fn decide(situation: &Situation<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let workload = situation.workload;
    let Some(reserved) = workload.reserved else { return outcome };
    let ours = |state: &&CheckState| situation.checks.iter().find(|check| check.meta.key.name == state.name);
    let mut states = Vec::new();
    let (mut news, mut small_news) = (false, false);
    // Every apply contains all of them, because fields that an apply omits are removed.
    for state in &workload.checks {
        let Some(check) = ours(&state) else { continue };
        let next = if state.state == PENDING { next(situation, check, state, reserved, &mut outcome) } else { None };
        let next = next.unwrap_or_else(|| state.clone());
        news |= next.state != state.state;
        small_news |= next.message != state.message;
        states.push(next);
    }
    if !news && small_news && situation.status_age < SMALL_NEWS_SECONDS {
        outcome.again(situation.now + SMALL_NEWS_SECONDS - situation.status_age);
    } else if news || small_news {
        outcome.write = Some(write(situation, &states));
    }
    outcome
}

/// The next state of a pending check; `None` if nothing can be said yet.
fn next(
    situation: &Situation<'_>,
    check: &Check,
    state: &CheckState,
    reserved: Seconds,
    outcome: &mut Outcome,
) -> Option<CheckState> {
    let Terms { min_warm, deadline, remarks } = terms(situation.workload, &check.patience);
    let due = reserved + deadline;
    let is_due = situation.now >= due;
    if !is_due {
        outcome.again(due);
    }
    let known: Option<Vec<(&Key, &Progress)>> =
        situation.datasets.iter().map(|(key, progress)| Some((key, progress.as_ref()?))).collect();
    if known.is_none() && !is_due {
        return None;
    }
    let mut said: Vec<String> =
        known.iter().flatten().map(|(key, progress)| show(situation.workload, key, progress)).collect();
    said.extend(remarks);
    let is_warm = |progress: &Progress| matches!(progress, Progress::Warms(warmth) if warmth.percent() >= min_warm);
    let all_warm = known.is_some_and(|known| known.iter().all(|(_, progress)| is_warm(progress)))
        && situation.workload.pod_sets.iter().all(|set| set.wrong.is_empty() && set.unread.is_none());
    let said = if said.is_empty() { "its pods use no dataset".to_owned() } else { said.join("; ") };
    let (is, message) = match (all_warm, is_due) {
        (true, _) => (READY, said),
        (false, true) => (READY, format!("{said}; it starts at its deadline, {}", hour(due.0))),
        (false, false) => (PENDING, format!("{said}, ready at {min_warm} % or {}", hour(due.0))),
    };
    let since = if is == state.state { state.since.clone() } else { time(situation.now) };
    let message = message.chars().take(2000).collect();
    Some(CheckState { state: is.to_owned(), since, message, ..state.clone() })
}

/// How long a Workload waits.
struct Terms {
    min_warm: u64,
    deadline: i64,
    /// Messages about annotations that are invalid.
    remarks: Vec<String>,
}

/// Each setting comes from the first pod set whose annotation sets it, else from the check's annotation, else from the
/// defaults. An invalid value counts as the default, and a remark reports it.
fn terms(workload: &Workload, check: &Patience) -> Terms {
    let written: Vec<&Patience> = workload.pod_sets.iter().map(|set| &set.patience).chain([check]).collect();
    let mut remarks = Vec::new();
    let mut terms = Terms { min_warm: MIN_WARM, deadline: DEADLINE_SECONDS, remarks: Vec::new() };
    if let Some(text) = written.iter().find_map(|patience| patience.min_warm.as_deref()) {
        match text.trim().trim_end_matches('%').trim_end().parse() {
            Ok(percent @ 1..=100) => terms.min_warm = percent,
            _ => remarks.push(format!("{MIN_WARM_ANNOTATION} is not a percentage from 1 to 100: {}", short(text))),
        }
    }
    if let Some(text) = written.iter().find_map(|patience| patience.deadline.as_deref()) {
        match parse_duration(text.trim()) {
            Ok(time) => terms.deadline = i64::try_from(time.as_secs()).unwrap_or(i64::MAX).min(DEADLINE_MAX_SECONDS),
            Err(_) => remarks.push(format!("{WARM_DEADLINE_ANNOTATION} is not a time such as 10m: {}", short(text))),
        }
    }
    for text in workload.pod_sets.iter().flat_map(|set| &set.wrong) {
        remarks.push(format!("{DATASETS_ANNOTATION} lists names, or NAMESPACE/NAME: {}", short(text)));
    }
    remarks.extend(workload.pod_sets.iter().filter_map(|set| set.unread.clone()));
    Terms { remarks, ..terms }
}

fn short(text: &str) -> String {
    format!("{:?}", text.chars().take(64).collect::<String>())
}

/// The progress of a dataset. The text is the same whether the dataset does not exist or is not granted.
fn show(workload: &Workload, key: &Key, progress: &Progress) -> String {
    match progress {
        Progress::Refused => {
            format!("the namespace {} may not use the dataset {key}, or it does not exist", workload.meta.key.namespace)
        }
        Progress::Warms(warmth) => {
            let Warmth { wanted, holding, why, .. } = warmth;
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            format!("{key} {} % on {holding} of {wanted} nodes{why}", warmth.percent())
        }
    }
}

fn time(at: Seconds) -> String {
    Timestamp::from_second(at.0).unwrap_or(Timestamp::MAX).to_string()
}

/// A server-side apply of Larder's states. It fails if the Workload has changed: a state that was decided before an
/// eviction must not count after it.
fn write(situation: &Situation<'_>, states: &[CheckState]) -> Write {
    let meta = &situation.workload.meta;
    let state = |state: &CheckState| {
        json!({
            "name": state.name,
            "state": state.state,
            "lastTransitionTime": state.since,
            "message": state.message,
        })
    };
    let fields = json!({
        "metadata": {"uid": meta.uid, "resourceVersion": meta.version.to_string()},
        "status": {"admissionChecks": states.iter().map(state).collect::<Vec<Value>>()},
    });
    let kind = Kind::Kueue(KueueKind::Workload, situation.version);
    Write::new(kind, &meta.key.namespace, &meta.key.name, Change::ApplyStatus(fields))
}

/// The write that marks a check as active; `None` if it already is. ClusterQueues reserve no quota until all their
/// checks are active.
pub fn activate(check: &Check, version: KueueVersion, now: Seconds) -> Option<Write> {
    if check.active || check.meta.deleting {
        return None;
    }
    let condition = json!({
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "larder-controller decides it",
        "observedGeneration": check.generation,
        "lastTransitionTime": time(now),
    });
    let fields = json!({"metadata": {"uid": check.meta.uid}, "status": {"conditions": [condition]}});
    let kind = Kind::Kueue(KueueKind::AdmissionCheck, version);
    Some(Write::new(kind, "", &check.meta.key.name, Change::ApplyStatus(fields)))
}

#[cfg(test)]
mod tests;
