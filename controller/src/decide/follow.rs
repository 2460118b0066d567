//! Deployments that follow the dataset: a new snapshot changes an annotation of their pods, and Kubernetes rolls them.

use larder_controller_api::names::SNAPSHOT_ANNOTATION;
use serde_json::json;

use super::draft::Draft;
use crate::kinds::Kind;
use crate::write::Change;

pub(super) fn step(draft: &mut Draft<'_>) {
    let Some(snapshot) = draft.status.snapshot.clone() else { return };
    let world = draft.world;
    for deployment in &world.deployments {
        if deployment.snapshot == snapshot || deployment.meta.deleting {
            continue;
        }
        let fields = json!({"spec": {"template": {"metadata": {"annotations": {SNAPSHOT_ANNOTATION: snapshot}}}}});
        let key = &deployment.meta.key;
        draft.write(Kind::Deployment, &key.namespace, &key.name, Change::Merge(fields));
    }
}
