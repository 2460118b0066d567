//! The part of the main loop that handles other clusters.

use std::collections::BTreeMap;

use larder_api::names::HERE;
use larder_kube::key::Key;

use super::Control;
use super::links::Target;
use crate::clusters::elsewhere::Outcome;
use crate::clusters::known::Link;
use crate::time::Millis;
use crate::work_queue::Work;
use crate::write::Write;

/// The interval between two heartbeats of this cluster.
const HEARTBEAT_MILLIS: u64 = 10_000;

impl Control {
    /// Starts a link to each Cluster, and ends those of Clusters that are gone or have changed.
    pub(super) fn follow_clusters(&mut self, now: Millis) {
        let others = self.state.clusters.objects.iter().filter(|to| to.meta.key.name != HERE).filter_map(|to| {
            let target = Target { uid: to.meta.uid.clone(), secret: to.secret.clone()? };
            Some((to.meta.key.name.clone(), target))
        });
        let wanted: BTreeMap<String, Target> = others.collect();
        self.links.retain(&wanted);
        self.state.clusters.links.retain(|name, _| self.links.has(name));
        for (name, target) in wanted {
            if !self.links.has(&name) {
                let number = self.links.start(&name, target);
                self.state.clusters.links.insert(name.clone(), Link::new(number, now));
            }
            self.add(Work::Cluster(name), now);
        }
        self.add(Work::Jobs, now);
    }

    /// Passes on the desired state of each cluster.
    pub(super) fn publish(&self) {
        self.links.publish(|cluster| self.state.desired(cluster));
    }

    /// The status of a Cluster. That of this cluster has a heartbeat.
    pub(super) fn plan_cluster(&mut self, name: &str, now: Millis) -> Vec<Write> {
        self.state.clusters.now = now;
        let writes = self.state.cluster_status(name, self.seconds());
        if !writes.is_empty() {
            self.add(Work::Cluster(name.to_owned()), now + HEARTBEAT_MILLIS);
        }
        writes
    }

    /// The writes about a job that may run in other clusters.
    pub(super) fn plan_elsewhere(&mut self, key: &Key, now: Millis) -> Vec<Write> {
        self.state.clusters.now = now;
        let time = self.seconds();
        let Outcome { writes, leaves, again_at } = self.state.elsewhere(key, time);
        self.again(Work::Elsewhere(key.clone()), again_at, time, now);
        if leaves.is_some() {
            // The cluster gets no newer lease before the copy is gone.
            self.publish();
        }
        writes
    }
}
