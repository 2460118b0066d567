//! The only reader of nodes. It reduces a node to the fields that decisions need.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
pub use k8s_openapi::api::core::v1::Taint;
use kube::Resource;
use kube::api::DynamicObject;
use larder_api::names::DEVICE_FAULT_CONDITION;

use crate::fields::{Parts, meta, second_of};
use crate::key::{Key, Meta};
use crate::pod::amounts::Amounts;
use crate::pod::requests::amounts;
use crate::store::Stored;

/// A node, reduced to the fields that decisions need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The node's name and version.
    pub meta: Meta,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
    /// True if the kubelet reports the node as ready.
    pub ready: bool,
    /// True if the node is cordoned: no new pods are scheduled to it.
    pub unschedulable: bool,
    /// The node's taints, without the times at which they were added.
    pub taints: Vec<Taint>,
    /// The amounts that pods may request on the node.
    pub allocatable: Amounts,
    /// Since when the node is not ready, in seconds since 1970; `None` if it is ready.
    pub unready_since: Option<i64>,
    /// The value of the node's condition `larder.dev/DeviceFault`, if it has one.
    pub device_fault: Option<bool>,
}

type NodeParts = Parts<v1::NodeSpec, v1::NodeStatus>;

impl Node {
    /// Reads a node.
    ///
    /// # Errors
    /// A field does not have the type that Kubernetes gives it.
    pub fn read(mut object: DynamicObject) -> Result<Self, serde_json::Error> {
        let parts = Parts::read(object.data.take())?;
        Ok(Self::cut(object, parts))
    }

    /// Reads a node. A spec or a status that cannot be read counts as absent.
    pub fn read_leniently(mut object: DynamicObject) -> Self {
        let parts = Parts::read_leniently(object.data.take());
        Self::cut(object, parts)
    }

    fn cut(mut object: DynamicObject, parts: NodeParts) -> Self {
        let (meta, labels) = (meta(&object), object.meta_mut().labels.take().unwrap_or_default());
        let (spec, status) = (parts.spec.unwrap_or_default(), parts.status.unwrap_or_default());
        let conditions = status.conditions.unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
        let is_true = |condition: &v1::NodeCondition| condition.status == "True";
        let reported = condition("Ready");
        let ready = reported.is_some_and(is_true);
        // A node whose kubelet has never reported counts as not ready since its creation.
        let changed = reported.map_or(meta.created, |reported| second_of(reported.last_transition_time.as_ref()));
        Self {
            labels,
            ready,
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.into_iter().flatten().map(|taint| Taint { time_added: None, ..taint }).collect(),
            allocatable: amounts(status.allocatable.iter().flatten()),
            unready_since: (!ready).then_some(changed),
            device_fault: condition(DEVICE_FAULT_CONDITION).map(is_true),
            meta,
        }
    }
}

impl Stored for Node {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value, status: Value) -> Result<Node, serde_json::Error> {
        let metadata = json!({"name": "n1", "labels": {"zone": "a"}, "creationTimestamp": "1970-01-01T00:00:07Z"});
        Node::read(serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap())
    }

    fn with_conditions(conditions: Value) -> Node {
        read(json!({}), json!({"conditions": conditions})).unwrap()
    }

    #[test]
    fn a_node_is_not_ready_since_its_condition_or_since_it_was_created() {
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:09Z"}]);
        let unknown = json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-01T00:00:09Z"}]);
        let without_time = json!([{"type": "Ready", "status": "False", "lastTransitionTime": null}]);
        for (conditions, expected) in [
            (ready, (true, None)),
            (unknown, (false, Some(9))),
            (without_time, (false, Some(0))),
            (json!([]), (false, Some(7))),
            (Value::Null, (false, Some(7))),
        ] {
            let node = with_conditions(conditions.clone());
            assert_eq!((node.ready, node.unready_since), expected, "{conditions}");
        }
    }

    #[test]
    fn a_device_fault_is_unknown_without_its_condition() {
        let fault = |status: &str| json!([{"type": "larder.dev/DeviceFault", "status": status}]);
        assert_eq!(with_conditions(json!([])).device_fault, None);
        assert_eq!(with_conditions(fault("True")).device_fault, Some(true));
        assert_eq!(with_conditions(fault("False")).device_fault, Some(false));
    }

    #[test]
    fn amounts_that_cannot_be_read_and_lists_that_are_null_count_as_nothing() {
        let node = read(json!({"taints": null}), json!({"allocatable": {"cpu": "4", "memory": "much", "pods": 110}}));
        let node = node.unwrap();
        assert_eq!(node.allocatable, [("cpu", 4000), ("pods", 110)].into_iter().collect());
        assert_eq!((node.taints.len(), node.labels["zone"].as_str()), (0, "a"));
    }

    #[test]
    fn the_time_of_a_taint_makes_no_other_node() {
        let tainted = |time: &str| {
            let taint = json!({"key": "gpu", "effect": "NoExecute", "timeAdded": time});
            read(json!({"taints": [taint]}), json!({})).unwrap()
        };
        assert_eq!(tainted("2026-01-01T00:00:00Z"), tainted("2026-01-02T00:00:00Z"));
    }
}
