//! Offers the resources of mode `dra` through dynamic resource allocation: the scheduler allocates their devices to
//! claims.
//!
//! The parts that publish: [`devices`] builds the API's description of each device, [`slices`] distributes the
//! descriptions over ResourceSlices, [`moves`] finds the devices that the device plugin has not released yet, and
//! [`Publisher`] writes the slices. The parts that serve the kubelet: the kubelet calls [`Service`] through the sockets
//! of `server`. [`claim`] reads the allocation of a claim, [`prepared`] computes what its containers get,
//! [`claim_file`] encodes that as a CDI file, and [`files`] stores these files, which are the only stored state of
//! claims. `health` reports to the kubelet which devices are out of service.
//!
//! Invariant: no device is offered through DRA and through the device plugin at the same time.

pub mod claim;
pub mod claim_file;
pub mod devices;
pub mod files;
mod health;
pub mod moves;
pub mod names;
pub mod prepared;
mod publish;
#[cfg(test)]
mod samples;
mod server;
mod service;
pub mod slices;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_kube::Client;
use larder_kubelet::registration::Answer;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use publish::Publisher;
pub use service::Service;

use crate::cdi::Found;
use crate::config::Mode;
use crate::instance::Instance;
use crate::names::DRIVER;
use crate::node::counters::Counters;
use crate::node::pods::Pods;
use crate::state::Event;
use crate::view::View;
use files::Files;

/// How often the folder is checked for claims of an earlier process while no resource has mode `dra`.
const LOOK: Duration = Duration::from_secs(60);

/// The settings of the DRA driver.
#[derive(Debug)]
pub struct Settings {
    pub node: String,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The runtime's folder for generated CDI files, or `None` if the runtime has no CDI.
    pub cdi: Option<PathBuf>,
    /// The folders in which the runtime finds CDI files.
    pub cdi_found: Vec<PathBuf>,
    /// Whether GPUs that no CDI file names are refused.
    pub gpus_by_cdi_only: bool,
    /// Lists the pods that hold devices through the device plugin.
    pub pods: Arc<Pods>,
    pub counters: Arc<Counters>,
}

/// Serves the kubelet and the API server until `stop`. It starts once a resource has `mode: dra`, or once a claim is
/// found that an earlier process prepared; only then is `client` awaited. `views` must be the views that
/// [`crate::cdi::keep`] has prepared.
pub async fn run(
    settings: Settings,
    instance: Arc<Instance>,
    client: impl Future<Output = Client>,
    mut views: watch::Receiver<Arc<View>>,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
) {
    let Settings { node, kubelet, cdi, cdi_found, gpus_by_cdi_only, pods, counters } = settings;
    let Some(cdi) = cdi else {
        let is_needed =
            stop.run_until_cancelled(views.wait_for(|view| has_dra(view))).await.is_some_and(|it| it.is_ok());
        if is_needed {
            error!("no device is offered through DRA, which needs a container runtime with CDI: remove --no-cdi");
        }
        stop.cancelled().await;
        return;
    };
    let files = Files::new(cdi.clone());
    if stop.run_until_cancelled(wanted(&files, &mut views)).await != Some(true) {
        stop.cancelled().await;
        return;
    }
    let Some(client) = stop.run_until_cancelled(client).await else { return };
    info!(driver = DRIVER, "dynamic resource allocation starts");
    let (changes, answers) = (watch::Sender::new(0), watch::Sender::new(Answer::None));
    let (changed, answered) = (changes.subscribe(), answers.subscribe());
    let service = service::Settings { node: node.clone(), cdi, found: Found::new(cdi_found), gpus_by_cdi_only };
    let service = Service::new(service, client.clone(), views.clone(), changes, stop.clone());
    let publisher = publish::Settings { node, pods, counters, files, events };
    let publisher = Publisher::new(publisher, client).run(&instance, views, changed, answered, stop.clone());
    tokio::join!(server::serve(&kubelet, &instance, service, answers, stop.clone()), publisher);
}

fn has_dra(view: &View) -> bool {
    view.resources.iter().any(|resource| resource.config.mode == Mode::Dra)
}

/// Returns true once DRA is needed, or false if there will be no more views.
async fn wanted(files: &Files, views: &mut watch::Receiver<Arc<View>>) -> bool {
    loop {
        if has_dra(&views.borrow_and_update()) {
            return true;
        }
        let files = files.clone();
        if tokio::task::spawn_blocking(move || !files.all().is_empty()).await.unwrap_or(false) {
            return true;
        }
        if let Ok(Err(_)) = tokio::time::timeout(LOOK, views.changed()).await {
            return false;
        }
    }
}
