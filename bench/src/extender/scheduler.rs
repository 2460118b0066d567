//! The benchmark's own kube-scheduler, with or without the extender. Each is a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_fake_platform::program::free_address;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::jobs::pods::{Observer, Pods};
use crate::kubernetes::Places;
use crate::kubernetes::objects::NAMESPACE;
use crate::systems::Stop;
use crate::systems::child::Child;

/// The `schedulerName` of the pods.
pub(super) const SCHEDULER: &str = NAMESPACE;
/// The scheduler configuration that Larder ships.
const COMPONENT: &str = include_str!("../../../deploy/components/scheduler/base/scheduler-config.yaml");

/// The timeout until the extender has listed the cluster.
const READY: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// The programs to run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The kube-scheduler.
    pub scheduler: PathBuf,
    /// The extender, larder-scheduler-ext.
    pub extender: PathBuf,
}

/// The settings of a kube-scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// `percentageOfNodesToScore`; `None` for kube-scheduler's default.
    pub(super) percent: Option<u32>,
    /// Whether it calls the extender.
    pub(super) extended: bool,
}

/// A running kube-scheduler. Dropping it ends the process.
pub(super) struct Scheduler {
    scheduler: Child,
    extender: Option<Child>,
    _folder: TempDir,
}

impl Scheduler {
    /// Starts the extender, waits until it is ready, and starts kube-scheduler. Must be called on the main thread.
    pub(super) async fn start(
        places: &Places,
        programs: &Programs,
        setting: Setting,
        stop: &Stop,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("create a directory for logs")?;
        let kubeconfig = kubeconfig(places)?;
        let address = free_address()?;
        let extender = match setting.extended {
            true => Some(start_extender(&programs.extender, &kubeconfig, address, folder.path(), stop).await?),
            false => None,
        };
        let config = folder.path().join("scheduler.yaml");
        let text = serde_json::to_string(&configuration(setting, &kubeconfig, address))?;
        std::fs::write(&config, text).context("write the scheduler's configuration")?;
        let mut command = Command::new(&programs.scheduler);
        command.arg(format!("--config={}", config.display()));
        command.arg(format!("--secure-port={}", free_address()?.port()));
        let log = folder.path().join("kube-scheduler.log");
        let scheduler = Child::spawn("kube-scheduler", &mut command, &log).context("--kube-scheduler")?;
        Ok(Self { scheduler, extender, _folder: folder })
    }

    /// Waits until `done` returns true for the observed pods.
    pub(super) async fn until(
        &mut self,
        stop: &Stop,
        observer: &Observer,
        what: &str,
        limit: Duration,
        done: impl Fn(&Pods) -> bool,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        while !done(&observer.pods()) {
            stop.check()?;
            check(&mut self.scheduler, "kube-scheduler")?;
            if let Some(extender) = &mut self.extender {
                check(extender, "larder-scheduler-ext")?;
            }
            if started.elapsed() > limit {
                bail!("timed out after {} s waiting until {what}; {}", limit.as_secs(), self.scheduler.last_words());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends kube-scheduler and the extender.
    pub(super) fn stop(self) {
        self.scheduler.stop();
        if let Some(extender) = self.extender {
            extender.stop();
        }
    }
}

fn check(child: &mut Child, name: &str) -> anyhow::Result<()> {
    match child.ended()? {
        Some(status) => bail!("{name} ended: {status}; {}", child.last_words()),
        None => Ok(()),
    }
}

async fn start_extender(
    program: &Path,
    kubeconfig: &Path,
    address: SocketAddr,
    folder: &Path,
    stop: &Stop,
) -> anyhow::Result<Child> {
    let admin = free_address()?;
    let mut command = Command::new(program);
    command.args(["--address", &address.to_string(), "--admin-address", &admin.to_string()]);
    command.env("KUBECONFIG", kubeconfig);
    let log = folder.join("larder-scheduler-ext.log");
    let mut child = Child::spawn("larder-scheduler-ext", &mut command, &log).context("--extender")?;
    let started = Instant::now();
    while !is_ready(admin).await {
        stop.check()?;
        check(&mut child, "larder-scheduler-ext")?;
        if started.elapsed() > READY {
            bail!("larder-scheduler-ext did not become ready within {} s; {}", READY.as_secs(), child.last_words());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(child)
}

async fn is_ready(admin: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(admin).await.ok()?;
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    };
    ask.await.is_some()
}

/// The path of the kubeconfig, which kube-scheduler's configuration needs.
fn kubeconfig(places: &Places) -> anyhow::Result<PathBuf> {
    let of_home = || std::env::home_dir().map(|home| home.join(".kube/config"));
    let named = places.kubeconfig.clone().or_else(|| std::env::var_os("KUBECONFIG").map(PathBuf::from));
    let path = named.or_else(of_home).context("no kubeconfig: set --kubeconfig")?;
    path.canonicalize()
        .with_context(|| format!("open the kubeconfig {}: name a single file with --kubeconfig", path.display()))
}

/// The configuration as JSON, which is also YAML. Its client limits are so high that only the API server limits it, as
/// for all clients of these benchmarks.
fn configuration(setting: Setting, kubeconfig: &Path, extender: SocketAddr) -> Value {
    let mut configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 5000, "burst": 10000},
        "leaderElection": {"leaderElect": false},
        "profiles": [{"schedulerName": SCHEDULER}],
    });
    if let Some(percent) = setting.percent {
        configuration["percentageOfNodesToScore"] = percent.into();
    }
    if setting.extended {
        let mut component: Value = serde_yaml_ng::from_str(COMPONENT).unwrap_or_default();
        for entry in component["extenders"].as_array_mut().into_iter().flatten() {
            entry["urlPrefix"] = format!("http://{extender}").into();
        }
        configuration["extenders"] = component["extenders"].take();
    }
    configuration
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_configurations_differ_only_in_the_extender() {
        let of = |extended| {
            let setting = Setting { percent: Some(50), extended };
            configuration(setting, Path::new("/k"), "127.0.0.1:7".parse().unwrap())
        };
        let (mut with, without) = (of(true), of(false));
        let extenders = with.as_object_mut().unwrap().remove("extenders").unwrap();
        assert_eq!(with, without);
        assert_eq!((&without["percentageOfNodesToScore"], &without["extenders"]), (&json!(50), &Value::Null));
        let extender = &extenders[0];
        assert_eq!([&extender["urlPrefix"], &extender["filterVerb"]], ["http://127.0.0.1:7", "filter"]);
        // Preemption protects gangs from all pods.
        assert_eq!(extender["managedResources"][0]["name"], larder_api::names::READS_DATA_RESOURCE);
        assert!(extenders[1]["managedResources"].is_null());
        assert_eq!([&extender["nodeCacheCapable"], &extender["ignorable"]], [&json!(true), &json!(true)]);
        let preempts = &extenders[1];
        assert_eq!([&preempts["urlPrefix"], &preempts["preemptVerb"]], ["http://127.0.0.1:7", "preempt"]);
    }

    #[test]
    fn the_default_scheduler_keeps_its_own_percentage_of_nodes_to_score() {
        let setting = Setting { percent: None, extended: false };
        let configuration = configuration(setting, Path::new("/k"), "127.0.0.1:7".parse().unwrap());
        assert_eq!(configuration.get("percentageOfNodesToScore"), None);
        assert_eq!(configuration["profiles"][0]["schedulerName"], SCHEDULER);
    }

    #[test]
    fn the_kubeconfig_must_be_one_existing_file() {
        let places = Places { program: PathBuf::new(), kubeconfig: Some("/nonexistent/kubeconfig".into()) };
        let error = kubeconfig(&places).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/kubeconfig") && error.contains("--kubeconfig"), "{error}");
    }
}
