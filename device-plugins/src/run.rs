//! The tasks of the program, and the channels between them.
//!
//! `devices` reads sysfs and listens to the GPUs' driver, `limits` looks what limits can be kept; both send events to the
//! [`state`]. Its views go through [`cdi::keep`] to the [`plugin`] and to all others.
//!
//! Invariants: a task that ends by itself ends the program, and a signal ends all of them. Nobody is told of devices, and no CDI
//! file is touched, before the first view.

mod devices;
mod first;
mod limits;

use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use larder_telemetry::Heartbeat;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin;
use crate::cdi::{self, Found};
use crate::config::{self, Config, ConfigError};
use crate::dra;
use crate::grant::Means;
use crate::instance::{Begun, Instance};
use crate::inventory::Roots;
use crate::node::counters::Counters;
use crate::node::pods::Pods;
use crate::node::{self, Reporter};
use crate::nri;
use crate::nvml;
use crate::plugin;
use crate::prefer;
use crate::resource;
use crate::state::{self, Outputs, Rules, State};
use crate::usage::Usage;

/// The settings of the process. Its resources are in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The node's name.
    pub node: String,
    /// The file of resources.
    pub config: PathBuf,
    /// The host's `/sys` and `/dev`, as this process sees them.
    pub roots: Roots,
    /// The host's `/dev`, as the container runtime sees it.
    pub host_dev: PathBuf,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The runtime's folder for CDI files of programs, or `None` if the runtime has no CDI.
    pub cdi: Option<PathBuf>,
    /// The folders in which the runtime finds CDI files.
    pub cdi_found: Vec<PathBuf>,
    /// Whether GPUs that no CDI file names are refused.
    pub gpus_by_cdi_only: bool,
    /// NRI's socket.
    pub nri: PathBuf,
    /// Where the host's cgroups are.
    pub cgroups: PathBuf,
    /// The hook, in the image.
    pub hook: PathBuf,
    /// The folder of the host for the hook, with the same path here and there.
    pub hook_folder: PathBuf,
    /// NVIDIA's management library.
    pub nvml: PathBuf,
    /// Where faults of GPUs are kept over a restart of the process.
    pub faults: PathBuf,
    /// Where /metrics, /healthz, /readyz and /devices are served.
    pub admin: Option<SocketAddr>,
}

/// Serves the node until `stop`.
///
/// # Errors
/// The configuration is refused, the kubelet's folder or the admin address cannot be used, or a task ended by itself.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    // The first view and all that is waited for before it and after it are due by then.
    let started = state::now();
    let text = config::read(&settings.config)?;
    let config = parse(&settings.config, &text)?;
    let mut tasks = Tasks { set: JoinSet::new(), stop: stop.clone() };

    let (events, taken) = mpsc::channel(state::EVENTS);
    let (driver, driver_news) = mpsc::channel(DRIVER_NEWS);
    let nvml = nvml::Settings { library: settings.nvml.clone(), ..nvml::Settings::default() };
    let driver = nvml::run(nvml, driver, stop.clone());
    tasks.spawn("the GPUs' driver", async move { driver.await.map_err(Into::into) });
    let mut devices = devices::Devices::new(settings.roots.clone(), settings.nvml.clone(), driver_news);
    let Some(first) = stop.run_until_cancelled(devices.first()).await else { return tasks.finish().await };
    resource::check(&first, &config).map_err(|refusal| refusal.of(&config.file))?;
    tasks.spawn("the inventory", ok(devices.follow(events.clone(), stop.clone())));

    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let remembered = state::memory::load(&settings.faults, &boot).context("use the file of GPU faults (--faults)")?;
    let (memory, kept) = watch::channel(remembered.clone());
    let state = State::new(config, Rules { assign: resource::assign, check: resource::check }, &remembered, started);
    let keep = state::memory::keep(settings.faults.clone(), boot, remembered, kept, stop.clone());
    tasks.spawn("the file of faults", ok(keep));
    let (views, mut view) = watch::channel(Arc::default());
    let (notices, noticed) = mpsc::channel(state::NOTICES);
    let counters = Arc::new(Counters::default());
    let heartbeat = Heartbeat::default();
    let outputs =
        Outputs { view: views, notices, memory, counters: Arc::clone(&counters), heartbeat: heartbeat.clone() };
    tasks.spawn("the state", ok(state::run(state, taken, outputs, stop.clone())));
    let parse_again = |path: &Path, text: &str| parse(path, text);
    let watched = state::config_file::watch(settings.config.clone(), text, parse_again, events.clone(), stop.clone());
    tasks.spawn("the configuration", ok(watched));

    let (outputs, begun) = (nri::Outputs::default(), Begun::default());
    let limits = limits::Limits {
        hook: settings.hook.clone(),
        host: crate::limits::host::Settings {
            cgroup_root: settings.cgroups.clone(),
            hook_folder: settings.hook_folder.clone(),
        },
        nri: outputs.status.subscribe(),
        instance: begun.clone(),
        lost: limits::Lost::Never,
        cdi: settings.cdi.is_some(),
    };
    tasks.spawn("the limits", ok(limits.follow(events.clone(), stop.clone())));

    let Some(Ok(())) = stop.run_until_cancelled(view.changed()).await else { return tasks.finish().await };
    let (nri_status, containers) = (outputs.status.subscribe(), outputs.containers.subscribe());
    tasks.spawn(
        "the NRI plugin",
        ok(nri::run(settings.nri.clone(), view.clone(), begun.clone(), outputs, stop.clone())),
    );
    let due = (started.instant + state::FIRST_VIEW).into();
    stop.run_until_cancelled(first::nri(nri_status, view.clone(), due)).await;

    let sockets = settings.kubelet.join("device-plugins");
    let instance = Instance::begin(&sockets).await;
    let instance = Arc::new(instance.with_context(|| format!("use the kubelet's directory {}", sockets.display()))?);
    begun.set(&instance);
    let (prepared, mut prepared_view) = watch::channel(Arc::default());
    let kept_cdi = cdi::Settings {
        folder: settings.cdi.clone(),
        dev: settings.roots.dev.clone(),
        host_dev: settings.host_dev.clone(),
        hook_folder: settings.hook_folder.clone(),
    };
    let keep = cdi::keep(kept_cdi, Arc::clone(&instance), view, prepared, stop.clone());
    tasks.spawn("the CDI files", ok(keep));
    let Some(Ok(())) = stop.run_until_cancelled(prepared_view.changed()).await else { return tasks.finish().await };

    let served = plugin::Settings {
        folder: sockets,
        means: match settings.cdi {
            None => Means::Nodes,
            Some(_) if settings.gpus_by_cdi_only => Means::CdiOnly,
            Some(_) => Means::Cdi,
        },
        host_dev: settings.host_dev.clone(),
        found: Found::new(settings.cdi_found.clone()),
        choose: Box::new(prefer::choose),
    };
    let plugin = plugin::run(served, Arc::clone(&instance), prepared_view.clone(), stop.clone());
    tasks.spawn("the device plugin", ok(plugin));
    let pods = Arc::new(Pods::new(&settings.kubelet));
    let dra = dra::Settings {
        node: settings.node.clone(),
        kubelet: settings.kubelet.clone(),
        cdi: settings.cdi.clone(),
        cdi_found: settings.cdi_found.clone(),
        gpus_by_cdi_only: settings.gpus_by_cdi_only,
        pods: Arc::clone(&pods),
        counters: Arc::clone(&counters),
    };
    let dra = dra::run(dra, instance, node::connect(), prepared_view.clone(), events, stop.clone());
    tasks.spawn("dynamic resource allocation", ok(dra));
    let reporter = Reporter { node: settings.node.clone(), pods: Arc::clone(&pods), counters: Arc::clone(&counters) };
    let reported = reporter.run(prepared_view.clone(), noticed);
    tasks.spawn("the reporter", ok(until(stop.clone(), reported)));
    if let Some(address) = settings.admin {
        let (node, usage) = (settings.node.clone(), Usage { containers, cgroup_root: settings.cgroups.clone() });
        let status = Arc::new(admin::Status { node, view: prepared_view, pods, counters, usage, heartbeat });
        let served = admin::serve(address, status, stop.clone().cancelled_owned());
        tasks.spawn("the admin server", async move {
            served.await.with_context(|| format!("serve the admin address {address}"))
        });
    }
    tasks.finish().await
}

/// News of the GPUs' driver that may wait; its threads wait for room.
const DRIVER_NEWS: usize = 256;

fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    Config::parse(&path.display().to_string(), text)
}

async fn ok(task: impl Future<Output = ()>) -> anyhow::Result<()> {
    task.await;
    Ok(())
}

async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = task => {}
    }
}

/// The tasks, which end together.
struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Tasks {
    fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Waits for all of them. One that ends before `stop` ends the others.
    async fn finish(mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.set.join_next().await {
            let was_stopped = self.stop.is_cancelled();
            self.stop.cancel();
            let ended = match ended {
                Ok((name, Err(error))) => Err(error.context(name)),
                Ok((name, Ok(()))) if !was_stopped => Err(anyhow!("{name} stopped unexpectedly")),
                Ok(_) => Ok(()),
                Err(panic) => Err(anyhow!(panic)),
            };
            if let Err(error) = &ended {
                warn!(error = format!("{error:#}"), "a task failed");
            }
            outcome = outcome.and(ended);
        }
        info!("all tasks stopped");
        outcome
    }
}
