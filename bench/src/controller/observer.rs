//! Records when Datasets become ready and are deleted, and when labels of nodes are added and removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use larder_api::names::DatasetKey;
use larder_api::{ConditionKind, Dataset};
use larder_kube::runtime::watcher::Event;
use larder_kube::runtime::{WatchStreamExt, watcher};
use larder_kube::{Api, Client};
use tokio::task::JoinSet;

use crate::kubernetes::objects::{BENCH_LABEL, NAMESPACE};

/// The label's value on a node that has all bytes.
const ALL: &str = "100";

/// When each change was seen first.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) ready_nodes: BTreeSet<String>,
    pub(super) ready: BTreeMap<String, Instant>,
    pub(super) gone: BTreeMap<String, Instant>,
    /// The keys are node and dataset.
    pub(super) labelled: HashMap<(String, String), Instant>,
    pub(super) unlabelled: HashMap<(String, String), Instant>,
    /// Errors of the benchmark's own watches.
    pub(super) errors: Vec<String>,
}

impl Times {
    fn see(&mut self, dataset: Dataset, now: Instant) {
        let conditions = dataset.status.map(|status| status.conditions).unwrap_or_default();
        if ConditionKind::Ready.find(&conditions).is_some_and(|ready| ready.status == "True") {
            self.ready.entry(dataset.metadata.name.unwrap_or_default()).or_insert(now);
        }
    }
}

pub(super) struct Observer {
    times: Arc<Mutex<Times>>,
    /// Dropping the set ends the watches.
    _tasks: JoinSet<()>,
}

impl Observer {
    pub(super) fn start(client: &Client) -> Self {
        let times = Arc::new(Mutex::new(Times::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(nodes(Api::all(client.clone()), Arc::clone(&times)));
        tasks.spawn(datasets(Api::namespaced(client.clone(), NAMESPACE), Arc::clone(&times)));
        Self { times, _tasks: tasks }
    }

    /// The times so far. Hold the guard only briefly, because the watches wait for it.
    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.times)
    }
}

fn lock(times: &Mutex<Times>) -> MutexGuard<'_, Times> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn nodes(api: Api<Node>, times: Arc<Mutex<Times>>) {
    let config = watcher::Config::default().labels(BENCH_LABEL).page_size(100);
    let mut nodes = watcher::watcher(api, config).default_backoff().applied_objects().boxed();
    let mut before: HashMap<String, BTreeMap<String, String>> = HashMap::new();
    while let Some(node) = nodes.next().await {
        let now = Instant::now();
        let node = match node {
            Ok(node) => node,
            // The watch restarts with a new list, so no event is lost, but its time is late.
            Err(error) => {
                lock(&times).errors.push(format!("watch nodes: {error}"));
                continue;
            }
        };
        let name = node.metadata.name.unwrap_or_default();
        let labels: BTreeMap<String, String> = node.metadata.labels.unwrap_or_default().into_iter().collect();
        let labels: BTreeMap<String, String> = labels
            .into_iter()
            .filter_map(|(key, value)| Some((DatasetKey::of_node_label(&key)?.name, value)))
            .collect();
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let mut times = lock(&times);
        if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            times.ready_nodes.insert(name.clone());
        }
        for dataset in labels.iter().filter(|(_, value)| *value == ALL).map(|(dataset, _)| dataset) {
            times.labelled.entry((name.clone(), dataset.clone())).or_insert(now);
        }
        let before = before.entry(name.clone()).or_default();
        for dataset in before.keys().filter(|dataset| !labels.contains_key(*dataset)) {
            times.unlabelled.insert((name.clone(), dataset.clone()), now);
        }
        *before = labels;
    }
}

async fn datasets(api: Api<Dataset>, times: Arc<Mutex<Times>>) {
    let config = watcher::Config::default().page_size(100);
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let (mut known, mut listed) = (BTreeSet::new(), BTreeSet::new());
    while let Some(event) = events.next().await {
        let now = Instant::now();
        let mut times = lock(&times);
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(dataset)) => {
                listed.extend(dataset.metadata.name.clone());
                times.see(dataset, now);
            }
            Ok(Event::InitDone) => {
                // Datasets deleted while the watch was down are missing from the new list, without a Delete event.
                times.gone.extend(known.difference(&listed).map(|name: &String| (name.clone(), now)));
                known = std::mem::take(&mut listed);
            }
            Ok(Event::Apply(dataset)) => {
                known.extend(dataset.metadata.name.clone());
                times.see(dataset, now);
            }
            Ok(Event::Delete(dataset)) => {
                let name = dataset.metadata.name.unwrap_or_default();
                known.remove(&name);
                times.gone.insert(name, now);
            }
            Err(error) => times.errors.push(format!("watch Datasets: {error}")),
        }
    }
}
