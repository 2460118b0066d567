//! The pods of a job, and their PodGroups.

use std::collections::BTreeMap;

use larder_api::Phase;
use larder_api::names::JOB_SERVING_LABEL;
use serde_json::{Value, json};

use super::Writer;
use crate::jobs::cluster_view::Seen;
use crate::jobs::machine::{Action, PodId};
use crate::jobs::pod_group::choice::Planner;
use crate::jobs::pod_group::groups::{changes, of_attempt};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_turns::pod_weight;
use crate::jobs::render::{Place, Renderer};
use crate::write::{Change, Write, to_text};
use larder_kube::kinds::Kind;

impl Writer<'_> {
    /// The PodGroups of its pods, before the first of them.
    pub(super) fn group(&mut self, there: &[&KnownGroup]) {
        let Some(rendered) = self.job.rendered() else { return };
        if self.job.planner() != Planner::Native && there.is_empty() {
            return;
        }
        let class = self.job.job_state.profile.as_ref().and_then(|profile| profile.priority_class.as_deref());
        for write in changes(&rendered, self.job.state(), &self.job.observed.terms, class, there) {
            match write.change {
                Change::Make(_) if self.job.planner() != Planner::Native => {}
                Change::Make(_) => self.add_first(write.kind, &write.name, write.change),
                change => self.add(write.kind, &write.name, change),
            }
        }
    }

    pub(super) fn pods(&mut self, groups: &[&KnownGroup]) {
        let seen: BTreeMap<PodId, &Seen<'_>> = self.job.pods.iter().map(|seen| (seen.pod.id, seen)).collect();
        self.stop_serving();
        // The status may be rejected permanently. A job that has given up its pods, because of its spec or the queues,
        // must not keep them for that reason.
        let has_none = matches!(self.job.state().phase, Phase::Queued | Phase::Suspended);
        let is_recorded = has_none || self.job.job_state.written.as_ref() == Some(&self.job.job_state.record.gist());
        for action in &self.decided.actions {
            if let Action::Delete(id) = action
                && let Some(seen) = seen.get(id)
            {
                let meta = &seen.object.meta;
                let delete = Change::Delete(meta.uid.clone());
                if is_recorded {
                    let namespace = &self.job.object.meta.key.namespace;
                    self.output.writes.push(Write::new(Kind::Pod, namespace, &meta.key.name, delete));
                } else {
                    self.add(Kind::Pod, &meta.key.name, delete);
                }
            }
        }
        let (Some(rendered), Some(places)) = (self.job.rendered(), self.job.places()) else { return };
        let mut creates = self.decided.actions.iter().filter_map(|action| match action {
            Action::Create { pod, node } => Some((*pod, node.clone())),
            _ => None,
        });
        let Some(first) = creates.next().filter(|_| self.output.changes.unrendered.is_none()) else { return };
        let facts = self.facts();
        let renderer = Renderer::new(rendered, &facts);
        let has_leeway = self.job.state().has_leeway(&self.job.observed.terms);
        let (mut pods, mut weight) = (Vec::new(), 0);
        for (id, node) in std::iter::once(first).chain(creates) {
            let (Some(role), Some(place)) = (rendered.job.roles.get(id.role), places.get(id.role)) else { continue };
            // This looks at all slots, and most jobs have no groups.
            let terms = &self.job.observed.terms;
            let group = match self.job.planner() {
                Planner::Native => of_attempt(rendered.name, id.attempt, self.job.state(), terms, groups),
                Planner::Builtin => None,
            };
            let (node, preferred) = if has_leeway { (None, node) } else { (node, None) };
            let place = Place { node, preferred, group, ..place.clone() };
            // If one pod cannot be rendered, none is created: the others would wait for it in vain.
            let Some(pod) = self.made(renderer.pod(&role.name, id.index, id.attempt, &place)) else { return };
            let name = pod.metadata.name.clone().unwrap_or_default();
            let text = to_text(&pod);
            weight += pod_weight(&text);
            pods.push((name, text));
            // The others follow in later turns.
            if weight >= self.room {
                break;
            }
        }
        for (name, pod) in pods {
            self.add(Kind::Pod, &name, Change::Make(pod));
        }
    }

    /// Removes pods that are being replaced from the job's Service.
    fn stop_serving(&mut self) {
        let has_service = self.job.rendered().is_some_and(|rendered| rendered.kind.service.is_some());
        if !has_service || !self.job.state().phase.has_pods() {
            return;
        }
        let is_replaced = |id: PodId| {
            let slots = self.job.state().roles.get(id.role);
            let slot = slots.and_then(|slots| slots.get(id.index as usize));
            slot.is_some_and(|slot| slot.attempt != id.attempt)
        };
        let replaced: Vec<String> = self
            .job
            .pods
            .iter()
            .filter(|seen| seen.of_job.serves && !seen.pod.stage.has_ended() && is_replaced(seen.pod.id))
            .map(|seen| seen.object.meta.key.name.clone())
            .collect();
        for name in replaced {
            let labels: Value = [(JOB_SERVING_LABEL.to_owned(), Value::Null)].into_iter().collect();
            self.add(Kind::Pod, &name, Change::Merge(json!({"metadata": {"labels": labels}})));
        }
    }
}
