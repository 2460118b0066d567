//! All writes for a job after its step: its `status` first, then the objects that its pods share, then its `pods`.
//!
//! The status contains the decisions of the state machine before any action is taken, so that the next controller
//! process takes the same actions after a crash. Changes that alter no decision are delayed and written together.

mod pods;
mod shared;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use larder_api::InvalidField;
use larder_api::job_type::{Indexes, Outcome};
use serde_json::json;

use super::JobInRound;
use super::decide::Decided;
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::job_state::{Changes, Pending};
use crate::jobs::machine::{Action, PodStage, Stage};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_turns;
use crate::jobs::render::Facts;
use crate::time::Earliest;
use crate::write::{Change, Write, to_text};
use larder_kube::kinds::Kind;

/// The writes for a job, and what depends on them.
#[derive(Default)]
pub(super) struct Output {
    pub(super) writes: Vec<Write>,
    /// How the job's state changes because of them.
    pub(super) changes: Changes,
    /// When the next writes are due if nothing changes before.
    pub(super) again: Earliest,
}

/// The numbers of jobs on which it depends how long a status may wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct JobNumbers {
    pub(in crate::jobs) queued: usize,
    pub(in crate::jobs) starting: usize,
}

/// Collects all writes for a job, whose pods may weigh as much as there is `room`. `draw` generates the key of a
/// launcher.
pub(super) fn of(
    decided: &Decided<'_>,
    view: &ClusterView<'_>,
    numbers: JobNumbers,
    room: usize,
    draw: &dyn Fn() -> String,
) -> Output {
    let job = &decided.job;
    let (output, pending) = (Output::default(), Pending::default());
    let mut writer = Writer { decided, job, view, numbers, room, draw, output, pending, last: None };
    let groups: Vec<&KnownGroup> = view.jobs.groups.of(job.key()).collect();
    writer.status();
    writer.share();
    writer.group(&groups);
    writer.pods(&groups);
    writer.suspend();
    // The job's own writes do not depend on these.
    writer.output.writes.extend(decided.for_kueue.iter().cloned());
    writer.remove();
    writer.finish()
}

struct Writer<'w> {
    decided: &'w Decided<'w>,
    job: &'w JobInRound<'w>,
    view: &'w ClusterView<'w>,
    numbers: JobNumbers,
    /// The weight of the pods that it may create ([`pod_turns`]).
    room: usize,
    /// Generates the key of a launcher.
    draw: &'w dyn Fn() -> String,
    output: Output,
    /// Values that take effect once the writes have succeeded.
    pending: Pending,
    /// The write that the following writes depend on.
    last: Option<(Kind, String)>,
}

impl Writer<'_> {
    fn add(&mut self, kind: Kind, name: &str, change: Change) {
        let mut write = Write::new(kind, &self.job.key().namespace, name, change);
        write.needs.clone_from(&self.last);
        self.output.writes.push(write);
    }

    /// Adds a write that the following writes depend on.
    fn add_first(&mut self, kind: Kind, name: &str, change: Change) {
        self.add(kind, name, change);
        self.last = Some((kind, name.to_owned()));
    }

    /// Records a rendering error. The job reports it in its next status, and gets no more pods.
    fn made<T>(&mut self, rendered: Result<T, InvalidField>) -> Option<T> {
        match rendered {
            Ok(object) => Some(object),
            Err(error) => {
                if self.job.job_state.unrendered.is_none() {
                    self.output.again.note(self.view.now + 1);
                }
                self.output.changes.unrendered = Some(error.to_string());
                None
            }
        }
    }

    fn make(&mut self, kind: Kind, name: Option<String>, object: &impl serde::Serialize) {
        self.add_first(kind, &name.unwrap_or_default(), Change::Make(to_text(object)));
    }

    /// The facts with which pods and files are rendered.
    fn facts(&self) -> Facts {
        let state = self.job.state();
        let roles = &self.job.observed.terms.roles;
        let desired = roles.iter().zip(state.granted()).map(|(role, granted)| (role.name.clone(), granted));
        let mut ready: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for pod in self.job.observed.pods.iter().filter(|pod| pod.stage == PodStage::Ready) {
            if state.slot(pod.id).is_some()
                && let Some(role) = roles.get(pod.id.role)
            {
                ready.entry(role.name.clone()).or_default().insert(pod.id.index);
            }
        }
        Facts { desired: desired.collect(), ready, agent_image: self.view.image.to_owned() }
    }

    /// Suspends a job whose type is suspended on completion, such as an idle notebook.
    fn suspend(&mut self) {
        let Some(rendered) = self.job.rendered() else { return };
        let success = &rendered.kind.success;
        if success.then != Outcome::Suspend || rendered.job.suspend || !self.job.state().phase.has_pods() {
            return;
        }
        let roles = &rendered.job.roles;
        let decides = success.roles.iter().find_map(|name| roles.iter().position(|role| role.name == *name));
        let slots = decides.and_then(|role| self.job.state().roles.get(role)).map_or(&[][..], Vec::as_slice);
        let counted = match success.indexes {
            Indexes::First => &slots[..slots.len().min(1)],
            Indexes::All => slots,
        };
        if !counted.is_empty() && counted.iter().all(|slot| slot.stage == Stage::Done) {
            let meta = &self.job.object.meta;
            let fields = json!({"metadata": {"uid": meta.uid}, "spec": {"suspend": true}});
            self.add(Kind::TrainingJob, &meta.key.name, Change::Merge(fields));
        }
    }

    fn remove(&mut self) {
        if self.decided.actions.contains(&Action::Remove) {
            let meta = &self.job.object.meta;
            self.add(Kind::TrainingJob, &meta.key.name, Change::Delete(meta.uid.clone()));
        }
    }

    fn finish(self) -> Output {
        let Self { decided, job, view, mut output, mut pending, .. } = self;
        let changes = &mut output.changes;
        // While no object of the job is rendered, an earlier rendering error is still valid.
        if !job.phase().has_pods() {
            changes.unrendered.clone_from(&job.job_state.unrendered);
        }
        if !output.writes.is_empty() {
            pending.pod_weight = pod_turns::weight(&output.writes);
            changes.pending = Some(pending);
        } else if output.again.at().is_none() {
            changes.rest = decided.rest(view);
        }
        output
    }
}
