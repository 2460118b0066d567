//! The resources that pods use on each node, recomputed only for nodes that have changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::objects::Pod;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::store::Store;

/// The usage of all nodes.
#[derive(Debug, Default)]
pub struct Usage {
    pods: BTreeMap<String, BTreeSet<Key>>,
    used: BTreeMap<String, Amounts>,
    stale: BTreeSet<String>,
}

impl Usage {
    /// Applies a change of a pod: its node before, and the pod now.
    pub fn changed(&mut self, key: &Key, before: Option<&str>, now: Option<&Pod>) {
        let now = now.and_then(Self::node_of);
        self.stale.extend(before.into_iter().chain(now).map(str::to_owned));
        if let Some(pods) = before.and_then(|node| self.pods.get_mut(node)) {
            pods.remove(key);
        }
        if let Some(node) = now {
            self.pods.entry(node.to_owned()).or_default().insert(key.clone());
        }
    }

    /// The node whose room a pod uses: its own, or the node on which the scheduler makes room for it. Pods of training
    /// jobs count only on their own node, because their planned nodes are counted with their jobs.
    pub fn node_of(pod: &Pod) -> Option<&str> {
        let soon = Some(pod.nominated.as_str()).filter(|_| pod.of_job.is_none());
        let node = if pod.node.is_empty() { soon } else { Some(pod.node.as_str()) };
        node.filter(|node| !node.is_empty() && !pod.ended)
    }

    /// The pods that use the room of a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Key> {
        self.pods.get(node).into_iter().flatten()
    }

    /// Recomputes the total requests of the changed nodes' pods, including the `pods` resource.
    pub fn refresh(&mut self, pods: &Store<Pod>) {
        for node in std::mem::take(&mut self.stale) {
            let keys = self.pods.get(&node).into_iter().flatten();
            let here: Vec<&Pod> = keys.filter_map(|key| pods.get(key)).collect();
            if here.is_empty() {
                self.pods.remove(&node);
                self.used.remove(&node);
            } else {
                let mut used: Amounts = here.iter().map(|pod| &pod.requests).sum();
                used.add(&[("pods", 1)].into_iter().collect(), here.len() as u64);
                self.used.insert(node, used);
            }
        }
    }

    /// The usage of a node as of the last [`Self::refresh`]; `None`: nothing.
    pub fn of(&self, node: &str) -> Option<&Amounts> {
        self.used.get(node)
    }
}
