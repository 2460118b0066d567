//! [`Node`]: larderd and larder-csi as processes, with cache and home on a disk of their own. The test plays the
//! kubelet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_csi_api::csi;
use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Plugin, wait_until};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::disk::Disk;
use super::origin::Tenant;
use super::plan::{Plan, THREADS};
use super::pod::{Pod, READ_DEADLINE};
use super::tally::Tally;
use crate::csi::{larder_mounts, publish};

/// The longest wait for a call of the kubelet's that succeeds at all.
const PATIENCE: Duration = Duration::from_secs(120);

/// Lines of each program's log that a failure shows.
const LINES: usize = 60;

/// The fields are dropped in this order: no program outlives its disk.
pub(super) struct Node {
    plugin: Plugin,
    larderd: Larderd,
    disk: Disk,
    lab: Lab,
}

impl Node {
    pub(super) fn start(lab: Lab, plan: &Plan) -> Self {
        // The folders of a larderd of this name.
        let disk = Disk::new(lab.folder().join("node-day"), &lab.folder().join("disk"));
        let deadline = format!("--read-deadline={}s", READ_DEADLINE.as_secs());
        let (target, threads) =
            (format!("--memory-target={}MiB", plan.memory_target_mib), format!("--threads={THREADS}"));
        let mut larderd = Larderd::start(&lab, "day", &[&deadline, &target, &threads]);
        // The programs meet in memory, whatever becomes of the disk.
        larderd.kill();
        let run_dir = lab.folder().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        larderd.set_run_dirs(&[&run_dir]);
        larderd.restart();
        let plugin = Plugin::start(&lab, &larderd, &[]);
        Self { plugin, larderd, disk, lab }
    }

    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(super) fn larderd_pid(&self) -> u32 {
        self.larderd.pid().unwrap()
    }

    /// Where a pod's volume is.
    pub(super) fn target(&self, pod: &str) -> PathBuf {
        self.plugin.path(&format!("kubelet/pods/{pod}"))
    }

    /// Starts pods at the same time, and caches their first files. After this, the kernel has an answer to a close from
    /// each mount: a program that this process starts inherits its open files and closes them, and would otherwise wait
    /// for larderd, which may be the very program that starts.
    pub(super) fn start_pods(&self, tenants: &[Tenant], pods: &[Arc<Pod>]) {
        let runtime = self.lab.runtime();
        let channel = self.channel();
        std::thread::scope(|scope| {
            for pod in pods {
                let (channel, request) = (channel.clone(), self.request(&tenants[pod.dataset().tenant], pod));
                scope.spawn(move || {
                    publish_volume(runtime, channel, &request);
                    pod.cache_first_files();
                });
            }
        });
        pods.iter().for_each(|pod| pod.has_cached_first_files(tenants));
    }

    /// The request to publish the volume of a tenant's dataset with the tenant's own keys.
    fn request(&self, tenant: &Tenant, pod: &Pod) -> csi::NodePublishVolumeRequest {
        let own = [
            ("source", pod.dataset().source()),
            ("endpoint", tenant.endpoint()),
            ("identity", "secret".to_owned()),
            ("owner", tenant.name().to_owned()),
        ];
        let context = own.into_iter().chain(pod.cache_attributes());
        csi::NodePublishVolumeRequest {
            volume_id: pod.name().to_owned(),
            secrets: tenant.keys().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            volume_context: context.map(|(name, value)| (name.to_owned(), value)).collect(),
            ..publish(&self.lab, pod.target())
        }
    }

    fn channel(&self) -> Channel {
        let _in_runtime = self.lab.runtime().enter();
        self.plugin.channel()
    }

    /// `kill -9` of larderd, and a new one at once.
    pub(super) fn kill_larderd(&mut self, tally: &Tally) {
        tally.larderd_ends();
        self.larderd.kill();
        self.larderd.restart();
        tally.larderd_begins(self.larderd_pid());
    }

    /// `kill -9` of larder-csi, and a new one at once.
    pub(super) fn kill_plugin(&mut self) {
        self.plugin.kill();
        self.plugin.restart();
    }

    /// Waits until each of the two processes has all connections, and holds them for the other.
    pub(super) fn wait_until_both_hold(&self, connections: usize) {
        wait_until("both processes hold all connections", || {
            self.larderd.connections() >= connections && self.plugin.connections() >= connections
        });
    }

    /// Ends all pods. Nothing of them is left then.
    pub(super) fn end_pods(mut self, pods: &[Arc<Pod>]) {
        let mut node = NodeClient::new(self.channel());
        for pod in pods {
            let request = csi::NodeUnpublishVolumeRequest {
                volume_id: pod.name().to_owned(),
                target_path: pod.target().display().to_string(),
            };
            wait_until("the volume is unpublished", || {
                self.lab.runtime().block_on(node.node_unpublish_volume(request.clone())).is_ok()
            });
            assert!(!pod.target().exists(), "{}", pod.name());
        }
        assert_eq!(larder_mounts(self.lab.folder()), [] as [String; 0]);
        wait_until("neither holds a connection", || self.larderd.connections() + self.plugin.connections() == 0);
        self.larderd.terminate();
    }

    /// The last lines of the programs' logs.
    pub(super) fn logs(&self) -> String {
        let last = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        };
        format!("larderd:\n{}\nlarder-csi:\n{}", last(self.larderd.log()), last(self.plugin.log()))
    }
}

/// Publishes a volume, as often as it takes.
fn publish_volume(runtime: &Runtime, channel: Channel, request: &csi::NodePublishVolumeRequest) {
    let began = Instant::now();
    let mut node = NodeClient::new(channel);
    while let Err(refused) = runtime.block_on(node.node_publish_volume(request.clone())) {
        assert!(began.elapsed() < PATIENCE, "{}: {refused}", request.volume_id);
        std::thread::sleep(Duration::from_millis(100));
    }
}
