//! Pods as training jobs see them: what they take of nodes, and how far those of a job are.

use super::State;
use super::affected::{put_into, take_from};
use crate::jobs::usage::Usage;
use crate::objects::Pod;
use crate::work_queue::Work;
use larder_kube::key::Key;

impl State {
    pub(super) fn put_pod(&mut self, pod: Pod, work: &mut Vec<Work>) {
        let key = pod.meta.key.clone();
        let before = self.pods.get(&key).cloned();
        put_into(&mut self.pods, pod, &self.datasets, &self.claims, work);
        self.pod_changed(before.as_ref(), &key, work);
    }

    pub(super) fn take_pod(&mut self, key: &Key, work: &mut Vec<Work>) {
        let before = self.pods.get(key).cloned();
        take_from(&mut self.pods, key, &self.datasets, &self.claims, work);
        self.pod_changed(before.as_ref(), key, work);
    }

    /// The deletion of a pod was accepted.
    pub(super) fn pod_leaves(&mut self, key: &Key, uid: &str, work: &mut Vec<Work>) {
        self.pods.mark_deleting(key, uid);
        work.push(Work::Jobs);
    }

    fn pod_changed(&mut self, before: Option<&Pod>, key: &Key, work: &mut Vec<Work>) {
        let now = self.pods.get(key);
        let matters = |pod: &Pod| {
            (Usage::node_of(pod).map(str::to_owned), pod.requests.clone(), pod.of_job.clone(), pod.meta.clone())
        };
        if before.map(matters) == now.map(matters) {
            return;
        }
        self.jobs.usage.changed(key, before.and_then(Usage::node_of), now);
        let (old, new) = (before.and_then(|pod| pod.of_job.as_ref()), now.and_then(|pod| pod.of_job.as_ref()));
        self.jobs.pod_changed(key, old, new);
        old.iter().chain(&new).for_each(|of_job| self.jobs.wake(&of_job.job));
        if !self.jobs.jobs.is_empty() || old.or(new).is_some() {
            work.push(Work::Jobs);
        }
    }
}
