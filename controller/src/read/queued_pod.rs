//! Reads the fields of a pod that its queue needs.

use k8s_openapi::api::core::v1::Pod;
use larder_api::names::{PRIORITY_LABEL, QUEUE_GATE, QUEUE_LABEL};

use crate::objects::QueuedPod;
use crate::time::Seconds;
use larder_kube::fields::label;
use larder_kube::pod::node_affinity::Places;
use larder_kube::pod::requests::requests;
use larder_kube::pod::{bound_at, has_ended, is_refused};

/// Reads the fields of a pod that its queue needs; `None` without the label of a queue, or if the pod has ended.
pub(super) fn queued_pod(pod: &Pod) -> Option<QueuedPod> {
    let queue = label(pod, QUEUE_LABEL).filter(|_| !has_ended(pod))?;
    let spec = pod.spec.as_ref()?;
    let gates = spec.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str());
    let (own, others): (Vec<&str>, Vec<&str>) = gates.partition(|gate| *gate == QUEUE_GATE);
    Some(QueuedPod {
        queue: queue.to_owned(),
        named_priority: label(pod, PRIORITY_LABEL).unwrap_or_default().to_owned(),
        priority: spec.priority.unwrap_or_default(),
        requests: requests(spec),
        has_claims: spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
        is_refused: is_refused(pod),
        bound_at: Seconds(bound_at(pod)),
        places: Places::of(spec),
        gates: (!own.is_empty()).then(|| others.into_iter().map(str::to_owned).collect()),
    })
}
