//! Deployments that follow the dataset: a new snapshot changes an annotation of their pod templates, so Kubernetes
//! rolls them.

use larder_api::names::SNAPSHOT_ANNOTATION;
use serde_json::json;

use super::status_draft::Draft;
use crate::write::Change;
use larder_kube::kinds::Kind;

pub(super) fn step(draft: &mut Draft<'_>) {
    let Some(snapshot) = draft.status.snapshot.clone() else { return };
    let view = draft.view;
    for deployment in &view.deployments {
        if deployment.snapshot == snapshot || deployment.meta.deleting {
            continue;
        }
        let fields = json!({"spec": {"template": {"metadata": {"annotations": {SNAPSHOT_ANNOTATION: snapshot}}}}});
        let key = &deployment.meta.key;
        draft.write(Kind::Deployment, &key.namespace, &key.name, Change::Merge(fields));
    }
}
