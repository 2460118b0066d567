//! The PodGroups of a job.

use std::collections::BTreeMap;

use k8s_openapi::api::scheduling::v1beta1::{GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec};
use larder_api::names::JOB_ATTEMPT_LABEL;
use serde_json::json;

use super::known::KnownGroup;
use crate::jobs::machine::{Stage, State, Terms};
use crate::jobs::render::{Rendered, metadata};
use crate::write::{Change, Write, to_text};
use larder_kube::kinds::Kind;

/// The group of an attempt's pods, for `Place::group`; `None` if the attempt needs none.
pub fn of_attempt(job: &str, attempt: u32, state: &State, terms: &Terms, there: &[&KnownGroup]) -> Option<String> {
    let name = name(job, attempt);
    // Late pods join an existing group, although they are no longer needed together.
    let is_there = there.iter().any(|group| group.meta.key.name == name && !group.meta.deleting);
    (is_there || needed(state, terms).get(&attempt).is_some_and(|pods| *pods >= 2)).then_some(name)
}

/// The writes that bring the groups to their desired state. Groups that pods depend on come first.
pub fn changes(
    rendered: &Rendered<'_>,
    state: &State,
    terms: &Terms,
    priority_class: Option<&str>,
    there: &[&KnownGroup],
) -> Vec<Write> {
    let needed = if state.phase.has_pods() { needed(state, terms) } else { BTreeMap::new() };
    let mut changes = Vec::new();
    let write = |name: &str, change: Change| Write::new(Kind::PodGroup, rendered.namespace, name, change);
    for (attempt, pods) in &needed {
        let name = name(rendered.name, *attempt);
        let min_count = i32::try_from(*pods).unwrap_or(i32::MAX).max(1);
        match there.iter().find(|group| group.meta.key.name == name && group.owner == rendered.uid) {
            Some(group) if min_count < group.min_count && !group.meta.deleting => {
                let fields = json!({"spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}});
                changes.push(write(&name, Change::Merge(fields)));
            }
            Some(_) => {}
            // If a group of another owner has the name, the API server rejects the write, and the job reports it.
            None if *pods >= 2 => {
                let group = group(rendered, name.clone(), *attempt, min_count, priority_class);
                changes.push(write(&name, Change::Make(to_text(&group))));
            }
            None => {}
        }
    }
    let is_current =
        |group: &KnownGroup| needed.keys().any(|attempt| group.meta.key.name == name(rendered.name, *attempt));
    let past = there.iter().filter(|group| group.owner == rendered.uid && !group.meta.deleting && !is_current(group));
    changes.extend(past.map(|group| write(&group.meta.key.name, Change::Delete(group.meta.uid.clone()))));
    changes
}

fn name(job: &str, attempt: u32) -> String {
    format!("{job}-{attempt}")
}

fn group(
    rendered: &Rendered<'_>,
    name: String,
    attempt: u32,
    min_count: i32,
    priority_class: Option<&str>,
) -> PodGroup {
    let mut metadata = metadata(rendered, name);
    metadata.labels.get_or_insert_default().insert(JOB_ATTEMPT_LABEL.to_owned(), attempt.to_string());
    PodGroup {
        metadata,
        spec: PodGroupSpec {
            // The scheduler requires that all pods of a group have the group's priority.
            priority_class_name: priority_class.map(str::to_owned),
            scheduling_policy: PodGroupSchedulingPolicy {
                gang: Some(GangSchedulingPolicy { min_count }),
                ..PodGroupSchedulingPolicy::default()
            },
            ..PodGroupSpec::default()
        },
        status: None,
    }
}

/// Per attempt that has pods: how many of them must start together. This is the `min` of each role, less the pods of
/// other attempts and the pods that have succeeded.
fn needed(state: &State, terms: &Terms) -> BTreeMap<u32, usize> {
    let mut needed = BTreeMap::new();
    for (_, slot) in state.slots() {
        needed.entry(slot.attempt).or_insert(0);
    }
    for (slots, role) in state.roles.iter().zip(&terms.roles) {
        let least = (role.min.max(1) as usize).min(slots.len());
        for (attempt, needed) in &mut needed {
            let mine = slots.iter().filter(|slot| slot.attempt == *attempt);
            let others = slots.len() - mine.clone().count();
            let done = mine.filter(|slot| slot.stage == Stage::Done).count();
            *needed += least.saturating_sub(others + done);
        }
    }
    needed
}
