//! Records when the pods of jobs are created, bound, ended and deleted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use larder_api::names::{JOB_INDEX_LABEL, JOB_LABEL};
use larder_kube::runtime::watcher::Event;
use larder_kube::runtime::{WatchStreamExt, watcher};
use larder_kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;

use super::work::WORK_LABEL;
use crate::kubernetes::objects::NAMESPACE;

/// The times at which the watch first reported each change of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodTimes {
    pub(crate) work: String,
    /// The pod's index in its role; `None` for pods that Larder did not create.
    pub(crate) index: Option<u32>,
    pub(crate) node: Option<String>,
    pub(crate) bound: Option<Instant>,
    pub(crate) running: Option<Instant>,
    pub(crate) ended: Option<Instant>,
    pub(crate) gone: Option<Instant>,
}

/// All pods, by uid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pods(HashMap<String, PodTimes>);

#[cfg(test)]
impl FromIterator<(String, PodTimes)> for Pods {
    fn from_iter<T: IntoIterator<Item = (String, PodTimes)>>(pods: T) -> Self {
        Self(pods.into_iter().collect())
    }
}

impl Pods {
    pub(crate) fn all(&self) -> impl Iterator<Item = &PodTimes> {
        self.0.values()
    }

    /// The pods of one job.
    pub(crate) fn of<'a>(&'a self, work: &'a str) -> impl Iterator<Item = &'a PodTimes> {
        self.all().filter(move |pod| pod.work == work)
    }

    /// The number of pods that were ever bound.
    pub(crate) fn bound(&self) -> usize {
        self.all().filter(|pod| pod.bound.is_some()).count()
    }

    /// The number of pods that have succeeded or failed.
    pub(crate) fn ended(&self) -> usize {
        self.all().filter(|pod| pod.ended.is_some()).count()
    }

    /// When the last pod of each job was bound, for jobs of which `pods(job)` pods were bound.
    pub(crate) fn placed(&self, pods: impl Fn(&str) -> Option<u32>) -> BTreeMap<String, Instant> {
        let mut times: BTreeMap<&str, Vec<Instant>> = BTreeMap::new();
        for pod in self.all() {
            if let Some(bound) = pod.bound {
                times.entry(&pod.work).or_default().push(bound);
            }
        }
        let all = times.into_iter().filter_map(|(work, mut times)| {
            times.sort();
            let last = (pods(work)? as usize).checked_sub(1)?;
            Some((work.to_owned(), *times.get(last)?))
        });
        all.collect()
    }

    fn note(&mut self, pod: &Pod, is_gone: bool, now: Instant) {
        let Some(work) = pod.labels().get(WORK_LABEL).or_else(|| pod.labels().get(JOB_LABEL)) else { return };
        let index = pod.labels().get(JOB_INDEX_LABEL).and_then(|index| index.parse().ok());
        let work = work.clone();
        let new = PodTimes { work, index, node: None, bound: None, running: None, ended: None, gone: None };
        let times = self.0.entry(pod.metadata.uid.clone().unwrap_or_default()).or_insert(new);
        let first = |time: &mut Option<Instant>, is: bool| {
            if is {
                time.get_or_insert(now);
            }
        };
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            times.node.get_or_insert_with(|| node.clone());
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_bound = times.node.is_some();
        first(&mut times.bound, is_bound);
        first(&mut times.running, phase == Some("Running"));
        first(&mut times.ended, matches!(phase, Some("Succeeded" | "Failed")));
        first(&mut times.gone, is_gone);
    }
}

/// Watches the pods of the benchmark until it is dropped.
pub(crate) struct Observer {
    pods: Arc<Mutex<Pods>>,
    /// Dropping the set ends the watch.
    _tasks: JoinSet<()>,
}

impl Observer {
    pub(crate) fn start(client: &Client) -> Self {
        let pods = Arc::new(Mutex::new(Pods::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(Api::namespaced(client.clone(), NAMESPACE), Arc::clone(&pods)));
        Self { pods, _tasks: tasks }
    }

    /// The pods so far. Hold the guard only briefly, because the watch waits for it.
    pub(crate) fn pods(&self) -> MutexGuard<'_, Pods> {
        lock(&self.pods)
    }
}

fn lock(pods: &Mutex<Pods>) -> MutexGuard<'_, Pods> {
    pods.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(api: Api<Pod>, pods: Arc<Mutex<Pods>>) {
    let mut events = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let now = Instant::now();
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => lock(&pods).note(&pod, false, now),
            Ok(Event::Delete(pod)) => lock(&pods).note(&pod, true, now),
            Ok(Event::Init | Event::InitDone) => {}
            // The watch restarts with a new list, so events in between are recorded late.
            Err(error) => tracing::warn!(%error, "pod watch failed: some times may be too long"),
        }
    }
}
