//! The only reader of pods: it turns an object from the API into a typed pod, and answers the questions that several
//! programs have about a pod. Each program reduces the pod to the fields that it keeps.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec};
use kube::api::DynamicObject;
use larder_api::names::CSI_DRIVER;

use crate::fields::{readable, second_of};

pub mod amounts;
pub mod node_affinity;
pub mod requests;

/// Reads a pod. A field that cannot be read is left out, and the error says why: the rest counts, since the pod uses room
/// on its node all the same.
pub fn read(object: DynamicObject) -> (Pod, Option<serde_json::Error>) {
    let (spec, of_spec) = readable(&object.data["spec"]);
    let (status, of_status) = readable(&object.data["status"]);
    (Pod { metadata: object.metadata, spec, status }, of_spec.or(of_status))
}

/// The node that a pod is bound to; empty if it is not bound yet.
pub fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// The node on which the scheduler is preempting pods for this pod; empty if there is none.
pub fn nominated_node(pod: &Pod) -> &str {
    let nominated = pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    nominated.filter(|_| node(pod).is_empty()).unwrap_or_default()
}

/// The phase of a pod; empty if it has none yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// True if the pod has ended: no container runs or will run again.
pub fn has_ended(pod: &Pod) -> bool {
    ["Succeeded", "Failed"].contains(&phase(pod))
}

/// The condition `kind` of a pod, if it has this status.
pub fn condition<'p>(pod: &'p Pod, kind: &str, status: &str) -> Option<&'p PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind && condition.status == status)
}

/// True if the scheduler has found that it cannot bind a pod.
pub fn is_refused(pod: &Pod) -> bool {
    condition(pod, "PodScheduled", "False").is_some_and(|there| there.reason.as_deref() == Some("Unschedulable"))
}

/// When a pod got its node, in seconds since 1970. Until then, when it was created.
pub fn bound_at(pod: &Pod) -> i64 {
    let created = pod.metadata.creation_timestamp.as_ref();
    second_of(condition(pod, "PodScheduled", "True").map_or(created, |there| there.last_transition_time.as_ref()))
}

/// A volume of a pod through which it may read a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataVolume<'p> {
    /// The name of a claim in the pod's namespace.
    Claim(&'p str),
    /// The dataset that an inline volume of Larder's driver names.
    Inline(&'p str),
}

/// The volumes of a pod through which it may read datasets, in the order of the spec.
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
        let pod = read(object(spec, json!({"conditions": null, "phase": null, "containerStatuses": null})));
        let (pod, None) = pod else { panic!("{pod:?}") };
        assert_eq!((node(&pod), phase(&pod), has_ended(&pod)), ("", "", false));
        assert_eq!(data_volumes(pod.spec.as_ref().unwrap()).count(), 0);
        assert_eq!(condition(&pod, "Ready", "True"), None);
    }

    #[test]
    fn a_field_that_cannot_be_read_is_left_out_of_the_pod() {
        let (pod, error) = read(object(json!({"containers": 3, "nodeName": "n1"}), json!({"phase": "Failed"})));
        assert_eq!((node(&pod), has_ended(&pod), pod.metadata.name.as_deref()), ("n1", true, Some("p")));
        assert!(error.is_some());
        let (pod, error) = read(object(json!({"nodeName": "n1"}), json!({"phase": 3})));
        assert_eq!((node(&pod), phase(&pod)), ("n1", ""));
        assert!(error.is_some());
    }

    #[test]
    fn volumes_of_data_are_claims_and_those_of_larders_driver() {
        let csi = |driver: &str| json!({"csi": {"driver": driver, "volumeAttributes": {"dataset": "pets"}}});
        let volumes = json!([
            {"persistentVolumeClaim": {"claimName": "mine"}}, csi(CSI_DRIVER), csi("another"), {"emptyDir": {}},
            {"csi": {"driver": CSI_DRIVER}},
        ]);
        let pod = read(object(json!({"volumes": volumes}), json!({}))).0;
        let found: Vec<DataVolume<'_>> = data_volumes(pod.spec.as_ref().unwrap()).collect();
        assert_eq!(found, [DataVolume::Claim("mine"), DataVolume::Inline("pets")]);
    }

    #[test]
    fn a_pod_with_a_node_is_nominated_to_none() {
        let status = || json!({"nominatedNodeName": "n1"});
        assert_eq!(nominated_node(&read(object(json!({}), status())).0), "n1");
        assert_eq!(nominated_node(&read(object(json!({"nodeName": "n2"}), status())).0), "");
    }
}
