//! The state of the AdmissionChecks of one Workload, and whether one of Larder's checks is active. Pure.
//!
//! The deadline counts from the time of the reservation, which the Workload has, so a controller that starts late is
//! not late. Nothing but the deadline decides when the data does not come: data never holds a job for ever.

use k8s_openapi::jiff::Timestamp;
use larder_api::names::{DATASETS_ANNOTATION, MIN_WARM_ANNOTATION, WARM_DEADLINE_ANNOTATION};
use larder_dataset::size::parse_duration;
use serde_json::{Value, json};

use crate::kueue::objects::{Check, CheckState, Patience, Workload};
use crate::time::Seconds;
use crate::warm_request::{Progress, Warmth};
use crate::write::{Change, Write};
use larder_kube::fields::hour;
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};

const PENDING: &str = "Pending";
const READY: &str = "Ready";

/// From this percentage on a job starts.
const MIN_WARM: u64 = 90;

/// The longest that a job waits.
const DEADLINE_SECONDS: i64 = 600;

/// The longest deadline: 30 days.
const DEADLINE_MAX_SECONDS: i64 = 30 * 24 * 3600;

/// How long news that change no state wait.
const SMALL_NEWS_SECONDS: i64 = 15;

/// Everything that the states of a Workload's checks depend on.
#[derive(Debug)]
pub struct Situation<'a> {
    /// Seconds since 1970.
    pub now: Seconds,
    /// The version of Kueue's API.
    pub version: KueueVersion,
    /// The Workload.
    pub workload: &'a Workload,
    /// Those of Larder's checks that it waits for.
    pub checks: Vec<&'a Check>,
    /// Its datasets, and how far each is; `None`: not known yet.
    pub datasets: Vec<(Key, Option<Progress>)>,
    /// Seconds since this process last wrote its state, which small news wait for.
    pub status_age: i64,
}

/// The decision about a Workload.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The write of its state.
    pub write: Option<Write>,
    /// Look at it again at this time, if nothing happens before.
    pub again_at: Option<Seconds>,
}

impl Outcome {
    fn again(&mut self, at: Seconds) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

/// Decides the state of Larder's checks of a Workload.
pub fn decide(situation: &Situation<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let workload = situation.workload;
    let Some(reserved) = workload.reserved else { return outcome };
    let ours = |state: &&CheckState| situation.checks.iter().find(|check| check.meta.key.name == state.name);
    let mut states = Vec::new();
    let (mut news, mut small_news) = (false, false);
    // All of them each time: what an apply leaves out is taken away.
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

/// The next state of a check that is pending; `None` if nothing can be said.
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
        && situation.workload.pod_sets.iter().all(|set| set.wrong.is_empty());
    let said = if said.is_empty() { "its pods use no dataset".to_owned() } else { said.join("; ") };
    let (is, message) = match (all_warm, is_due) {
        (true, _) => (READY, said),
        (false, true) => (READY, format!("{said}; it starts at its deadline, {}", hour(due.0))),
        (false, false) => (PENDING, format!("{said}, ready at {min_warm} % or {}", hour(due.0))),
    };
    let since = if is == state.state { state.since.clone() } else { time(situation.now) };
    let message = message.chars().take(2000).collect();
    Some(CheckState { name: state.name.clone(), state: is.to_owned(), since, message })
}

/// Until when a Workload waits.
struct Terms {
    min_warm: u64,
    deadline: i64,
    /// About annotations that say nothing.
    remarks: Vec<String>,
}

/// Each term comes from the first kind of pods whose annotation sets it, else from the check's annotation, else from
/// the defaults. A value that cannot be read counts as the default, and a remark says so.
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
    Terms { remarks, ..terms }
}

fn short(text: &str) -> String {
    format!("{:?}", text.chars().take(64).collect::<String>())
}

/// How far a dataset is. Whether it does not exist or is not granted, the words are the same.
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

/// An apply of Larder's own states. It fails if the Workload has changed: a state that was decided before an eviction
/// must not count after it.
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

/// The write that makes a check of Larder's active: until it is, its ClusterQueues reserve nothing. `None` if it is.
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
