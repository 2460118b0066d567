//! The draft of a decision, which is passed from step to step.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use larder_api::{CheckedSpec, ConditionKind, DatasetStatus, Reason};

use crate::datasets::input::{DatasetView, Decision};
use crate::objects::{DatasetObject, Key};
use crate::time::Seconds;
use crate::write::{Change, Write};
use larder_kube::kinds::Kind;

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) kind: ConditionKind,
    pub(super) status: bool,
    pub(super) reason: Reason,
    pub(super) message: String,
}

pub(super) struct Draft<'a> {
    pub(super) view: &'a DatasetView<'a>,
    pub(super) dataset: &'a DatasetObject,
    pub(super) spec: CheckedSpec,
    pub(super) status: DatasetStatus,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) decision: Decision,
    /// The purpose of the Job that publishes the next snapshot once nodes hold it.
    pub(super) switch: Option<String>,
    /// Nodes that hold a snapshot only for jobs that wait for it, and not because of `spec.nodes`.
    pub(super) only_requested: BTreeSet<(String, String)>,
    /// Nodes that keep their bytes of a snapshot only because they are pinned.
    pub(super) only_pinned: BTreeSet<(String, String)>,
    /// Nodes on which jobs wait for a snapshot, whether or not `spec.nodes` chose them too.
    pub(super) requested: BTreeSet<(String, String)>,
    /// Those of jobs with GPUs.
    pub(super) urgent: BTreeSet<(String, String)>,
}

impl Draft<'_> {
    pub(super) fn find(&mut self, kind: ConditionKind, status: bool, reason: Reason, message: impl Into<String>) {
        self.verdicts.push(Verdict { kind, status, reason, message: message.into() });
    }

    pub(super) fn found(&self, kind: ConditionKind) -> Option<&Verdict> {
        self.verdicts.iter().find(|verdict| verdict.kind == kind)
    }

    pub(super) fn key(&self) -> &Key {
        &self.dataset.meta.key
    }

    pub(super) fn uid(&self) -> &str {
        &self.dataset.meta.uid
    }

    pub(super) fn write(&mut self, kind: Kind, namespace: &str, name: &str, change: Change) {
        self.decision.writes.push(Write::new(kind, namespace, name, change));
    }

    /// Adds a write that is skipped if the write of the object `needs` is rejected.
    pub(super) fn write_with(&mut self, needs: (Kind, &str), kind: Kind, key: &Key, change: Change) {
        let write = Write::new(kind, &key.namespace, &key.name, change).needing(needs.0, needs.1);
        self.decision.writes.push(write);
    }
}

/// Converts a time to the API's type.
pub(super) fn time(at: Seconds) -> Time {
    Time(Timestamp::from_second(at.0).unwrap_or(Timestamp::UNIX_EPOCH))
}
