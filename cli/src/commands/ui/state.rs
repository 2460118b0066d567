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

/// A part of the state as JSON, how often it has changed, and when it was read.
#[derive(Debug)]
struct Part {
    version: u64,
    json: Arc<str>,
    read: Option<Instant>,
}

impl Default for Part {
    fn default() -> Self {
        Self { version: 0, json: "null".into(), read: None }
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

    /// The seconds since it was read, as JSON.
    fn age(&self) -> String {
        self.read.map_or("null".to_owned(), |read| read.elapsed().as_secs().to_string())
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

    /// The state as JSON, without the parts of which the page has these versions. The page compares the ages of the
    /// parts with a clock: an answer does not mean that they could be read.
    pub(super) fn news(&self, has: [u64; 2]) -> String {
        let mut parts = self.lock();
        parts.asked = Instant::now();
        let each = [&parts.machine, &parts.cluster];
        let (versions, texts) = (each.map(|part| part.version), each.map(|part| Arc::clone(&part.json)));
        let ages = each.map(Part::age).join(",");
        drop(parts);
        let news = |at: usize| if versions[at] == has[at] { "null" } else { &*texts[at] };
        format!(
            r#"{{"versions":[{},{}],"ages":[{ages}],"has_cluster":{},"machine":{},"cluster":{}}}"#,
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
                let mut parts = state.lock();
                parts.machine.put(&mounts);
                parts.machine.read = Some(Instant::now());
            }
            std::thread::sleep(MACHINE_EVERY);
        }
    });
}

/// Reads the objects of a cluster again and again.
pub(super) async fn follow_cluster(state: Arc<State>, cluster: Cluster) {
    let mut reader = Reader::new(cluster);
    let mut view = ClusterView::default();
    loop {
        if state.is_asked() {
            let read = reader.read().await;
            let read_at = read.is_ok().then(Instant::now);
            // While the cluster cannot be read, the objects that were read last stay.
            view = read.unwrap_or_else(|error| view.failed(&error));
            let mut parts = state.lock();
            parts.cluster.put(&view);
            parts.cluster.read = read_at.or(parts.cluster.read);
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
        let nothing = json!({
            "versions": [0, 0], "ages": [null, null], "has_cluster": true, "machine": null, "cluster": null,
        });
        assert_eq!(news([0, 0]), nothing);
        state.lock().machine.put(&json!(["a"]));
        state.lock().machine.put(&json!(["a"]));
        assert_eq!(news([0, 0])["machine"], json!(["a"]));
        assert_eq!((&news([1, 0])["machine"], &news([1, 0])["versions"]), (&Value::Null, &json!([1, 0])));
        state.lock().cluster.put(&json!({}));
        assert_eq!(news([1, 0])["cluster"], json!({}));
        // A page of an earlier run of the command has other versions.
        assert_eq!(news([7, 7])["machine"], json!(["a"]));
    }

    #[test]
    fn the_page_gets_the_age_of_figures_that_are_not_read_any_more() {
        let state = State::new(true);
        state.lock().cluster.read = Instant::now().checked_sub(Duration::from_secs(75));
        let news: Value = serde_json::from_str(&state.news([0, 0])).unwrap();
        assert!(news["ages"][0].is_null() && news["ages"][1].as_u64().is_some_and(|age| age >= 75), "{news}");
    }
}
