//! The decision about one dataset: from a view of the cluster to the writes. It is pure, so any controller makes the
//! same decision about the same cluster, no matter what its predecessor had begun.
//!
//! A pass runs the steps of [`decide`] in this order: `import` finds the snapshot; `place` and `warm_requests` choose
//! the nodes; `quota` withdraws promises that the namespace's quota has no room for; `import` switches to the next
//! snapshot once they hold it; `warm` fills them; `claims` and `follow` give the dataset to pods; `cleaning` drops
//! bytes on request; `mirrors` copies the snapshot to other origins; `report` writes the status. Each step reads the
//! results of the previous steps in the `Draft`, and adds writes. Nothing is written that already exists.

pub mod cache_quotas;
mod claims;
mod cleaning;
mod follow;
mod import;
mod in_use;
pub mod inline_registry;
pub mod input;
mod mirrors;
mod names;
pub mod node_labels;
mod origin;
mod place;
mod pods;
mod quota;
mod removal;
mod report;
pub mod slots;
mod status_draft;
mod task;
#[cfg(test)]
mod tests;
mod warm;
mod warm_requests;

use std::collections::BTreeSet;

use larder_api::names::{DatasetKey, FINALIZER};
use larder_api::{CheckedSpec, DatasetStatus, Reason, rights};
use serde_json::json;

use crate::datasets::input::{DatasetView, Decision};
use crate::objects::DatasetObject;
use crate::write::{Change, Write};
use larder_kube::kinds::Kind;
use status_draft::Draft;

pub fn decide(view: &DatasetView<'_>) -> Decision {
    let Some(dataset) = view.dataset else {
        let mut decision = Decision::default();
        claims::refuse_all(view, &mut decision);
        warm_requests::refuse_all(view, &mut decision);
        return decision;
    };
    if dataset.meta.deleting {
        let mut decision = removal::decide(view, dataset);
        claims::refuse_ungranted(view, dataset, &mut decision);
        warm_requests::refuse_all(view, &mut decision);
        return decision;
    }
    let mut decision = Decision::default();
    let finalizers = dataset.dataset.metadata.finalizers.as_deref().unwrap_or_default();
    let key = &dataset.meta.key;
    let is_new = !finalizers.iter().any(|name| name == FINALIZER);
    if is_new {
        let fields = json!({"metadata": {"finalizers": [FINALIZER], "uid": dataset.meta.uid}});
        decision.writes.push(Write::new(Kind::Dataset, &key.namespace, &key.name, Change::Apply(fields)));
    }
    let status = dataset.dataset.status.clone().unwrap_or_default();
    let checked = check(view, dataset);
    let spec = match checked {
        Ok(spec) => spec,
        Err((reason, message)) => {
            claims::refuse_ungranted(view, dataset, &mut decision);
            warm_requests::hold(view, dataset, reason, &mut decision);
            return report::refused(view, dataset, status, decision, reason, message);
        }
    };
    let mut draft = Draft {
        view,
        dataset,
        spec,
        status,
        verdicts: Vec::new(),
        decision,
        switch: None,
        only_requested: BTreeSet::new(),
        only_pinned: BTreeSet::new(),
        requested: BTreeSet::new(),
        urgent: BTreeSet::new(),
    };
    import::step(&mut draft);
    place::step(&mut draft);
    warm_requests::step(&mut draft);
    place::pin(&mut draft);
    quota::step(&mut draft);
    import::switch(&mut draft);
    warm::step(&mut draft);
    claims::step(&mut draft);
    follow::step(&mut draft);
    cleaning::step(&mut draft);
    mirrors::step(&mut draft);
    report::step(&mut draft);
    let mut decision = draft.decision;
    if is_new {
        // Without its finalizer, the dataset could be deleted and leave the created objects behind.
        let makes = |write: &&mut Write| matches!(write.change, Change::Create(_)) && write.kind != Kind::Event;
        for write in decision.writes.iter_mut().filter(makes).filter(|write| write.needs.is_none()) {
            write.needs = Some((Kind::Dataset, key.name.clone()));
        }
    }
    decision
}

/// The checked spec, if the dataset is allowed to have it.
fn check(view: &DatasetView<'_>, dataset: &DatasetObject) -> Result<CheckedSpec, (Reason, String)> {
    let (key, spec) = (&dataset.meta.key, &dataset.dataset.spec);
    let checked = spec.check().map_err(|error| (Reason::InvalidSpec, error.to_string()))?;
    let key = DatasetKey::new(&key.namespace, &key.name);
    match rights::check(&key, spec, &view.settings.endpoints) {
        Ok(()) => Ok(checked),
        Err(error) => Err((Reason::NotAllowed, error.to_string())),
    }
}

/// True if the spec names another source than the one that was imported. The new source may still be empty.
pub fn has_moved(spec: &CheckedSpec, status: Option<&DatasetStatus>) -> bool {
    status.is_some_and(|status| origin::has_moved(spec, status))
}

/// The entry of a dataset in the file that resolves inline volumes. It names the snapshot's own manifest, because the
/// file reaches nodes later than the current manifest does.
pub fn inline_attributes(
    spec: &CheckedSpec,
    status: Option<&DatasetStatus>,
) -> std::collections::BTreeMap<&'static str, String> {
    let snapshot = status.and_then(|status| status.snapshot.as_deref());
    let imported = status.and_then(|status| status.imported.as_ref());
    let by_nodes = imported.is_none_or(|imported| imported.by_nodes);
    let source = match snapshot {
        Some(snapshot) if !by_nodes => origin::kept_manifest(spec, snapshot),
        _ => origin::current_source(spec),
    };
    origin::attributes(spec, &source)
}
