//! The deletion of a dataset: its users keep it until they end. After that, everything that was created for it is
//! deleted, the finalizer last.

use larder_api::names::{DatasetKey, FINALIZER};
use serde_json::json;

use super::in_use::existing_promises;
use super::report;
use crate::datasets::input::{DatasetView, Decision};
use crate::objects::DatasetObject;
use crate::write::{Change, Write};
use larder_kube::kinds::Kind;

pub(super) fn decide(view: &DatasetView<'_>, dataset: &DatasetObject) -> Decision {
    let mut decision = Decision::default();
    let mut delete = |kind, namespace: &str, name: &str, uid: &str| {
        decision.writes.push(Write::new(kind, namespace, name, Change::Delete(uid.to_owned())));
    };
    for job in view.jobs.iter().filter(|job| !job.meta.deleting) {
        delete(Kind::Job, &job.meta.key.namespace, &job.meta.key.name, &job.meta.uid);
    }
    // Kubernetes keeps a claim while a pod uses it, and does not give it to new pods.
    let own = view.claims.iter().filter(|claim| claim.role.is_some());
    for claim in own.clone().filter(|claim| !claim.meta.deleting) {
        delete(Kind::Claim, &claim.meta.key.namespace, &claim.meta.key.name, &claim.meta.uid);
    }
    if !view.users.is_empty() {
        decision.promises = existing_promises(view, dataset);
        report::in_use(view, dataset, &mut decision);
        return decision;
    }
    for volume in view.volumes.iter().filter(|volume| !volume.meta.deleting) {
        delete(Kind::Volume, "", &volume.meta.key.name, &volume.meta.uid);
    }
    // A volume is deleted with its claim, which may be in another namespace that does not know of the deletion.
    let has_volumes = view.volumes.iter().any(|volume| !volume.meta.deleting);
    let left = own.count() > 0 || has_volumes || !view.jobs.is_empty() || is_on_a_node(view, dataset);
    let finalizers = dataset.dataset.metadata.finalizers.as_deref().unwrap_or_default();
    if !left && finalizers.iter().any(|name| name == FINALIZER) {
        let others: Vec<&String> = finalizers.iter().filter(|name| *name != FINALIZER).collect();
        // The resource version makes the write fail if another client has added a finalizer in the meantime.
        let fields = json!({"metadata": {"finalizers": others, "resourceVersion": dataset.meta.version.to_string()}});
        let key = &dataset.meta.key;
        decision.writes.push(Write::new(Kind::Dataset, &key.namespace, &key.name, Change::Merge(fields)));
    }
    decision
}

/// True while a node promises room to the dataset or has its label.
fn is_on_a_node(view: &DatasetView<'_>, dataset: &DatasetObject) -> bool {
    let key = &dataset.meta.key;
    let label = DatasetKey::new(&key.namespace, &key.name).node_label();
    view.nodes.iter().any(|facts| {
        let promised =
            facts.cache.is_some_and(|cache| cache.spec.datasets.iter().any(|there| there.uid == dataset.meta.uid));
        promised || label.as_ref().is_ok_and(|label| facts.node.labels.contains_key(label))
    })
}
