//! A large cluster that is made up, and how long answers take there: for `larder bench extender`, and for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use larder_dataset::SnapshotId;
use serde_json::json;

use crate::admin::Counters;
use crate::config::Settings;
use crate::http::verbs::{Failure, Verbs};
use crate::index::facts::{CacheFacts, DatasetFacts, Held, Name, NodeFacts, PodFacts, Read, VolumeFacts};
use crate::index::{Event, Facts, Index, Kind, Object};
use crate::ring::Verb;

/// The bytes of each dataset.
pub const BYTES: u64 = 1_000_000;
/// How many datasets each node has something of.
const HELD: usize = 20;
/// How many events come between two snapshots when much happens: 5,000 a second.
const BATCH: usize = 10;

/// How large a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its nodes.
    pub nodes: usize,
    /// Its datasets; every third is in shared caches.
    pub datasets: usize,
    /// Its pods that have a node; every tenth reads a dataset.
    pub pods: usize,
}

impl Size {
    /// The cluster for which the bounds of PERFORMANCE.md hold.
    pub const LARGE: Self = Self { nodes: 5_000, datasets: 1_000, pods: 50_000 };

    fn node(self, number: usize) -> Name {
        format!("node-{:05}", number % self.nodes.max(1)).into()
    }

    fn dataset(self, number: usize) -> Name {
        format!("team-{}/dataset-{number}", number % 10).into()
    }

    /// All that the API has of it.
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
            all(Kind::Cache, self.nodes, &|number| (self.node(number), Facts::Cache(self.cache(number, 0)))),
            all(Kind::Pod, self.pods, &|number| {
                let pod = self.pod(number);
                (Arc::clone(&pod.key), Facts::Pod(pod))
            }),
            all(Kind::Job, 0, &|_| (Name::default(), Facts::Node(NodeFacts::default()))),
        ]
    }

    fn cache(self, number: usize, more: u64) -> CacheFacts {
        let held = |nth: usize| Held {
            snapshot: snapshot((number * 7 + nth * 13) % self.datasets.max(1)),
            bytes: BYTES * (nth as u64 % 10 + 1) / 10 + more,
            wanted: BYTES,
            comes: nth.is_multiple_of(2),
        };
        let mut held: Vec<Held> = (0..HELD.min(self.datasets)).map(held).collect();
        held.sort_by_key(|held| held.snapshot.0);
        held.dedup_by_key(|held| held.snapshot.0);
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

    /// An event of the everyday: a pod that comes, or a node that reports a little more.
    pub fn event(self, number: usize, version: u64) -> Event {
        let object = if number.is_multiple_of(2) {
            let pod = self.pod(self.pods + number);
            Object { key: Arc::clone(&pod.key), version, facts: Facts::Pod(pod) }
        } else {
            let facts = Facts::Cache(self.cache(number, version));
            Object { key: self.node(number), version, facts }
        };
        let kind = if number.is_multiple_of(2) { Kind::Pod } else { Kind::Cache };
        Event::Changed(kind, Box::new(object))
    }

    /// A request about `names` nodes for a pod that reads a dataset, or none.
    pub fn request(self, names: usize, dataset: Option<usize>) -> Bytes {
        let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "{\"kind\":\"Pod\"}"});
        self.request_with(names, dataset, &annotations)
    }

    /// The same for a pod that requires its data.
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

fn snapshot(number: usize) -> SnapshotId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(number as u64).to_le_bytes());
    SnapshotId(id)
}

fn dataset(number: usize) -> DatasetFacts {
    DatasetFacts {
        uid: format!("uid-{number}").into(),
        snapshot: Some(snapshot(number)),
        bytes: BYTES,
        copies: number.is_multiple_of(3).then_some(1),
        ..DatasetFacts::default()
    }
}

fn node(number: usize) -> NodeFacts {
    let (zone, rack) = (format!("zone-{}", number % 3), format!("rack-{}", number % 40));
    NodeFacts { zone: zone.into(), rack: rack.into(), devices: [8].into() }
}

/// How long something took, each time that it was done.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// The duration that this percentage of them did not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        self.0.iter().sum::<Duration>() / u32::try_from(self.0.len().max(1)).unwrap_or(u32::MAX)
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Filter and prioritize together, of 500 names.
    pub some: Times,
    /// The same of all names.
    pub all: Times,
    /// The same of all names for a pod that requires its data, which few nodes have.
    pub required: Times,
    /// The same of 500 names for a pod that reads nothing.
    pub none: Times,
    /// An event that comes alone, with what it costs to show it to readers.
    pub event: Times,
    /// An event of ten that are shown together.
    pub batched: Times,
}

/// Measures answers and events in a cluster of a size, `rounds` times each, without the network.
pub fn measure(size: Size, rounds: usize) -> Result<Measured, Failure> {
    let settings = Arc::new(Settings::default());
    let mut index = Index::new(settings.devices.iter().map(|device| device.resource.clone()).collect());
    for event in size.events() {
        index.apply(event);
    }
    let shown = Arc::new(ArcSwap::from(index.show()));
    let (verbs, _keeper) = Verbs::new(settings, Arc::clone(&shown), Arc::new(Counters::default()));
    let ask = |times: &mut Times, request: Bytes| {
        let begun = Instant::now();
        verbs.answer(Verb::Filter, request.clone())?;
        verbs.answer(Verb::Prioritize, request)?;
        times.0.push(begun.elapsed());
        Ok::<(), Failure>(())
    };
    let mut measured = Measured::default();
    let mut version = 1;
    for round in 0..rounds {
        let dataset = Some(round % size.datasets.max(1));
        ask(&mut measured.some, size.request(500, dataset))?;
        ask(&mut measured.all, size.request(size.nodes, dataset))?;
        ask(&mut measured.required, size.requiring(size.nodes, dataset))?;
        ask(&mut measured.none, size.request(500, None))?;
        for (times, events) in [(&mut measured.event, 1), (&mut measured.batched, BATCH)] {
            let first = version + 1;
            version += events;
            let events: Vec<Event> = (first..=version).map(|number| size.event(number, number as u64)).collect();
            let (count, begun) = (events.len() as u32, Instant::now());
            events.into_iter().for_each(|event| index.apply(event));
            shown.store(index.show());
            times.0.push(begun.elapsed() / count);
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cluster_is_measured_as_a_large_one_is() {
        let size = Size { nodes: 20, datasets: 6, pods: 100 };
        let measured = measure(size, 10).unwrap();
        let Measured { some, all, required, none, event, batched } = &measured;
        for times in [some, all, required, none, event, batched] {
            assert_eq!(times.0.len(), 10);
            assert!(times.percentile(50) <= times.percentile(99) && times.percentile(100) >= times.mean());
        }
    }

    #[test]
    #[ignore = "prints the durations of a large cluster, for people"]
    fn durations_of_a_large_cluster() {
        let measured = measure(Size::LARGE, 2_000).unwrap();
        let rss = std::fs::read_to_string("/proc/self/status").unwrap();
        let rss = rss.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default().to_owned();
        for (what, times) in [
            ("500 names", &measured.some),
            ("all names", &measured.all),
            ("all names, data required", &measured.required),
            ("500 names, no dataset", &measured.none),
            ("event", &measured.event),
            ("event of ten", &measured.batched),
        ] {
            println!("{what}: mean {:?}, p50 {:?}, p99 {:?}", times.mean(), times.percentile(50), times.percentile(99));
        }
        println!("{rss}");
    }
}
