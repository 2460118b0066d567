//! Nodes, cut to the fields that decisions need.

use std::collections::BTreeMap;

use crate::key::{Key, Meta};
use crate::pod::amounts::Amounts;
use crate::store::Stored;

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its name and version.
    pub meta: Meta,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The kubelet is well.
    pub ready: bool,
    /// No new pods may go there.
    pub unschedulable: bool,
    /// Its taints: pods that do not tolerate them stay away.
    pub taints: Vec<Taint>,
    /// All that pods may request on it.
    pub allocatable: Amounts,
    /// Since when the kubelet is not well.
    pub unready_since: Option<i64>,
    /// What its condition `larder.dev/DeviceFault` says, if it has one.
    pub device_fault: Option<bool>,
}

/// A taint of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// One of `NoSchedule`, `PreferNoSchedule` and `NoExecute`.
    pub effect: String,
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
