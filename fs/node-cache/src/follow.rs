//! Follows the NodeCache of this node: carries out its spec and writes its status.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::jiff::Timestamp;
use larder_api::{NodeCache, NodeCacheSpec, NodeCacheStatus};
use larder_cachenode::node::Node;
use larder_kube::api::{Api, DynamicObject, Patch, PatchParams};
use larder_kube::core::{ApiResource, Resource};
use larder_kube::kinds::Kind;
use larder_kube::runtime::watcher;
use larder_kube::watch::{Turns, Update, Watched, listen};
use larder_kube::{Client, Error};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::pace::{WRITE_EVERY, is_news};
use crate::requests::Requests;
use crate::status;

/// The field manager under which the status is written.
const FIELD_MANAGER: &str = "larderd";

/// How often the cache's state is compared with the object.
const RECONCILE_EVERY: Duration = Duration::from_secs(2);

/// The limit for one write to the API.
const WRITE: Duration = Duration::from_secs(30);

/// Part of the API server's message about a field that the definition of the object does not have.
const UNDECLARED: &str = "field not declared in schema";

/// The limit of queued updates. When it is reached, the watch waits.
const UPDATES: usize = 16;

/// The pause between two attempts to connect.
const CONNECT_EVERY: Duration = Duration::from_secs(30);

/// Follows the NodeCache `name` until `stop`. Without an API server it retries in the background, and the node serves
/// in the meantime.
pub async fn follow(node: Arc<Node>, name: String, stop: CancellationToken) {
    stop.run_until_cancelled(async {
        let client = connect().await;
        follow_with(node, name, client).await;
    })
    .await;
}

async fn connect() -> Client {
    loop {
        match larder_kube::connect().await {
            Ok(client) => return client,
            Err(error) => {
                warn!(error = format!("{error:#}"), "no Kubernetes API for --node-cache; retrying")
            }
        }
        tokio::time::sleep(CONNECT_EVERY).await;
    }
}

/// The last known state of the object.
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
    /// True if some promises lack space.
    is_short: bool,
    /// True if the quotas are in force and written down.
    has_quotas: bool,
    wrote: Option<Instant>,
}

/// Follows the NodeCache `name` at this API server while the future is polled.
pub async fn follow_with(node: Arc<Node>, name: String, client: Client) {
    let resource = ApiResource::erase::<NodeCache>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let watched = Watched { config, ..Watched::all(Kind::NodeCache, &Turns::default()) };
    let (sender, mut updates) = mpsc::channel(UPDATES);
    // No error ends the watch: an administrator may grant the rights later.
    let unparsed = Api::all_with(client, &resource);
    let mut listening = pin!(listen(unparsed, watched, Some, |_| None, |update| update, sender));
    let mut turns = tokio::time::interval(RECONCILE_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (is_short, has_quotas) = (false, true);
    let mut follower =
        Follower { node, name, api, resource, seen: None, done: None, is_short, has_quotas, wrote: None };
    loop {
        tokio::select! {
            _ = &mut listening => return,
            Some(update) = updates.recv() => follower.apply(update),
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
    fn apply(&mut self, update: Update<DynamicObject>) {
        let object = match update {
            Update::All(all) => all.into_iter().next(),
            Update::Changed(object) => Some(object),
            Update::Gone(..) => None,
        };
        // The promises stay in force until the controller has recreated the object.
        let Some(object) = object else {
            self.seen = None;
            return;
        };
        match read(&object) {
            Ok(seen) => {
                // A recreated object counts its generations from 1, so the requests are compared too.
                let is_same = self.seen.as_ref().is_some_and(|before| before.requests == seen.requests);
                if !is_same {
                    self.done = None;
                }
                self.seen = Some(seen);
            }
            Err(error) => warn!(error = format!("{error:#}"), "skip an invalid NodeCache"),
        }
    }

    /// Carries out the requests and reports changes.
    async fn reconcile(&mut self) -> anyhow::Result<()> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let is_new = self.done.is_none();
        let mut written = true;
        if is_new {
            self.node.set_labels(seen.requests.labels.clone());
        }
        // Before the promises, so that no dataset grows beyond a quota that arrives together with them.
        if is_new || !self.has_quotas {
            let set = self.node.set_quotas(seen.requests.quotas.clone()).await;
            if let Err(error) = &set
                && self.has_quotas
            {
                warn!(%error, "cannot store the quotas of the NodeCache: a restart forgets them; will retry");
            }
            self.has_quotas = set.is_ok();
        }
        if is_new || self.is_short {
            if let Err(error) = self.node.promise(seen.requests.promises.clone()).await {
                warn!(%error, "cannot store the promises of the NodeCache; will retry");
                written = false;
            } else if is_new {
                let (promises, generation) = (seen.requests.promises.len(), seen.generation);
                info!(promises, generation, "adopted the promises of the NodeCache");
            }
        }
        for (snapshot, owner, before) in seen.requests.clean.iter().filter(|_| is_new) {
            if let Err(error) = self.node.drop_unused(*snapshot, owner, *before).await {
                warn!(%snapshot, %error, "cannot drop cached bytes");
            }
        }
        self.done = Some(seen.generation);
        let mut report = self.node.cache_report().await.context("inspect the cache")?;
        if !written {
            // The promises could not be stored, so the status must report that none is kept.
            report.promises.clone_from(&seen.requests.promises);
        }
        let now = status::of(&report, self.done, seen.status.as_ref(), Timestamp::now());
        self.is_short = !now.unkept.is_empty();
        let is_early = self.wrote.is_some_and(|wrote| wrote.elapsed() < WRITE_EVERY);
        if is_early || !is_news(seen.status.as_ref(), &now) {
            return Ok(());
        }
        // A failed write counts too: the API server may be overloaded.
        self.wrote = Some(Instant::now());
        self.write(&now).await?;
        if let Some(seen) = &mut self.seen {
            seen.status = Some(now);
        }
        Ok(())
    }

    async fn write(&self, status: &NodeCacheStatus) -> anyhow::Result<()> {
        match self.apply_status(status).await? {
            Err(Error::Api(refused)) if refused.message.contains(UNDECLARED) && !status.conditions.is_empty() => {
                warn!(
                    node = self.name,
                    "the definition of NodeCaches in the cluster is older than this larderd, so its condition is left \
                     out: apply deploy/crds"
                );
                let known = NodeCacheStatus { conditions: Vec::new(), ..status.clone() };
                self.apply_status(&known).await?.context("write the status")
            }
            written => written.context("write the status"),
        }
    }

    /// The outer error: no answer in time.
    async fn apply_status(&self, status: &NodeCacheStatus) -> anyhow::Result<Result<(), Error>> {
        let fields = json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": self.name},
            "status": status,
        });
        let apply = PatchParams { force: true, ..PatchParams::apply(FIELD_MANAGER) };
        let patch = Patch::Apply(fields);
        let writing = tokio::time::timeout(WRITE, self.api.patch_status(&self.name, &apply, &patch));
        let written = writing.await.context("the API server did not answer in time")?;
        Ok(written.map(|_| ()))
    }
}

fn read(object: &DynamicObject) -> anyhow::Result<Seen> {
    let part = |name: &str| object.data.get(name).cloned().unwrap_or_default();
    let spec: Option<NodeCacheSpec> = serde_json::from_value(part("spec")).context("spec")?;
    Ok(Seen {
        generation: object.meta().generation.unwrap_or_default(),
        requests: Requests::of(&spec.unwrap_or_default()),
        // A status that cannot be parsed is replaced.
        status: serde_json::from_value(part("status")).unwrap_or_default(),
    })
}
