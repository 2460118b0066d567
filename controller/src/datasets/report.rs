//! The status: conditions, numbers and messages. A condition that becomes true or false, or that requires an action of
//! a user, is written immediately. Other changes are delayed, so that a dataset that is warmed on many nodes does not
//! cause a write for each of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_api::dataset::LAGGING_MAX;
use larder_api::{ConditionKind, DatasetStatus, Reason, Shown, Users};
use larder_dataset::size::show_bytes;
use serde_json::json;

use super::in_use::existing_promises;
use super::status_draft::{Draft, Verdict, time};
use crate::datasets::input::{DatasetView, Decision};
use crate::events::write_event;
use crate::objects::{DatasetObject, Key};
use crate::write::{Change, Write};
use larder_kube::events::Severity;
use larder_kube::kinds::Kind;

/// How long small changes of a status are delayed, so that several are written together.
const SMALL_NEWS_SECONDS: i64 = 30;

pub(super) fn step(draft: &mut Draft<'_>) {
    if let Some(message) = refusal(draft.view, &draft.decision) {
        draft.verdicts.retain(|verdict| verdict.kind != ConditionKind::Degraded);
        draft.find(ConditionKind::Degraded, true, Reason::WriteRefused, message);
    }
    if draft.view.is_left_out && draft.found(ConditionKind::Degraded).is_none() {
        let message = format!(
            "inline volumes cannot name this dataset: older Datasets of {} use up its share of the list of datasets \
             that inline volumes can name",
            draft.key().namespace
        );
        draft.find(ConditionKind::Degraded, true, Reason::InlineLimit, message);
    }
    if draft.found(ConditionKind::Degraded).is_none() {
        draft.find(ConditionKind::Degraded, false, Reason::AsWanted, "");
    }
    let first_of = |kind: ConditionKind| draft.found(kind).filter(|verdict| !verdict.status).cloned();
    let holds_up = [ConditionKind::Imported, ConditionKind::Placed, ConditionKind::Warm].into_iter().find_map(first_of);
    match holds_up {
        Some(verdict) => draft.find(ConditionKind::Ready, false, verdict.reason, verdict.message),
        None => draft.find(ConditionKind::Ready, true, Reason::Available, "pods can mount the dataset"),
    }
    let (view, dataset) = (draft.view, draft.dataset);
    let verdicts = std::mem::take(&mut draft.verdicts);
    let mut status = std::mem::take(&mut draft.status);
    users(view, &mut status);
    status.shown = Some(shown(&status));
    finish(view, dataset, status, verdicts, &mut draft.decision);
}

/// The API's message about a rejected write that is about to be retried.
fn refusal(view: &DatasetView<'_>, decision: &Decision) -> Option<String> {
    decision.writes.iter().find_map(|write| {
        let key = Key::new(&write.namespace, &write.name);
        let said = view.refused.get(&(write.kind, key.clone()))?;
        let said: String = said.chars().take(500).collect();
        Some(format!("{} {key}: {said}", write.kind.name()))
    })
}

/// The status of a dataset whose spec is rejected. It keeps its promises and its snapshot.
pub(super) fn refused(
    view: &DatasetView<'_>,
    dataset: &DatasetObject,
    mut status: DatasetStatus,
    mut decision: Decision,
    reason: Reason,
    message: String,
) -> Decision {
    decision.promises = existing_promises(view, dataset);
    let of = |kind, reason, message: &str| Verdict { kind, status: false, reason, message: message.to_owned() };
    let verdicts = vec![
        of(ConditionKind::Imported, reason, &message),
        of(ConditionKind::Placed, Reason::Waiting, ""),
        of(ConditionKind::Warm, Reason::Waiting, ""),
        of(ConditionKind::Degraded, Reason::AsWanted, ""),
        of(ConditionKind::Ready, reason, &message),
    ];
    users(view, &mut status);
    finish(view, dataset, status, verdicts, &mut decision);
    decision
}

/// The status of a deleted dataset that pods still read.
pub(super) fn in_use(view: &DatasetView<'_>, dataset: &DatasetObject, decision: &mut Decision) {
    let mut status = dataset.dataset.status.clone().unwrap_or_default();
    users(view, &mut status);
    let users = status.users.clone().unwrap_or_default();
    let mut message = format!("deleted; it will be removed when these pods end: {}", users.pods.join(", "));
    if users.count as usize > users.pods.len() {
        message += &format!(" and {} more", users.count as usize - users.pods.len());
    }
    let verdict = Verdict { kind: ConditionKind::Ready, status: false, reason: Reason::InUse, message };
    finish(view, dataset, status, vec![verdict], decision);
}

fn users(view: &DatasetView<'_>, status: &mut DatasetStatus) {
    let mut pods: Vec<String> = view.users.iter().map(|pod| pod.meta.key.to_string()).collect();
    pods.sort();
    let count = pods.len() as u32;
    let had = status.users.as_ref().is_some_and(|users| users.count > 0);
    pods.truncate(LAGGING_MAX);
    status.users = Some(Users { count, pods });
    match (had, count) {
        (_, 1..) => status.last_used = None,
        (true, 0) => status.last_used = Some(time(view.now)),
        (false, 0) => {}
    }
}

fn shown(status: &DatasetStatus) -> Shown {
    let nodes = status.nodes.unwrap_or_default();
    Shown {
        size: status.bytes.map(show_bytes).unwrap_or_default(),
        nodes: format!("{}/{}", nodes.holding, nodes.wanted),
        warm: status.percent.map(|percent| format!("{percent}%")).unwrap_or_default(),
    }
}

/// Adds the write of the status, and an Event for each thing that went wrong.
fn finish(
    view: &DatasetView<'_>,
    dataset: &DatasetObject,
    mut status: DatasetStatus,
    verdicts: Vec<Verdict>,
    decision: &mut Decision,
) {
    let before = dataset.dataset.status.clone().unwrap_or_default();
    let generation = dataset.dataset.metadata.generation.unwrap_or_default();
    status.observed_generation = Some(generation);
    let mut conditions = Vec::new();
    let mut bad_news = Vec::new();
    for &kind in ConditionKind::ALL {
        let old = kind.find(&before.conditions);
        let Some(verdict) = verdicts.iter().find(|verdict| verdict.kind == kind) else {
            conditions.extend(old.cloned());
            continue;
        };
        let (is, since) =
            (if verdict.status { "True" } else { "False" }, old.filter(|old| old.status == status_text(verdict)));
        let since = since.map_or_else(|| time(view.now), |old| old.last_transition_time.clone());
        let changed = old.is_none_or(|old| old.status != is || old.reason != verdict.reason.as_str());
        let is_bad = match kind {
            ConditionKind::Ready => !verdict.status && is_trouble(verdict.reason),
            ConditionKind::Degraded => verdict.status,
            _ => false,
        };
        if changed && is_bad {
            bad_news.push(verdict);
        }
        conditions.push(kind.is(verdict.status, verdict.reason, verdict.message.clone(), generation, since));
    }
    status.conditions = conditions;
    if status == before {
        return;
    }
    if !is_big_news(&before, &status) && view.status_age < SMALL_NEWS_SECONDS {
        decision.again(view.now + SMALL_NEWS_SECONDS - view.status_age);
        return;
    }
    let key = &dataset.meta.key;
    for verdict in bad_news {
        let reason = verdict.reason.as_str();
        let said = (Severity::Warning, reason, &*verdict.message);
        let mut identity = vec![&*dataset.meta.uid, reason];
        // The message about a node that lacks room has numbers, which change all the time.
        if verdict.kind == ConditionKind::Ready {
            identity.push(&verdict.message);
        }
        let write = write_event(view.now, Kind::Dataset, &dataset.meta, &identity, said);
        if !view.emitted.contains(&write.name) {
            decision.writes.push(write);
        }
    }
    let fields = json!({"status": status});
    decision.writes.push(Write::new(Kind::Dataset, &key.namespace, &key.name, Change::ApplyStatus(fields)));
}

fn status_text(verdict: &Verdict) -> &'static str {
    if verdict.status { "True" } else { "False" }
}

/// True for reasons that require an action of a user.
fn is_trouble(reason: Reason) -> bool {
    !matches!(reason, Reason::Importing | Reason::Waiting | Reason::Warming | Reason::InUse)
}

/// True if the change must be visible immediately.
fn is_big_news(before: &DatasetStatus, now: &DatasetStatus) -> bool {
    let gist = |status: &DatasetStatus| {
        let conditions: Vec<(String, String, String)> = status.conditions.iter().map(headline).collect();
        let listed: Vec<_> = status.snapshots.iter().map(|known| (known.id.clone(), known.listed.clone())).collect();
        (
            conditions,
            listed,
            status.snapshot.clone(),
            status.next.clone(),
            status.observed_generation,
            status.cleaned.clone(),
        )
    };
    gist(before) != gist(now)
}

/// The part of a condition that is news. The reason of a wait is not part of it.
fn headline(condition: &Condition) -> (String, String, String) {
    let Condition { type_, status, reason, .. } = condition;
    let waits = status == "False" && reason.parse().is_ok_and(|reason| !is_trouble(reason));
    (type_.clone(), status.clone(), if waits { String::new() } else { reason.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: bool, reason: Reason) -> DatasetStatus {
        let condition = ConditionKind::Ready.is(status, reason, String::new(), 1, time(crate::time::Seconds(0)));
        DatasetStatus { conditions: vec![condition], ..DatasetStatus::default() }
    }

    #[test]
    fn which_wait_a_dataset_is_in_can_wait_and_an_end_or_a_trouble_cannot() {
        let importing = ready(false, Reason::Importing);
        assert!(!is_big_news(&importing, &ready(false, Reason::Waiting)));
        assert!(!is_big_news(&ready(false, Reason::Waiting), &ready(false, Reason::Warming)));
        assert!(is_big_news(&DatasetStatus::default(), &importing));
        assert!(is_big_news(&importing, &ready(false, Reason::AccessDenied)));
        assert!(is_big_news(&ready(false, Reason::AccessDenied), &importing));
        assert!(is_big_news(&ready(false, Reason::AccessDenied), &ready(false, Reason::BucketMissing)));
        assert!(is_big_news(&ready(false, Reason::Warming), &ready(true, Reason::Available)));
    }
}
