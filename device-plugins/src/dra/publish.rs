//! Keeps the node's ResourceSlices consistent with its view.
//!
//! Invariant: a device that a pod may still hold through the device plugin is in no slice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use larder_kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use larder_kube::{Api, Client};
use larder_kubelet::registration::Answer;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::devices::devices;
use super::files::Files;
use super::moves::{HeldBack, Moves};
use super::names;
use super::slices::{Owner, Write, writes};
use crate::config::Mode;
use crate::health::{Event as HealthEvent, Mark};
use crate::instance::Instance;
use crate::names::DRIVER;
use crate::node::counters::Counters;
use crate::node::holders::Held;
use crate::node::pods::Pods;
use crate::pace::{part, pauses};
use crate::resource::DeviceKey;
use crate::state::Event;
use crate::view::View;

/// How often the slices are checked while nothing changes.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How often it is checked whether a device was released, and how often the slices are checked for [`WARY`] after a
/// registration.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// How long after a registration the slices are checked often. The kubelet removes the slices when it starts, and may
/// need several attempts.
const WARY: Duration = Duration::from_secs(60);

/// How often an older process checks whether the newer one is still running.
const STAND_BY: Duration = Duration::from_secs(1);

/// The timeout of one request.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the publisher works with.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node: String,
    /// Lists the pods that hold devices through the device plugin.
    pub pods: Arc<Pods>,
    pub counters: Arc<Counters>,
    /// The files of prepared claims.
    pub files: Files,
    /// Receives the marks of devices that are held elsewhere.
    pub events: mpsc::Sender<Event>,
}

/// Publishes the slices.
pub struct Publisher {
    settings: Settings,
    nodes: Api<Node>,
    slices: Api<ResourceSlice>,
    moves: Moves,
    /// The devices that were last reported as held elsewhere.
    marked: HeldBack,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("settings", &self.settings)
            .field("moves", &self.moves)
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// A publisher that has not checked anything yet.
    pub fn new(settings: Settings, client: Client) -> Self {
        let (nodes, slices) = (Api::all(client.clone()), Api::all(client));
        Self { settings, nodes, slices, moves: Moves::default(), marked: HeldBack::new() }
    }

    /// Publishes the newest of `views` until `stop`. Pauses while a newer process is running, since two processes would
    /// replace each other's slices. Checks the slices again when claims change, and when the kubelet has registered the
    /// driver.
    pub async fn run(
        mut self,
        instance: &Instance,
        mut views: watch::Receiver<Arc<View>>,
        mut claims: watch::Receiver<u64>,
        mut answers: watch::Receiver<Answer>,
        stop: CancellationToken,
    ) {
        let look_every = LOOK_EVERY + part(&self.settings.node, LOOK_EVERY / 4);
        let (mut backoff, mut wary_until) = (pauses(), Instant::now());
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            claims.borrow_and_update();
            if answers.has_changed().unwrap_or_default() {
                answers.borrow_and_update();
                wary_until = Instant::now() + WARY;
            }
            if !instance.is_newest() {
                if timeout(STAND_BY, stop.cancelled()).await.is_ok() {
                    return;
                }
                continue;
            }
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.look(&view) => looked,
            };
            let pause = match looked {
                Ok(is_settled) => {
                    backoff = pauses();
                    if is_settled && wary_until <= Instant::now() { look_every } else { ASK_EVERY }
                }
                Err(error) => {
                    self.settings.counters.api_errors.fetch_add(1, Ordering::Relaxed);
                    let pause = backoff.next().unwrap_or_default();
                    warn!(error = format!("{error:#}"), pause = ?pause, "the node's ResourceSlices are out of date");
                    // Wait the full pause, even if something changes during it.
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = sleep(pause) => continue,
                    }
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = views.changed() => if changed.is_err() { return },
                Ok(()) = claims.changed() => {}
                Ok(()) = answers.changed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Checks the slices once, and writes those that are out of date. Returns true if no device is waiting for the
    /// device plugin to release it.
    async fn look(&mut self, view: &View) -> anyhow::Result<bool> {
        let must_ask = self.moves.see(view);
        let claimed = self.claimed(view).await?;
        // Report claimed devices before the slow requests below. The reasons why DRA's devices are held back are not
        // known yet, so the previous ones stay.
        let waiting = self.marked.iter().filter(|(device, _)| !claimed.contains_key(*device));
        let first: HeldBack =
            waiting.map(|(device, why)| (device.clone(), why.clone())).chain(claimed.clone()).collect();
        self.mark(first).await;

        let name = self.settings.node.clone();
        let node = answer(self.nodes.get(&name)).await.with_context(|| format!("read Node {name}"))?;
        let held = if must_ask { self.held(view).await? } else { Held::default() };
        let held_back = self.moves.settle(view, &node, &held);
        let mut marks = claimed;
        marks.extend(held_back.clone());
        self.mark(marks).await;

        let owner = Owner { name, uid: node.metadata.uid.unwrap_or_default() };
        let params = ListParams::default().fields(&format!("spec.nodeName={},spec.driver={DRIVER}", owner.name));
        let found = answer(self.slices.list(&params)).await.context(
            "list ResourceSlices: `mode: dra` needs Kubernetes 1.34 or later, and the component devices-dra",
        )?;
        let is_ours = |slice: &ResourceSlice| {
            slice.spec.driver == DRIVER && slice.spec.node_name.as_deref() == Some(owner.name.as_str())
        };
        let found: Vec<ResourceSlice> = found.items.into_iter().filter(is_ours).collect();
        let devices = devices(view, &held_back.keys().cloned().collect::<BTreeSet<DeviceKey>>());
        let writes = writes(&owner, &devices, &found);
        if !writes.is_empty() {
            info!(devices = devices.len(), held_back = held_back.len(), "writing the node's ResourceSlices");
        }
        for write in writes {
            self.write(write).await?;
        }
        Ok(held_back.is_empty())
    }

    async fn write(&self, write: Write) -> anyhow::Result<()> {
        let name = |slice: &ResourceSlice| slice.metadata.name.clone().unwrap_or_default();
        match write {
            Write::Create(slice) => {
                let created = answer(self.slices.create(&PostParams::default(), &slice)).await;
                created.map(drop).with_context(|| format!("create ResourceSlice {}", name(&slice)))
            }
            Write::Replace(slice) => {
                let name = name(&slice);
                let replaced = answer(self.slices.replace(&name, &PostParams::default(), &slice)).await;
                replaced.map(drop).with_context(|| format!("write ResourceSlice {name}"))
            }
            Write::Delete(name, uid) => {
                let only = Preconditions { uid, resource_version: None };
                let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
                match answer(self.slices.delete(&name, &params)).await {
                    Err(Failure::Api(larder_kube::Error::Api(status))) if status.code == 404 => Ok(()),
                    deleted => deleted.map(drop).with_context(|| format!("delete ResourceSlice {name}")),
                }
            }
        }
    }

    /// The devices that pods hold through the device plugin.
    async fn held(&self, view: &View) -> anyhow::Result<Held> {
        let known = self.settings.pods.known(&self.moves.resources(view)).await;
        if let Some(trouble) = known.trouble {
            bail!("cannot list devices allocated through the device plugin: {trouble}");
        }
        Ok(known.held)
    }

    /// The devices of the device plugin's resources that claims still have.
    async fn claimed(&self, view: &View) -> anyhow::Result<HeldBack> {
        let files = self.settings.files.clone();
        let prepared = tokio::task::spawn_blocking(move || files.all()).await?;
        let mut claims = BTreeMap::new();
        for prepared in &prepared {
            let devices = prepared.devices.iter().filter(|device| !device.admin);
            claims.extend(devices.map(|device| (device.device.as_str(), prepared)));
        }
        let by_plugin = view.resources.iter().filter(|resource| resource.config.mode == Mode::Plugin);
        let keys = by_plugin.flat_map(|resource| &resource.units).flat_map(|unit| &unit.devices);
        let why = |key: &DeviceKey| {
            let claim = &claims.get(names::device(key).as_str())?.claim;
            Some((key.clone(), format!("ResourceClaim {claim} has it")))
        };
        Ok(keys.filter_map(why).collect())
    }

    /// Sends the marks to the state task if they changed.
    async fn mark(&mut self, marks: HeldBack) {
        if self.marked != marks {
            let event = HealthEvent::Marks(Mark::HeldElsewhere, marks.clone());
            // An error means that the program is stopping: the state task has ended.
            let _ = self.settings.events.send(Event::Health(event)).await;
            self.marked = marks;
        }
    }
}

/// How a request failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] larder_kube::Error),
    #[error("the API server does not answer")]
    Late,
}

async fn answer<T>(request: impl Future<Output = larder_kube::Result<T>>) -> Result<T, Failure> {
    match timeout(PATIENCE, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Late),
    }
}

#[cfg(test)]
mod tests;
