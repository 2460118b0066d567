//! All pods of the cluster over the whole time of a test, and the rules that must hold at every change of a pod.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1;
use larder_api::names::{JOB_ATTEMPT_LABEL, JOB_INDEX_LABEL, JOB_LABEL, JOB_ROLE_LABEL};
use larder_kube::runtime::{WatchStreamExt, watcher};
use larder_kube::{Api, Client};

use crate::bed::{GPU, QUEUE_LABEL};

/// The most recently observed state of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The TrainingJob and its uid; empty for a foreign pod.
    pub(crate) job: String,
    pub(crate) job_uid: String,
    pub(crate) role: String,
    pub(crate) index: u32,
    pub(crate) attempt: u32,
    pub(crate) queue: String,
    pub(crate) gpus: u64,
    pub(crate) node: String,
    pub(crate) phase: String,
    pub(crate) is_ready: bool,
    pub(crate) is_leaving: bool,
    /// The pod was deleted.
    pub(crate) is_gone: bool,
}

impl Pod {
    fn of(pod: v1::Pod) -> Self {
        let (meta, spec, status) = (pod.metadata, pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let labels = meta.labels.unwrap_or_default();
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let number = |key: &str| label(key).parse().unwrap_or_default();
        let gpus = |container: &v1::Container| {
            let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
            limits.and_then(|limits| limits.get(GPU)).map_or(0, |gpus| gpus.0.parse().expect("a whole number"))
        };
        let is_ready = |condition: &v1::PodCondition| condition.type_ == "Ready" && condition.status == "True";
        Self {
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            job: label(JOB_LABEL),
            job_uid: meta.owner_references.iter().flatten().map(|owner| owner.uid.clone()).collect(),
            role: label(JOB_ROLE_LABEL),
            index: number(JOB_INDEX_LABEL),
            attempt: number(JOB_ATTEMPT_LABEL),
            queue: label(QUEUE_LABEL),
            gpus: spec.containers.iter().map(gpus).sum(),
            node: spec.node_name.unwrap_or_default(),
            is_ready: status.conditions.iter().flatten().any(is_ready),
            phase: status.phase.unwrap_or_default(),
            is_leaving: meta.deletion_timestamp.is_some(),
            is_gone: false,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The pod is not supposed to end.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_gone && !self.is_leaving && !self.has_ended()
    }

    pub(crate) fn is_bound(&self) -> bool {
        !self.node.is_empty()
    }

    /// Its job, role and index.
    pub(crate) fn place(&self) -> (&str, &str, u32) {
        (&self.job_uid, &self.role, self.index)
    }
}

/// A rule returns what is wrong now, if anything. It sees all existing pods and all earlier ones.
pub(crate) type Rule = Box<dyn FnMut(&BTreeMap<String, Pod>, Instant) -> Option<String> + Send>;

#[derive(Default)]
struct History {
    /// By uid.
    pods: BTreeMap<String, Pod>,
    rules: Vec<Rule>,
    breaches: Vec<String>,
}

impl History {
    fn take(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod);
        self.check();
    }

    /// The complete list of pods: a restarted watch does not report the deletions that it missed.
    fn take_all(&mut self, listed: Vec<Pod>) {
        self.pods.values_mut().for_each(|pod| pod.is_gone = true);
        self.pods.extend(listed.into_iter().map(|pod| (pod.uid.clone(), pod)));
        self.check();
    }

    fn check(&mut self) {
        let now = Instant::now();
        for rule in &mut self.rules {
            self.breaches.extend(rule(&self.pods, now));
        }
    }
}

/// The pods of the cluster, watched until this is dropped.
pub(crate) struct Pods {
    history: Arc<Mutex<History>>,
    task: tokio::task::JoinHandle<()>,
}

impl Pods {
    pub(crate) fn watch(client: &Client) -> Self {
        let history = Arc::new(Mutex::new(History::default()));
        let (api, of_task) = (Api::<v1::Pod>::all(client.clone()), Arc::clone(&history));
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
            let mut listed = Vec::new();
            while let Some(event) = events.next().await {
                let mut history = of_task.lock().expect("no rule panics");
                match event {
                    Ok(watcher::Event::Apply(pod)) => history.take(Pod::of(pod)),
                    Ok(watcher::Event::Delete(pod)) => history.take(Pod { is_gone: true, ..Pod::of(pod) }),
                    Ok(watcher::Event::Init) => listed.clear(),
                    Ok(watcher::Event::InitApply(pod)) => listed.push(Pod::of(pod)),
                    Ok(watcher::Event::InitDone) => history.take_all(std::mem::take(&mut listed)),
                    Err(error) => eprintln!("the watch of the pods goes on after: {error}"),
                }
            }
        });
        Self { history, task }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no rule panics")
    }

    /// Requires that a rule holds from now on.
    pub(crate) fn require(&self, rule: impl FnMut(&BTreeMap<String, Pod>, Instant) -> Option<String> + Send + 'static) {
        self.history().rules.push(Box::new(rule));
    }

    /// All existing pods and all earlier ones.
    pub(crate) fn ever(&self) -> Vec<Pod> {
        self.history().pods.values().cloned().collect()
    }

    /// The live pods of a job, sorted by index.
    pub(crate) fn live(&self, job: &str) -> Vec<Pod> {
        let mut pods = self.ever();
        pods.retain(|pod| pod.job == job && pod.is_live());
        pods.sort_by(|one, other| one.place().cmp(&other.place()));
        pods
    }

    /// True if this many pods of the job are ready.
    pub(crate) fn are_ready(&self, job: &str, count: usize) -> bool {
        let live = self.live(job);
        live.len() == count && live.iter().all(|pod| pod.is_ready)
    }

    /// True if no rule was broken.
    pub(crate) fn keep_rules(&self) -> bool {
        let mut history = self.history();
        history.check();
        history.breaches.is_empty()
    }

    /// Panics if a rule was broken.
    pub(crate) fn assert_rules(&self) {
        let breaches = {
            let mut history = self.history();
            history.check();
            history.breaches.clone()
        };
        assert!(
            breaches.is_empty(),
            "{} breaches, the first: {:#?}",
            breaches.len(),
            &breaches[..breaches.len().min(5)]
        );
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::run_once;

    #[test]
    fn a_pod_that_went_while_nothing_was_watched_does_not_run_on() {
        let pod =
            |uid: &str| Pod { uid: uid.to_owned(), name: uid.to_owned(), job: "job".to_owned(), ..Pod::default() };
        let mut history = History { rules: vec![Box::new(run_once())], ..History::default() };
        history.take_all(vec![pod("first")]);
        history.take_all(vec![pod("second")]);
        assert_eq!(history.breaches, [""; 0]);
        history.take(pod("third"));
        assert_eq!(history.breaches, ["second and third are both to run"]);
    }
}
