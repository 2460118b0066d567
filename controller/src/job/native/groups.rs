//! The PodGroups of a job.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::{GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec};
use larder_controller_api::names::JOB_ATTEMPT_LABEL;
use serde_json::{Value, json};

use crate::job::machine::{Stage, State, Terms};
use crate::job::render::{Rendered, metadata};

/// A PodGroup that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownGroup {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The uid of the job that controls it; empty for somebody else's.
    pub owner: String,
    /// Its deletion was requested.
    pub deleting: bool,
    /// How many of its pods start together.
    pub min_count: i32,
    /// What the scheduler says of it.
    pub said: Option<Said>,
}

/// What the scheduler says of a group that has not started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// `Unschedulable` or `SchedulerError`.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

/// A write to a PodGroup.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupChange {
    /// Make this one, before its pods.
    Create(Box<PodGroup>),
    /// Merge these fields into the one of this name.
    Lower(String, Value),
    /// Delete the one of this name and uid.
    Delete(String, String),
}

/// Reads a PodGroup.
pub fn known(group: &PodGroup) -> KnownGroup {
    let metadata = &group.metadata;
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let conditions = group.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut waits = conditions.filter(|there| there.type_ == "PodGroupInitiallyScheduled" && there.status == "False");
    KnownGroup {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        owner: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        min_count: group.spec.scheduling_policy.gang.as_ref().map_or(0, |gang| gang.min_count),
        said: waits.next().map(|there| Said { reason: there.reason.clone(), message: there.message.clone() }),
    }
}

/// The group of the pods of an attempt, for `Place::group`; `None` if they need none.
pub fn of_attempt(job: &str, attempt: u32, state: &State, terms: &Terms, there: &[KnownGroup]) -> Option<String> {
    let name = name(job, attempt);
    // Pods that come late join those that have a group, though they need each other no longer.
    let is_there = there.iter().any(|group| group.name == name && !group.deleting);
    (is_there || needed(state, terms).get(&attempt).is_some_and(|pods| *pods >= 2)).then_some(name)
}

/// The writes that make the groups those that the job should have. Errors: a name is taken; the sentence says by what.
pub fn changes(
    rendered: &Rendered<'_>,
    state: &State,
    terms: &Terms,
    priority_class: Option<&str>,
    there: &[KnownGroup],
) -> Result<Vec<GroupChange>, String> {
    let needed = if state.phase.has_pods() { needed(state, terms) } else { BTreeMap::new() };
    let mut changes = Vec::new();
    for (attempt, pods) in &needed {
        let name = name(rendered.name, *attempt);
        let min_count = i32::try_from(*pods).unwrap_or(i32::MAX).max(1);
        match there.iter().find(|group| group.name == name) {
            Some(group) if group.owner != rendered.uid => {
                return Err(format!("the PodGroup {name} is not this job's: delete it"));
            }
            Some(group) if min_count < group.min_count && !group.deleting => {
                let fields = json!({"spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}});
                changes.push(GroupChange::Lower(name, fields));
            }
            Some(_) => {}
            None if *pods >= 2 => {
                let group = group(rendered, name, *attempt, min_count, priority_class);
                changes.push(GroupChange::Create(Box::new(group)));
            }
            None => {}
        }
    }
    let is_current = |group: &KnownGroup| needed.keys().any(|attempt| group.name == name(rendered.name, *attempt));
    let past = there.iter().filter(|group| group.owner == rendered.uid && !group.deleting && !is_current(group));
    changes.extend(past.map(|group| GroupChange::Delete(group.name.clone(), group.uid.clone())));
    Ok(changes)
}

/// True if the API server has kept the group of a pod. Where the feature is off, it drops the field and says nothing.
pub fn is_kept(made: &Pod) -> bool {
    made.spec.as_ref().is_some_and(|spec| spec.scheduling_group.is_some())
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
            // The scheduler takes pods of one priority only, that of their group.
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

/// How many pods of each attempt that the job has pods of must start together: what its roles need beside those of other attempts,
/// less those that have ended well.
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
