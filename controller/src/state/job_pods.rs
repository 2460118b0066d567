//! Pods of training jobs: what they use of nodes, and their progress.

use super::State;
use super::affected::{put_into, take_from};
use super::watched::{Watched, kept};
use crate::jobs::usage::Usage;
use crate::objects::Pod;
use crate::read;
use crate::work_queue::Work;
use larder_kube::api::DynamicObject;
use larder_kube::key::Key;
use larder_kube::store::Store;
use serde_json::Error;

impl Watched for Pod {
    kept!(pods, read::pod);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        let before = state.pods.get(&key).cloned();
        put_into(&mut state.pods, self, &state.datasets, &state.claims, work);
        state.pod_changed(before.as_ref(), &key, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        let before = state.pods.get(key).cloned();
        take_from(&mut state.pods, key, &state.datasets, &state.claims, work);
        state.pod_changed(before.as_ref(), key, work);
    }

    fn leaves(state: &mut State, key: &Key, uid: &str, work: &mut Vec<Work>) {
        state.pods.mark_deleting(key, uid);
        if let Some(of_job) = state.pods.get(key).and_then(|pod| pod.of_job.as_ref()) {
            state.jobs.wake(&of_job.job);
        }
        work.push(Work::Jobs);
    }
}

impl State {
    fn pod_changed(&mut self, before: Option<&Pod>, key: &Key, work: &mut Vec<Work>) {
        let now = self.pods.get(key);
        let matters = |pod: &Pod| {
            let uses = (Usage::node_of(pod).map(str::to_owned), pod.requests.clone());
            (uses, pod.of_job.clone(), pod.queued.clone(), pod.meta.clone())
        };
        if before.map(matters) == now.map(matters) {
            return;
        }
        self.jobs.usage.changed(key, before.and_then(Usage::node_of), now);
        let (old, new) = (before.and_then(|pod| pod.of_job.as_ref()), now.and_then(|pod| pod.of_job.as_ref()));
        self.jobs.pod_changed(key, old, new);
        // Those that wait in queues may take the room of any pod.
        let has_queued = !self.jobs.queued.is_empty();
        if now.is_some_and(|pod| pod.queued.is_some()) {
            self.jobs.queued.insert(key.clone());
        } else {
            self.jobs.queued.remove(key);
        }
        old.iter().chain(&new).for_each(|of_job| self.jobs.wake(&of_job.job));
        if !self.jobs.jobs.is_empty() || old.or(new).is_some() || has_queued || !self.jobs.queued.is_empty() {
            work.push(Work::Jobs);
        }
    }
}
