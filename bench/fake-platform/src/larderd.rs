//! A simulated larderd per node, as the controller sees it: it accepts promises and reports its cached bytes, at a
//! limited rate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use larder_api::{NodeCache, PromisedDataset};
use larder_kube::api::{Patch, PatchParams};
use larder_kube::runtime::{WatchStreamExt, watcher};
use larder_kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::config::{Config, Seen};

/// Capacity of one larderd's mailbox; senders wait while it is full.
const MAILBOX: usize = 16;

/// A message to a larderd.
#[derive(Debug)]
pub(crate) enum Message {
    /// The generation and the promises of the node's NodeCache.
    Promises { uid: String, generation: i64, promises: Vec<PromisedDataset> },
    /// A pod has started to warm a snapshot.
    Warming { snapshot: String, since: Instant },
}

/// The mailboxes of the larderds, by node.
pub(crate) type Nodes = Arc<HashMap<String, mpsc::Sender<Message>>>;

pub(crate) fn mailbox() -> (mpsc::Sender<Message>, mpsc::Receiver<Message>) {
    mpsc::channel(MAILBOX)
}

/// Sends each larderd its NodeCache whenever it changes. Never returns.
pub(crate) async fn listen(client: Client, nodes: Nodes) {
    let config = watcher::Config::default().page_size(100);
    let mut caches =
        watcher::watcher(Api::<NodeCache>::all(client), config).default_backoff().applied_objects().boxed();
    while let Some(cache) = caches.next().await {
        // The watch restarts with a new list, so an error loses no events.
        let Ok(cache) = cache else { continue };
        let name = cache.metadata.name.unwrap_or_default();
        if let Some(larderd) = nodes.get(&name) {
            let message = Message::Promises {
                uid: cache.metadata.uid.unwrap_or_default(),
                generation: cache.metadata.generation.unwrap_or_default(),
                promises: cache.spec.datasets,
            };
            let _ = larderd.send(message).await;
        }
    }
}

/// The larderd of one node.
pub(crate) struct Larderd {
    api: Api<NodeCache>,
    node: String,
    config: Arc<Config>,
    seen: Arc<Seen>,
    writers: Arc<Semaphore>,
    /// The uid of its NodeCache; empty until it exists.
    uid: String,
    generation: i64,
    promises: Vec<PromisedDataset>,
    /// When the warming of each snapshot began.
    warming: BTreeMap<String, Instant>,
    reported: Option<Value>,
    reported_at: Option<Instant>,
}

impl Larderd {
    pub(crate) fn new(
        client: &Client,
        node: &str,
        config: Arc<Config>,
        seen: Arc<Seen>,
        writers: Arc<Semaphore>,
    ) -> Self {
        Self {
            api: Api::all(client.clone()),
            node: node.to_owned(),
            config,
            seen,
            writers,
            uid: String::new(),
            generation: 0,
            promises: Vec::new(),
            warming: BTreeMap::new(),
            reported: None,
            reported_at: None,
        }
    }

    /// Reports until its mailbox is closed.
    pub(crate) async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        loop {
            let now = Instant::now();
            let due = !self.uid.is_empty() && (self.is_filling(now) || self.reported != Some(self.status(now)));
            let at = self.reported_at.map_or(now, |at| at + self.config.report_every);
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.apply(message),
                    None => return,
                },
                () = tokio::time::sleep_until(at), if due => self.report().await,
            }
        }
    }

    fn apply(&mut self, message: Message) {
        match message {
            Message::Promises { uid, generation, promises } => {
                if self.uid != uid {
                    self.reported = None;
                    self.uid = uid;
                }
                self.generation = generation;
                // A snapshot without a promise is dropped.
                self.warming.retain(|snapshot, _| promises.iter().any(|promise| promise.snapshot == *snapshot));
                self.promises = promises;
            }
            Message::Warming { snapshot, since } => {
                self.warming.entry(snapshot).or_insert(since);
            }
        }
    }

    fn is_filling(&self, now: Instant) -> bool {
        self.warming.values().any(|since| now.duration_since(*since) < self.config.warming)
    }

    async fn report(&mut self) {
        let now = Instant::now();
        let status = self.status(now);
        self.reported_at = Some(now);
        if self.reported.as_ref() == Some(&status) {
            return;
        }
        // The semaphore is never closed.
        let _permit = self.writers.acquire().await;
        let patch = Patch::Merge(json!({"status": status}));
        self.seen.add_write();
        // A failed report is retried after the interval.
        if self.api.patch_status(&self.node, &PatchParams::default(), &patch).await.is_ok() {
            if self.reported.is_none() {
                self.seen.add_reporting();
            }
            self.reported = Some(status);
        }
    }

    fn status(&self, now: Instant) -> Value {
        let promised: u64 = self.promises.iter().map(|promise| promise.bytes).sum();
        let snapshots = self.promises.iter().filter_map(|promise| {
            let since = *self.warming.get(&promise.snapshot)?;
            let bytes = filled(promise.bytes, now.duration_since(since), self.config.warming);
            Some(json!({
                "snapshot": promise.snapshot, "owner": promise.owner, "bytes": bytes, "wantedBytes": promise.bytes,
                "reservedBytes": promise.bytes, "mounts": 0,
            }))
        });
        let snapshots: Vec<Value> = snapshots.collect();
        json!({
            "observedGeneration": self.generation,
            "capacityBytes": self.config.capacity_bytes,
            "promisedBytes": promised,
            "freeBytes": self.config.capacity_bytes.saturating_sub(promised),
            "snapshots": snapshots,
        })
    }
}

/// The bytes that are cached `after` the start of a warm-up that fetches `all` bytes within `warming`.
fn filled(all: u64, after: Duration, warming: Duration) -> u64 {
    if after >= warming {
        return all;
    }
    (all as f64 * after.as_secs_f64() / warming.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_grow_to_all_of_them() {
        let second = Duration::from_secs(1);
        assert_eq!(filled(1000, Duration::ZERO, 4 * second), 0);
        assert_eq!(filled(1000, second, 4 * second), 250);
        assert_eq!(filled(1000, 4 * second, 4 * second), 1000);
        assert_eq!(filled(1000, Duration::ZERO, Duration::ZERO), 1000);
    }
}
