//! The one reader of pods: from an object as the API serves it to the typed pod, and the questions that several
//! programs have about one. Each program cuts the pod to the fields that it keeps.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use kube::api::DynamicObject;
use larder_api::names::CSI_DRIVER;

use crate::fields::Parts;

pub mod amounts;
pub mod node_affinity;
pub mod requests;

/// Reads a pod.
///
/// # Errors
/// A field has another type than in Kubernetes.
pub fn read(object: DynamicObject) -> Result<Pod, serde_json::Error> {
    Ok(pod(object.metadata, Parts::read(object.data)?))
}

/// Reads a pod. A spec or a status that cannot be read counts as absent.
pub fn read_leniently(object: DynamicObject) -> Pod {
    pod(object.metadata, Parts::read_leniently(object.data))
}

fn pod(metadata: kube::api::ObjectMeta, Parts { spec, status }: Parts<PodSpec, PodStatus>) -> Pod {
    Pod { metadata, spec, status }
}

/// The node that a pod has; empty if it has none yet.
pub fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// The node on which the scheduler makes room for a pod that has none yet; empty if there is no such node.
pub fn nominated_node(pod: &Pod) -> &str {
    let nominated = pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    nominated.filter(|_| node(pod).is_empty()).unwrap_or_default()
}

/// The phase of a pod; empty if it has none yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True if no container of the pod runs, or will run again.
pub fn has_ended(pod: &Pod) -> bool {
    ["Succeeded", "Failed"].contains(&phase(pod))
}

/// The condition `kind` of a pod, if it has this status.
pub fn condition<'p>(pod: &'p Pod, kind: &str, status: &str) -> Option<&'p PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind && condition.status == status)
}

/// A volume of a pod through which it may read a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataVolume<'p> {
    /// A claim of the pod's namespace.
    Claim(&'p str),
    /// An inline volume of Larder's driver, which names a dataset.
    Inline(&'p str),
}

/// The volumes of a pod through which it may read datasets, in their order.
pub fn data_volumes(spec: &PodSpec) -> impl Iterator<Item = DataVolume<'_>> {
    spec.volumes.iter().flatten().filter_map(|volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(DataVolume::Claim(&claim.claim_name));
        }
        let csi = volume.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER)?;
        csi.volume_attributes.as_ref()?.get("dataset").map(|dataset| DataVolume::Inline(dataset))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(spec: Value, status: Value) -> DynamicObject {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn lists_that_are_null_are_empty_and_unknown_fields_are_skipped() {
        let spec = json!({"containers": null, "volumes": null, "nodeName": null, "ofTomorrow": [{}]});
        let pod = read(object(spec, json!({"conditions": null, "phase": null, "containerStatuses": null}))).unwrap();
        assert_eq!((node(&pod), phase(&pod), has_ended(&pod)), ("", "", false));
        assert_eq!(data_volumes(pod.spec.as_ref().unwrap()).count(), 0);
        assert_eq!(condition(&pod, "Ready", "True"), None);
    }

    #[test]
    fn a_spec_that_cannot_be_read_leaves_the_status() {
        let odd = || object(json!({"containers": 3, "nodeName": "n1"}), json!({"phase": "Failed"}));
        assert!(read(odd()).is_err());
        let pod = read_leniently(odd());
        assert_eq!((node(&pod), has_ended(&pod)), ("", true));
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
    }

    #[test]
    fn volumes_of_data_are_claims_and_those_of_larders_driver() {
        let csi = |driver: &str| json!({"csi": {"driver": driver, "volumeAttributes": {"dataset": "pets"}}});
        let volumes = json!([
            {"persistentVolumeClaim": {"claimName": "mine"}}, csi(CSI_DRIVER), csi("another"), {"emptyDir": {}},
            {"csi": {"driver": CSI_DRIVER}},
        ]);
        let pod = read(object(json!({"volumes": volumes}), json!({}))).unwrap();
        let found: Vec<DataVolume<'_>> = data_volumes(pod.spec.as_ref().unwrap()).collect();
        assert_eq!(found, [DataVolume::Claim("mine"), DataVolume::Inline("pets")]);
    }

    #[test]
    fn a_pod_with_a_node_is_nominated_to_none() {
        let status = || json!({"nominatedNodeName": "n1"});
        assert_eq!(nominated_node(&read(object(json!({}), status())).unwrap()), "n1");
        assert_eq!(nominated_node(&read(object(json!({"nodeName": "n2"}), status())).unwrap()), "");
    }
}
