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

use crate::asked::Asked;
use crate::pace::{WRITE_EVERY, is_news};
use crate::status;

/// Whose fields those of the status are.
const FIELD_MANAGER: &str = "larderd";

/// How often the cache is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The longest that one write may take.
const WRITE: Duration = Duration::from_secs(30);

/// The pause before the API is looked for again.
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
                warn!(%error, "no Kubernetes API for --node-cache: larderd needs a service account, or KUBECONFIG")
            }
        }
        tokio::time::sleep(CONNECT_EVERY).await;
    }
}

/// The object as it was last seen.
struct Seen {
    generation: i64,
    asked: Asked,
    status: Option<NodeCacheStatus>,
}

struct Follower {
    node: Arc<Node>,
    name: String,
    api: Api<DynamicObject>,
    resource: ApiResource,
    seen: Option<Seen>,
    /// The generation that was acted on.
    done: Option<i64>,
    /// Not all promises of it have their room.
    is_short: bool,
    wrote: Option<Instant>,
}

/// Follows the NodeCache `name` at this API server for as long as the future is polled.
pub async fn follow_with(node: Arc<Node>, name: String, client: Client) {
    let resource = ApiResource::erase::<NodeCache>(&());
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watch(api.clone(), config).default_backoff().boxed();
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut follower = Follower { node, name, api, resource, seen: None, done: None, is_short: false, wrote: None };
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => follower.take_in(event),
                Ok(None) => return,
                Err(error) => warn!(%error, "the watch of the NodeCache broke; it is begun again"),
            },
            _ = looks.tick() => {
                if let Err(error) = follower.look().await {
                    warn!(
                        error = format!("{error:#}"), node = follower.name,
                        "the NodeCache of this node is not current"
                    );
                }
            }
        }
    }
}

impl Follower {
    fn take_in(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init | Event::InitDone => {}
            // The promises stand. The controller makes it again, and says which do.
            Event::Delete(_) => self.seen = None,
            Event::InitApply(object) | Event::Apply(object) => match read(&object) {
                Ok(seen) => {
                    // Another object of the name counts its generations from 1 again.
                    let is_same = self.seen.as_ref().is_some_and(|before| before.asked == seen.asked);
                    if !is_same {
                        self.done = None;
                    }
                    self.seen = Some(seen);
                }
                Err(error) => warn!(error = format!("{error:#}"), "skip a NodeCache that cannot be read"),
            },
        }
    }

    /// Does what is asked for, and tells what has changed.
    async fn look(&mut self) -> anyhow::Result<()> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let is_new = self.done.is_none();
        let mut written = true;
        if is_new || self.is_short {
            if let Err(error) = self.node.promise(seen.asked.promises.clone()).await {
                warn!(%error, "the promises of the NodeCache cannot be written down; they are tried again");
                written = false;
            } else if is_new {
                let (promises, generation) = (seen.asked.promises.len(), seen.generation);
                info!(promises, generation, "the promises are those of the NodeCache");
            }
        }
        for &(snapshot, before) in seen.asked.clean.iter().filter(|_| is_new) {
            if let Err(error) = self.node.drop_unused(snapshot, before).await {
                warn!(%snapshot, %error, "cached bytes are not dropped");
            }
        }
        self.done = Some(seen.generation);
        let mut report = self.node.cache_report().await.context("look at the cache")?;
        if !written {
            // A disk that takes no promise keeps none of these.
            report.promises.clone_from(&seen.asked.promises);
        }
        let now = status::of(&report, self.done);
        self.is_short = !now.unkept.is_empty();
        let is_early = self.wrote.is_some_and(|wrote| wrote.elapsed() < WRITE_EVERY);
        if is_early || !is_news(seen.status.as_ref(), &now) {
            return Ok(());
        }
        // A failed write counts, too: the API server may have too many of them.
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
        asked: Asked::of(&spec.unwrap_or_default()),
        // One that cannot be read is written anew.
        status: serde_json::from_value(part("status")).unwrap_or_default(),
    })
}
