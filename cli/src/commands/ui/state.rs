//! The state that the page shows: this machine's mounts and a cluster's objects, as they were read last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::cluster::{ClusterView, Reader};
use crate::cluster::Cluster;
use crate::machine::Machine;

/// How often the parts are read.
const MACHINE_EVERY: Duration = Duration::from_secs(1);
const CLUSTER_EVERY: Duration = Duration::from_secs(5);
/// Nothing is read once no page has asked for this long.
const UNASKED: Duration = Duration::from_secs(10);

/// A part of the state as JSON, and how often it has changed.
#[derive(Debug)]
struct Part {
    version: u64,
    json: Arc<str>,
}

impl Default for Part {
    fn default() -> Self {
        Self { version: 0, json: "null".into() }
    }
}

impl Part {
    fn put(&mut self, value: &impl Serialize) {
        // Maps of these types have strings as keys, so they can be written.
        let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        if *self.json != *json {
            (self.version, self.json) = (self.version + 1, json.into());
        }
    }
}

#[derive(Debug)]
struct Parts {
    machine: Part,
    cluster: Part,
    /// When a page asked last.
    asked: Instant,
}

/// The parts that were read last.
#[derive(Debug)]
pub(super) struct State {
    parts: Mutex<Parts>,
    has_cluster: bool,
}

impl State {
    pub(super) fn new(has_cluster: bool) -> Self {
        let (machine, cluster) = (Part::default(), Part::default());
        Self { parts: Mutex::new(Parts { machine, cluster, asked: Instant::now() }), has_cluster }
    }

    /// The state as JSON, without the parts of which the page has these versions.
    pub(super) fn news(&self, has: [u64; 2]) -> String {
        let mut parts = self.lock();
        parts.asked = Instant::now();
        let each = [&parts.machine, &parts.cluster];
        let (versions, texts) = (each.map(|part| part.version), each.map(|part| Arc::clone(&part.json)));
        drop(parts);
        let news = |at: usize| if versions[at] == has[at] { "null" } else { &*texts[at] };
        format!(
            r#"{{"versions":[{},{}],"has_cluster":{},"machine":{},"cluster":{}}}"#,
            versions[0],
            versions[1],
            self.has_cluster,
            news(0),
            news(1)
        )
    }

    fn is_asked(&self) -> bool {
        self.lock().asked.elapsed() < UNASKED
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads this machine's mounts in a thread of its own, until the process ends: a mount may hang.
pub(super) fn follow_machine(state: Arc<State>) {
    std::thread::spawn(move || {
        let mut machine = Machine::default();
        loop {
            if state.is_asked() {
                let mounts = machine.look();
                state.lock().machine.put(&mounts);
            }
            std::thread::sleep(MACHINE_EVERY);
        }
    });
}

/// Reads the objects of a cluster again and again.
pub(super) async fn follow_cluster(state: Arc<State>, cluster: Cluster) {
    let mut reader = Reader::new(cluster);
    loop {
        if state.is_asked() {
            let view = reader.read().await.unwrap_or_else(|error| ClusterView::failed(&error));
            state.lock().cluster.put(&view);
        }
        tokio::time::sleep(CLUSTER_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_page_gets_the_parts_that_it_does_not_have() {
        let state = State::new(true);
        let news = |has| serde_json::from_str::<Value>(&state.news(has)).unwrap();
        assert_eq!(news([0, 0]), json!({"versions": [0, 0], "has_cluster": true, "machine": null, "cluster": null}));
        state.lock().machine.put(&json!(["a"]));
        state.lock().machine.put(&json!(["a"]));
        assert_eq!(news([0, 0])["machine"], json!(["a"]));
        assert_eq!((&news([1, 0])["machine"], &news([1, 0])["versions"]), (&Value::Null, &json!([1, 0])));
        state.lock().cluster.put(&json!({}));
        assert_eq!(news([1, 0])["cluster"], json!({}));
        // A page of an earlier run of the command has other versions.
        assert_eq!(news([7, 7])["machine"], json!(["a"]));
    }
}
