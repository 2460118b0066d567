//! A generated large cluster, for `larder-bench extender` and for tests.

use std::sync::Arc;

use bytes::Bytes;
use larder_dataset::CacheId;
use serde_json::json;

use crate::index::facts::{CacheFacts, DatasetFacts, Held, Name, NodeFacts, PodFacts, Read, VolumeFacts};
use crate::index::{Event, Facts, Kind, Object};

/// The size of each dataset.
pub const BYTES: u64 = 1_000_000;
/// How many datasets each node holds a part of.
const HELD: usize = 20;

/// The size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Nodes.
    pub nodes: usize,
    /// Datasets; every third is in shared caches.
    pub datasets: usize,
    /// Pods that have a node; every tenth reads a dataset.
    pub pods: usize,
}

impl Size {
    fn node(self, number: usize) -> Name {
        format!("node-{:05}", number % self.nodes.max(1)).into()
    }

    fn dataset(self, number: usize) -> Name {
        format!("team-{}/dataset-{number}", number % 10).into()
    }

    /// The events that list the whole cluster.
    pub fn events(self) -> Vec<Event> {
        let all = |kind, count: usize, object: &dyn Fn(usize) -> (Name, Facts)| {
            let object = |number| {
                let (key, facts) = object(number);
                Object { key, version: 1, facts }
            };
            Event::All(kind, (0..count).map(object).collect())
        };
        vec![
            all(Kind::Dataset, self.datasets, &|number| (self.dataset(number), Facts::Dataset(dataset(number)))),
            all(Kind::Volume, self.datasets, &|number| {
                let key = self.dataset(number);
                let volume =
                    VolumeFacts { claim: Arc::clone(&key), dataset: Arc::clone(&key), uid: dataset(number).uid };
                (format!("volume-{number}").into(), Facts::Volume(volume))
            }),
            all(Kind::Node, self.nodes, &|number| (self.node(number), Facts::Node(node(number)))),
            all(Kind::NodeCache, self.nodes, &|number| (self.node(number), Facts::Cache(self.cache(number, 0)))),
            all(Kind::Pod, self.pods, &|number| {
                let pod = self.pod(number);
                (Arc::clone(&pod.key), Facts::Pod(pod))
            }),
            all(Kind::TrainingJob, 0, &|_| (Name::default(), Facts::Node(NodeFacts::default()))),
        ]
    }

    fn cache(self, number: usize, more: u64) -> CacheFacts {
        let held = |nth: usize| Held {
            cache: snapshot((number * 7 + nth * 13) % self.datasets.max(1)),
            bytes: BYTES * (nth as u64 % 10 + 1) / 10 + more,
            wanted: BYTES,
            comes: nth.is_multiple_of(2),
        };
        let mut held: Vec<Held> = (0..HELD.min(self.datasets)).map(held).collect();
        held.sort_by_key(|held| held.cache);
        held.dedup_by_key(|held| held.cache);
        CacheFacts { held: held.into(), cordon: None }
    }

    fn pod(self, number: usize) -> PodFacts {
        let team = number % 10;
        let reads = number.is_multiple_of(10) && self.datasets > 0;
        PodFacts {
            key: format!("team-{team}/pod-{number}").into(),
            uid: format!("00000000-0000-4000-8000-{number:012x}").into(),
            node: self.node(number),
            group: Some(format!("team-{team}/larder.dev/job=job-{}", number / 64).into()),
            requests: Arc::new([("cpu", 1_000 + number as u64 % 8 * 1_000), ("memory", 1 << 30)].into_iter().collect()),
            reads: if reads { [Read::Claim(self.dataset(number % self.datasets))].into() } else { Box::default() },
            ..PodFacts::default()
        }
    }

    /// A typical event: a new pod, or a node that reports slightly more bytes.
    pub fn event(self, number: usize, version: u64) -> Event {
        let object = if number.is_multiple_of(2) {
            let pod = self.pod(self.pods + number);
            Object { key: Arc::clone(&pod.key), version, facts: Facts::Pod(pod) }
        } else {
            let facts = Facts::Cache(self.cache(number, version));
            Object { key: self.node(number), version, facts }
        };
        let kind = if number.is_multiple_of(2) { Kind::Pod } else { Kind::NodeCache };
        Event::Changed(kind, Box::new(object))
    }

    /// A request about `names` nodes, for a pod that reads a dataset or none.
    pub fn request(self, names: usize, dataset: Option<usize>) -> Bytes {
        let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "{\"kind\":\"Pod\"}"});
        self.request_with(names, dataset, &annotations)
    }

    /// Like [`Self::request`], for a pod that requires its data.
    pub fn requiring(self, names: usize, dataset: Option<usize>) -> Bytes {
        self.request_with(names, dataset, &json!({"larder.dev/data": "required"}))
    }

    fn request_with(self, names: usize, dataset: Option<usize>, annotations: &serde_json::Value) -> Bytes {
        let key = dataset.map(|number| self.dataset(number));
        let (namespace, claim) = key.as_deref().and_then(|key| key.split_once('/')).unwrap_or(("team-0", "none"));
        let names: Vec<Name> = (0..names).map(|number| self.node(number * 11)).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let pod = json!({
            "metadata": {
                "name": "pod", "namespace": namespace, "uid": "u",
                "labels": {"app": "x", "larder.dev/job": "job-1"},
                "annotations": annotations,
            },
            "spec": {
                "schedulerName": "larder",
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}],
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
            },
        });
        Bytes::from(json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string())
    }
}

fn snapshot(number: usize) -> CacheId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(number as u64).to_le_bytes());
    CacheId(id)
}

fn dataset(number: usize) -> DatasetFacts {
    DatasetFacts {
        uid: format!("uid-{number}").into(),
        cache: Some(snapshot(number)),
        bytes: BYTES,
        copies: number.is_multiple_of(3).then_some(1),
        ..DatasetFacts::default()
    }
}

fn node(number: usize) -> NodeFacts {
    let (zone, rack) = (format!("zone-{}", number % 3), format!("rack-{}", number % 40));
    NodeFacts { zone: zone.into(), rack: rack.into(), devices: [8].into() }
}
