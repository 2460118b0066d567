//! Follows the NodeCache of this node: acts on its spec, and writes its status.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use larder_api::{NodeCache, NodeCacheSpec, NodeCacheStatus};
use larder_cachenode::node::Node;
use larder_kube::Client;
use larder_kube::api::{Api, DynamicObject, Patch, PatchParams};
use larder_kube::core::{ApiResource, Resource};
use larder_kube::runtime::watcher::{self, Event};
use larder_kube::runtime::{WatchStreamExt, watcher as watch};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::pace::{WRITE_EVERY, is_news};
use crate::requests::Requests;
use crate::status;

/// The field manager of the status.
const FIELD_MANAGER: &str = "larderd";

/// How often the cache is compared with the object.
const RECONCILE_EVERY: Duration = Duration::from_secs(2);

/// The longest that one write may take.
const WRITE: Duration = Duration::from_secs(30);

/// The pause between two attempts to connect.
const CONNECT_EVERY: Duration = Duration::from_secs(30);

/// Follows the NodeCache `name` until `stop`. Without an API server it waits for one, and the node serves meanwhile.
pub async fn follow(node: Arc<Node>, name: String, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        let client = connect().await;
        follow_with(node, name, client).await;
    })
    .await;
}

async fn connect() -> Client {
    loop {
        match Client::try_default().await {
            Ok(client) => return client,
            Err(error) => {
                warn!(%error, "no Kubernetes API for --node-cache: larderd needs a service account or KUBECONFIG")
            }
        }
        tokio::time::sleep(CONNECT_EVERY).await;
    }
}

/// The last known object.
struct Seen {
    generation: i64,
    requests: Requests,
    status: Option<NodeCacheStatus>,
}

struct Follower {
    node: Arc<Node>,
    name: String,
    api: Api<DynamicObject>,
    resource: ApiResource,
    seen: Option<Seen>,
    /// The generation whose requests were carried out.
    done: Option<i64>,
    /// Some of its promises lack room.
    is_short: bool,
    wrote: Option<Instant>,
}

/// Follows the NodeCache `name` at this API server for as long as the future is polled.
pub async fn follow_with(node: Arc<Node>, name: String, client: Client) {
    let resource = ApiResource::erase::<NodeCache>(&());
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watch(api.clone(), config).default_backoff().boxed();
    let mut turns = tokio::time::interval(RECONCILE_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut follower = Follower { node, name, api, resource, seen: None, done: None, is_short: false, wrote: None };
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => follower.apply(event),
                Ok(None) => return,
                Err(error) => warn!(%error, "the watch of the NodeCache broke; it resumes"),
            },
            _ = turns.tick() => {
                if let Err(error) = follower.reconcile().await {
                    warn!(
                        error = format!("{error:#}"), node = follower.name,
                        "cannot update the NodeCache of this node"
                    );
                }
            }
        }
    }
}

impl Follower {
    fn apply(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init | Event::InitDone => {}
            // The promises stand until the controller has made the object again.
            Event::Delete(_) => self.seen = None,
            Event::InitApply(object) | Event::Apply(object) => match read(&object) {
                Ok(seen) => {
                    // An object that was made again counts its generations from 1.
                    let is_same = self.seen.as_ref().is_some_and(|before| before.requests == seen.requests);
                    if !is_same {
                        self.done = None;
                    }
                    self.seen = Some(seen);
                }
                Err(error) => warn!(error = format!("{error:#}"), "skip an invalid NodeCache"),
            },
        }
    }

    /// Carries out the requests, and reports what has changed.
    async fn reconcile(&mut self) -> anyhow::Result<()> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let is_new = self.done.is_none();
        let mut written = true;
        if is_new || self.is_short {
            if let Err(error) = self.node.promise(seen.requests.promises.clone()).await {
                warn!(%error, "cannot store the promises of the NodeCache; will retry");
                written = false;
            } else if is_new {
                let (promises, generation) = (seen.requests.promises.len(), seen.generation);
                info!(promises, generation, "adopted the promises of the NodeCache");
            }
        }
        for &(snapshot, before) in seen.requests.clean.iter().filter(|_| is_new) {
            if let Err(error) = self.node.drop_unused(snapshot, before).await {
                warn!(%snapshot, %error, "cannot drop cached bytes");
            }
        }
        self.done = Some(seen.generation);
        let mut report = self.node.cache_report().await.context("inspect the cache")?;
        if !written {
            // Without a record, none of these promises is kept.
            report.promises.clone_from(&seen.requests.promises);
        }
        let now = status::of(&report, self.done);
        self.is_short = !now.unkept.is_empty();
        let is_early = self.wrote.is_some_and(|wrote| wrote.elapsed() < WRITE_EVERY);
        if is_early || !is_news(seen.status.as_ref(), &now) {
            return Ok(());
        }
        // A failed write counts, too: the API server may be overloaded.
        self.wrote = Some(Instant::now());
        self.write(&now).await?;
        if let Some(seen) = &mut self.seen {
            seen.status = Some(now);
        }
        Ok(())
    }

    async fn write(&self, status: &NodeCacheStatus) -> anyhow::Result<()> {
        let fields = json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": self.name},
            "status": status,
        });
        let apply = PatchParams { force: true, ..PatchParams::apply(FIELD_MANAGER) };
        let patch = Patch::Apply(fields);
        tokio::time::timeout(WRITE, self.api.patch_status(&self.name, &apply, &patch))
            .await
            .context("the API server did not answer in time")?
            .context("write the status")?;
        Ok(())
    }
}

fn read(object: &DynamicObject) -> anyhow::Result<Seen> {
    let part = |name: &str| object.data.get(name).cloned().unwrap_or_default();
    let spec: Option<NodeCacheSpec> = serde_json::from_value(part("spec")).context("spec")?;
    Ok(Seen {
        generation: object.meta().generation.unwrap_or_default(),
        requests: Requests::of(&spec.unwrap_or_default()),
        // An invalid status is replaced.
        status: serde_json::from_value(part("status")).unwrap_or_default(),
    })
}
