//! Drops cached bytes on request: the annotation `larder.dev/clean` is a time, and bytes that were last used before it
//! are dropped.
//!
//! Each NodeCache that reports bytes of the dataset gets an entry. The entries stay until the status reports that all
//! nodes have acted. A controller that starts in between therefore finds them, and a node that fetches bytes again is
//! not asked a second time. Even a repeated request would keep bytes that were used after the time.

use k8s_openapi::jiff::Timestamp;
use larder_api::names::CLEAN_ANNOTATION;
use larder_api::{CleanedSnapshot, ConditionKind, PromisedDataset, Reason};

use super::origin;
use super::status_draft::{Draft, time};
use crate::datasets::input::NodeFacts;
use crate::objects::CacheObject;
use crate::time::Seconds;

pub(super) fn step(draft: &mut Draft<'_>) {
    let annotations = draft.dataset.dataset.metadata.annotations.as_ref();
    let Some(asked) = annotations.and_then(|annotations| annotations.get(CLEAN_ANNOTATION)) else { return };
    if draft.status.cleaned.as_ref() == Some(asked) {
        return;
    }
    if origin::is_folder(&draft.spec) {
        return refuse(draft, "has no effect on a directory (file://): only its nodes know its snapshots".to_owned());
    }
    let Ok(before) = asked.parse::<Timestamp>() else {
        let given: String = asked.chars().take(64).collect();
        let what =
            format!("is {given:?} and must be a time such as 2026-01-31T09:00:00Z (`date -u +%FT%TZ` prints it)");
        return refuse(draft, what);
    };
    // Bytes that are fetched after the time must stay, so the time must be past before any bytes are dropped.
    let before = Seconds(before.as_second());
    if draft.view.now < before {
        return draft.decision.again(before);
    }
    let status = &draft.status;
    let mut snapshots: Vec<&String> = status.snapshots.iter().map(|known| &known.id).collect();
    snapshots.extend(status.snapshot.iter().chain(&status.next));
    snapshots.sort();
    snapshots.dedup();
    let owner = draft.dataset.cache_owner().to_owned();
    let entry =
        |snapshot: &String| CleanedSnapshot { snapshot: snapshot.clone(), owner: owner.clone(), before: time(before) };
    let mut waits = false;
    let mut clean = Vec::new();
    // A node that is not ready may never be ready again, so it is not waited for.
    for facts in draft.view.nodes.iter().filter(|facts| facts.node.ready && !facts.node.meta.deleting) {
        let Some(cache) = facts.cache else { continue };
        let goes = |entry: &CleanedSnapshot| goes(facts, cache, &draft.dataset.meta.uid, entry);
        let entries: Vec<_> = snapshots.iter().map(|snapshot| entry(snapshot)).filter(goes).collect();
        if !entries.is_empty() {
            waits |= !has_acted(cache, &entries);
            clean.push((facts.node.meta.key.name.clone(), entries));
        }
    }
    draft.decision.clean.extend(clean);
    draft.decision.is_cleaning = waits;
    if !waits {
        draft.status.cleaned = Some(asked.clone());
    }
}

fn refuse(draft: &mut Draft<'_>, what: String) {
    if draft.found(ConditionKind::Degraded).is_none() {
        draft.find(ConditionKind::Degraded, true, Reason::InvalidClean, format!("{CLEAN_ANNOTATION} {what}"));
    }
}

/// True if the node has bytes of the snapshot, or was already asked to drop them. Bytes that are promised to another
/// dataset stay.
fn goes(facts: &NodeFacts<'_>, cache: &CacheObject, uid: &str, entry: &CleanedSnapshot) -> bool {
    let has = facts.snapshot(&entry.snapshot).is_some_and(|cached| cached.bytes > 0);
    let is_same = |there: &PromisedDataset| (&there.snapshot, &there.owner) == (&entry.snapshot, &entry.owner);
    let is_anothers = facts.promised.iter().any(|there| there.uid != uid && is_same(there));
    (has || is_asked(cache, entry)) && !is_anothers
}

/// True if the node's spec has the entry, or an entry of another dataset with a later time.
fn is_asked(cache: &CacheObject, entry: &CleanedSnapshot) -> bool {
    let is_same = |there: &&CleanedSnapshot| (&there.snapshot, &there.owner) == (&entry.snapshot, &entry.owner);
    cache.spec.clean.iter().filter(is_same).any(|there| there.before.0 >= entry.before.0)
}

/// True once the node's larderd has seen the entries and has dropped the bytes that are not mounted.
fn has_acted(cache: &CacheObject, entries: &[CleanedSnapshot]) -> bool {
    let observed = cache.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
    observed >= cache.generation && entries.iter().all(|entry| is_asked(cache, entry))
}
