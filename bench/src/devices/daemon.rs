//! A device plugin as a process: how soon the kubelet has its IDs, how long its calls take, and what it uses while
//! idle.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use larder_kubelet::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, PreferredAllocationRequest,
};
use serde::Serialize;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;

use super::config::DevicesConfig;
use super::hardware::{HOOK, Hardware, PAIRS};
use super::kubelet::{Kubelet, Resource};
use super::nri::Nri;
use crate::systems::Stop;
use crate::systems::child::Child;
use larder_epochs::figures::{Latencies, machine_load};
use larder_epochs::process::{Usage, family};

/// The name of Larder's program.
pub(super) const LARDER: &str = "larder-devices";

/// Number of IDs for each HCA.
const SHARE: usize = 256;
/// Limits of containers with an HCA, which the NRI plugin and the hook enforce.
const LIMITS: &str = "{hcaHandles: 2, hcaObjects: 2000, memlock: 1GiB}";
/// The timeout until the kubelet has all IDs.
const READY: Duration = Duration::from_secs(60);
/// The interval at which the process and a stop request are checked.
const LOOK: Duration = Duration::from_millis(200);

/// The resources that a process offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One resource for all GPUs, and one for all HCAs.
    GpusAndHcas,
    /// A resource for each HCA, in the `configList` that both programs read; no GPUs.
    ConfigList,
}

impl Shape {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GpusAndHcas => "16 GPUs, 16 HCAs x 256 IDs",
            Self::ConfigList => "16 resources x 256 IDs",
        }
    }

    fn ids(self) -> usize {
        let hcas = usize::from(PAIRS) * SHARE;
        match self {
            Self::GpusAndHcas => usize::from(PAIRS) + hcas,
            Self::ConfigList => hcas,
        }
    }

    /// The text of the configuration file.
    pub(super) fn config(self, hardware: &Hardware) -> String {
        match self {
            Self::GpusAndHcas => format!(
                "resources:\n- {{name: larder.dev/gpu, kind: gpu}}\n- {{name: larder.dev/hca, kind: rdma, share: {SHARE}, limits: {LIMITS}}}\n"
            ),
            Self::ConfigList => {
                let entry = |hca: &larder_fake_machine::HcaPlan| {
                    let name = format!("hca_{}", hca.uverbs);
                    json!({"resourceName": name, "rdmaHcaMax": SHARE, "selectors": {"ifNames": hca.netdevs}})
                };
                let entries: Vec<_> = hardware.machine.plan().hcas.iter().map(entry).collect();
                json!({"configList": entries}).to_string()
            }
        }
    }
}

/// A kind of call.
#[derive(Clone, Debug, Serialize)]
pub struct CallRow {
    /// The name of the call in the table.
    pub call: &'static str,
    /// Its times, over the plugin's socket.
    pub times: Latencies,
}

/// The measurements of a process in one round.
#[derive(Clone, Debug, Serialize)]
pub struct DaemonRow {
    pub round: u32,
    /// The program's name.
    pub system: &'static str,
    /// The resources that it offers.
    pub shape: Shape,
    /// Seconds from its start until the kubelet has the last ID.
    pub ready_seconds: f64,
    /// The times of its calls.
    pub calls: Vec<CallRow>,
    /// Its memory and CPU time after the idle period.
    pub usage: Usage,
    /// Seconds of CPU during the idle period.
    pub idle_cpu_seconds: f64,
    /// The length of the idle period.
    pub idle_seconds: f64,
    /// The machine's one-minute load average before the measurement.
    pub load: f64,
}

impl DaemonRow {
    /// The CPU that it uses while idle, in percent of a core.
    pub fn idle_percent(&self) -> f64 {
        100.0 * self.idle_cpu_seconds / self.idle_seconds
    }

    /// Its resident memory after the idle period, in MiB.
    pub fn rss_mib(&self) -> f64 {
        self.usage.rss_bytes as f64 / f64::from(1 << 20)
    }
}

impl fmt::Display for DaemonRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rss, idle) = (self.rss_mib(), self.idle_percent());
        write!(f, "{}, {}: {rss:.1} MiB, {idle:.3} % of a core", self.system, self.shape.name())?;
        self.calls.iter().try_for_each(|CallRow { call, times }| write!(f, "; {call}: {}", times.milliseconds()))
    }
}

/// Starts larder-devices. There is no API server.
pub(super) fn start(program: &Path, hardware: &Hardware, kubelet: &Kubelet, shape: Shape) -> anyhow::Result<Child> {
    let nvml = match shape {
        Shape::GpusAndHcas => hardware.nvml(),
        Shape::ConfigList => hardware.path("no-nvml"),
    };
    let config = hardware.write("config", &shape.config(hardware))?;
    let mut command = Command::new(program);
    command.arg("--node=n1").env_clear().env("KUBECONFIG", hardware.path("no-kubeconfig"));
    for (flag, path) in [
        ("config", config),
        ("kubelet-dir", kubelet.folder.clone()),
        ("nvml", nvml),
        ("sysfs", hardware.machine.sysfs()),
        ("dev", hardware.machine.dev()),
        ("cdi-dir", hardware.path("cdi")),
        ("vendor-cdi-dir", hardware.path("vendor-cdi")),
        ("nri-socket", hardware.path("nri.sock")),
        ("cgroups", hardware.path("cgroup")),
        ("hook", hardware.path(HOOK)),
        ("hook-dir", hardware.path("hook")),
        ("faults", hardware.path("faults.json")),
    ] {
        command.arg(format!("--{flag}={}", path.display()));
    }
    Child::spawn(LARDER, &mut command, &hardware.path("log"))
}

/// Measures a process, from its start to its end.
pub(super) fn measure(
    runtime: &Runtime,
    stop: &Stop,
    config: &DevicesConfig,
    (round, system, shape): (u32, &'static str, Shape),
    hardware: &Hardware,
    start: impl FnOnce(&Kubelet) -> anyhow::Result<Child>,
) -> anyhow::Result<DaemonRow> {
    let load = machine_load()[0];
    let in_runtime = runtime.enter();
    let kubelet = Kubelet::start(&hardware.path("kubelet"))?;
    let nri = match shape {
        Shape::GpusAndHcas => {
            let listener = UnixListener::bind(hardware.path("nri.sock")).context("make the socket of NRI")?;
            Some(tokio::spawn(Nri::accept(listener)))
        }
        Shape::ConfigList => None,
    };
    drop(in_runtime);
    let begun = Instant::now();
    let mut process = start(&kubelet)?;
    let resources = loop {
        stop.check()?;
        if let Some(resources) = runtime.block_on(kubelet.resources(shape.ids(), LOOK)) {
            break resources;
        }
        if process.ended()?.is_some() {
            bail!("it ends by itself: {}", process.last_words());
        }
        ensure!(begun.elapsed() < READY, "it does not offer {} IDs: {}", shape.ids(), process.last_words());
    };
    let ready_seconds = begun.elapsed().as_secs_f64();
    let mut calls = Vec::new();
    let one = |resource: &Resource, nth: u32| vec![resource.ids[nth as usize * 97 % resource.ids.len()].clone()];
    if shape == Shape::GpusAndHcas {
        let (gpus, hcas) = (&resources["larder.dev/gpu"], &resources["larder.dev/hca"]);
        calls.push(timed("prefer 8 of 16 GPUs", runtime, config.calls, |_| prefer(gpus.clone(), 8))?);
        let eight = || gpus.ids[..8].to_vec();
        calls.push(timed("allocate 8 GPUs", runtime, config.calls, |_| allocate(gpus.clone(), eight()))?);
        calls.push(timed("allocate an HCA", runtime, config.calls, |nth| allocate(hcas.clone(), one(hcas, nth)))?);
    } else {
        let all: Vec<&Resource> = resources.values().collect();
        let of = |nth: u32| all[nth as usize % all.len()];
        let call = |nth| allocate(of(nth).clone(), one(of(nth), nth));
        calls.push(timed("allocate an HCA", runtime, config.calls, call)?);
    }
    // The connection stays open to the end, because a plugin without a runtime polls for one.
    let _nri = match nri {
        Some(nri) => {
            let mut nri = runtime.block_on(nri).context("accept the NRI plugin")??;
            let hca = hardware.machine.plan().hcas.first().map(|hca| hca.slot.pci.as_str());
            for (call, hca) in [("NRI: a container with an HCA", hca), ("NRI: another container", None)] {
                calls.push(timed_nri(call, runtime, config.calls, &mut nri, hca)?);
            }
            Some(nri)
        }
        None => None,
    };
    let processes = family(process.id());
    let (before, rest) = (Usage::of(&processes).cpu_seconds, Instant::now());
    while rest.elapsed() < Duration::from_secs(config.idle_seconds) {
        stop.check()?;
        std::thread::sleep(LOOK);
    }
    let idle_seconds = rest.elapsed().as_secs_f64();
    let usage = Usage::of(&processes);
    if process.ended()?.is_some() {
        bail!("it ended: {}", process.last_words());
    }
    process.stop();
    let idle_cpu_seconds = usage.cpu_seconds - before;
    Ok(DaemonRow { round, system, shape, ready_seconds, calls, usage, idle_cpu_seconds, idle_seconds, load })
}

/// Times calls, one after another.
fn timed<F: Future<Output = anyhow::Result<()>>>(
    call: &'static str,
    runtime: &Runtime,
    count: u32,
    mut make: impl FnMut(u32) -> F,
) -> anyhow::Result<CallRow> {
    let mut times = Vec::new();
    for nth in 0..count {
        let made = make(nth);
        let begun = Instant::now();
        runtime.block_on(made).context(call)?;
        times.push(begun.elapsed());
    }
    Ok(CallRow { call, times: Latencies::of(times.into_iter()) })
}

/// Times the runtime's requests.
fn timed_nri(
    call: &'static str,
    runtime: &Runtime,
    count: u32,
    nri: &mut Nri,
    hca: Option<&str>,
) -> anyhow::Result<CallRow> {
    let mut times = Vec::new();
    for nth in 0..count {
        let begun = Instant::now();
        let is_changed = runtime.block_on(nri.create(nth, hca)).context(call)?;
        times.push(begun.elapsed());
        ensure!(is_changed == hca.is_some(), "{call}: is it changed? {is_changed}");
    }
    Ok(CallRow { call, times: Latencies::of(times.into_iter()) })
}

async fn prefer(Resource { mut plugin, ids }: Resource, size: i32) -> anyhow::Result<()> {
    let container = ContainerPreferredAllocationRequest {
        available_device_i_ds: ids,
        must_include_device_i_ds: Vec::new(),
        allocation_size: size,
    };
    let request = PreferredAllocationRequest { container_requests: vec![container] };
    let answer = plugin.get_preferred_allocation(request).await?.into_inner();
    let chosen = answer.container_responses.first().map_or(0, |container| container.device_i_ds.len());
    ensure!(chosen == size as usize, "{chosen} of {size} devices were chosen");
    Ok(())
}

async fn allocate(Resource { mut plugin, .. }: Resource, ids: Vec<String>) -> anyhow::Result<()> {
    let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids: ids }] };
    let answer = plugin.allocate(request).await?.into_inner();
    ensure!(answer.container_responses.len() == 1, "{} containers were answered for", answer.container_responses.len());
    Ok(())
}
