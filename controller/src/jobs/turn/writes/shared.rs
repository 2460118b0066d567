//! The objects that all pods of a job share: claims, the Service, the Secret, and the files in a ConfigMap.

use super::Writer;
use crate::jobs::machine::Action;
use crate::jobs::render::{Renderer, claims, secret, service};
use crate::write::Change;
use larder_kube::kinds::Kind;

/// The minimum interval between two changes of a job's files.
const FILES_SECONDS: i64 = 5;

impl Writer<'_> {
    /// The objects that all pods share, before the first pod and whenever all pods are recreated; and the files
    /// whenever they change.
    pub(super) fn share(&mut self) {
        let Some(rendered) = self.job.rendered().filter(|_| self.job.state().phase.has_pods()) else { return };
        let creates = self.decided.actions.iter().any(|action| matches!(action, Action::Create { .. }));
        let oldest = self.job.state().slots().map(|(pod, _)| pod.attempt).min();
        let equips = creates && self.job.job_state.equipped != oldest;
        if equips {
            for claim in claims(&rendered) {
                self.make(Kind::Claim, claim.metadata.name.clone(), &claim);
            }
            if let Some(service) = service(&rendered) {
                self.make(Kind::Service, service.metadata.name.clone(), &service);
            }
            if rendered.kind.launcher.is_some()
                && let Some(secret) = secret(&rendered, (self.draw)().as_bytes())
            {
                self.make(Kind::Secret, secret.metadata.name.clone(), &secret);
            }
            self.pending.equipped = oldest;
        }
        if rendered.kind.files.is_empty() && rendered.kind.launcher.is_none() {
            return;
        }
        let facts = self.facts();
        let now = self.view.now;
        if let Some((before, at)) = &self.job.job_state.files {
            if *before == facts && !equips {
                return;
            }
            let due = *at + FILES_SECONDS;
            if !creates && now < due {
                self.output.changes.unrendered.clone_from(&self.job.job_state.unrendered);
                self.output.again.note(due);
                return;
            }
        }
        let files = Renderer::new(rendered, &facts).config_map();
        if let Some(files) = self.made(files).flatten() {
            let name = files.metadata.name.clone().unwrap_or_default();
            let value = serde_json::to_value(&files).unwrap_or_default();
            self.add_first(Kind::ConfigMap, &name, Change::Apply(value));
            self.pending.files = Some((facts, now));
        }
    }
}
