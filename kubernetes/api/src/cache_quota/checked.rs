//! The spec of a CacheQuota, validated and parsed.

use larder_dataset::size::parse_bytes;

use super::CacheQuotaSpec;
use crate::checked::InvalidField;
use crate::form::is_label;
use crate::node_cache::NodeQuota;

/// The spec of a CacheQuota, validated and parsed. An absent limit limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedQuota {
    /// The namespaces that share the limits.
    pub namespaces: Vec<String>,
    /// The room that nodes promise to their Datasets, over all nodes.
    pub promised_bytes: Option<u64>,
    /// The room that their datasets have on each node's disk.
    pub reserved_bytes_per_node: Option<u64>,
    /// The number of their Datasets.
    pub datasets: Option<u32>,
    /// The number of volumes that their pods mount on each node.
    pub mounts_per_node: Option<u32>,
    /// The number of their imports at a time.
    pub imports: Option<u32>,
}

impl CacheQuotaSpec {
    /// Checks every value. Errors: the first invalid field.
    pub fn check(&self) -> Result<CheckedQuota, InvalidField> {
        if self.namespaces.is_empty() || !self.namespaces.iter().all(|name| is_label(name, 63)) {
            return Err(InvalidField::new("spec.namespaces", "must list names of namespaces"));
        }
        let bytes = |field: &'static str, text: &Option<String>| {
            let parsed = text.as_deref().map(parse_bytes).transpose();
            parsed.map_err(|why| InvalidField::new(field, format!("is not valid: {why}")))
        };
        Ok(CheckedQuota {
            namespaces: self.namespaces.clone(),
            promised_bytes: bytes("spec.promisedBytes", &self.promised_bytes)?,
            reserved_bytes_per_node: bytes("spec.reservedBytesPerNode", &self.reserved_bytes_per_node)?,
            datasets: self.datasets,
            mounts_per_node: self.mounts_per_node,
            imports: self.imports,
        })
    }
}

impl CheckedQuota {
    /// True if the Datasets of `namespace` share the limits.
    pub fn is_for(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name == namespace)
    }

    /// The limits that each node enforces, under the quota's name; `None` if it has none of them.
    pub fn on_each_node(&self, name: &str) -> Option<NodeQuota> {
        let quota = NodeQuota {
            name: name.to_owned(),
            namespaces: self.namespaces.clone(),
            reserved_bytes: self.reserved_bytes_per_node,
            mounts: self.mounts_per_node,
            imports: self.imports,
        };
        let has_limit = quota.reserved_bytes.is_some() || quota.mounts.is_some() || quota.imports.is_some();
        has_limit.then_some(quota)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(spec: Value) -> Result<CheckedQuota, InvalidField> {
        serde_json::from_value::<CacheQuotaSpec>(spec).expect("of the schema's form").check()
    }

    #[test]
    fn an_absent_limit_limits_nothing_and_a_limit_of_zero_everything() {
        let none = checked(json!({"namespaces": ["team-a"]})).expect("valid");
        assert_eq!((none.promised_bytes, none.datasets, none.on_each_node("q")), (None, None, None));
        let zero = checked(json!({"namespaces": ["team-a"], "promisedBytes": "0", "mountsPerNode": 0}));
        let zero = zero.expect("valid");
        assert_eq!((zero.promised_bytes, zero.mounts_per_node), (Some(0), Some(0)));
        let on_node = zero.on_each_node("q").expect("a limit of the node");
        assert_eq!((on_node.mounts, on_node.reserved_bytes, on_node.imports), (Some(0), None, None));
    }

    #[test]
    fn nodes_get_the_limits_of_a_node_and_no_others() {
        let quota = checked(json!({
            "namespaces": ["team-a", "team-b"], "promisedBytes": "1.5TiB", "reservedBytesPerNode": "200 gib",
            "datasets": 3, "mountsPerNode": 4, "imports": 2,
        }))
        .expect("valid");
        assert!(quota.is_for("team-b") && !quota.is_for("team"));
        assert_eq!((quota.promised_bytes, quota.datasets), (Some(3 << 39), Some(3)));
        let expected = NodeQuota {
            name: "research".into(),
            namespaces: vec!["team-a".into(), "team-b".into()],
            reserved_bytes: Some(200 << 30),
            mounts: Some(4),
            imports: Some(2),
        };
        assert_eq!(quota.on_each_node("research"), Some(expected));
    }

    #[test]
    fn every_mistake_is_named_by_its_field() {
        for (field, spec) in [
            ("spec.namespaces", json!({"namespaces": []})),
            ("spec.namespaces", json!({"namespaces": ["*"]})),
            ("spec.promisedBytes", json!({"namespaces": ["a"], "promisedBytes": "much"})),
            ("spec.promisedBytes", json!({"namespaces": ["a"], "promisedBytes": "1Q"})),
            ("spec.reservedBytesPerNode", json!({"namespaces": ["a"], "reservedBytesPerNode": "999999999999999TiB"})),
        ] {
            let error = checked(spec.clone()).expect_err(field);
            assert_eq!(error.field, field, "{spec}: {error}");
        }
    }
}
