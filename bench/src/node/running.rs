//! The processes of a node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use larder_csi_api::csi;
use larder_csi_api::csi::node_client::NodeClient;
use larder_csi_api::csi::volume_capability::access_mode::Mode;
use larder_csi_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use larder_daemon_api::connect_channel;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::origin::Origin;
use crate::side_by_side::Progress;
use crate::systems::child::Child;
use crate::systems::{Stop, mounts};
use larder_epochs::process::Usage;

/// Number of volumes that are published at the same time.
const PUBLISHING: usize = 8;

/// How long one volume may take, from the first call to the last.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause before a refused call is repeated, as the kubelet repeats it.
const PUBLISH_RETRY: Duration = Duration::from_millis(100);

/// The programs of a node.
#[derive(Clone, Debug, Default)]
pub struct NodePrograms {
    /// The executable of `larderd`.
    pub larderd: PathBuf,
    /// The executable of `larder-csi`.
    pub csi: PathBuf,
    /// The executable of `larder`, which reads.
    pub larder: PathBuf,
}

/// A `larderd` with an empty cache, and a `larder-csi` beside it.
pub(crate) struct Node {
    folder: PathBuf,
    larderd: Command,
    /// `None` while it does not run.
    serving: Option<Child>,
    /// `None` only while this is dropped.
    holding: Option<Child>,
    stop: Stop,
}

impl Node {
    /// Starts one in `folder`, which is created. `flags` are larderd's own. It reads from `origin` with the origin's
    /// keys. Must be called on the main thread.
    pub(crate) fn start(
        programs: &NodePrograms,
        folder: &Path,
        origin: &Origin,
        flags: &[String],
        stop: &Stop,
    ) -> anyhow::Result<Self> {
        let path = |name: &str| folder.join(name);
        for folder in [path("cache"), path("kubelet/pods")] {
            std::fs::create_dir_all(&folder).with_context(|| format!("create the directory {}", folder.display()))?;
        }
        let (endpoint, variables) = origin.endpoint_and_variables();
        let mut larderd = Command::new(&programs.larderd);
        larderd
            .arg("--cache-dir")
            .arg(path("cache"))
            .arg("--home")
            .arg(path("home"))
            .args(["--endpoint", &endpoint, "--keep-free", "0%"])
            .args(flags)
            .envs(variables)
            // Errors quote the last lines of the log, where a backtrace would hide the message.
            .env("RUST_BACKTRACE", "0");
        let mut csi = Command::new(&programs.csi);
        csi.args(["--node-name", "bench", "--daemon-uid"])
            .arg(rustix::process::geteuid().as_raw().to_string())
            .arg("--endpoint")
            .arg(path("csi.sock"))
            .arg("--kubelet-dir")
            .arg(path("kubelet"))
            .arg("--state-dir")
            .arg(path("state"))
            .arg("--run-dir")
            .arg(path("cache"))
            .env("RUST_BACKTRACE", "0");
        let (folder, stop) = (folder.to_owned(), stop.clone());
        let mut node = Self { folder, larderd, serving: None, holding: None, stop };
        node.start_larderd()?;
        node.holding = Some(Child::spawn("larder-csi", &mut csi, &node.folder.join("larder-csi.log"))?);
        Ok(node)
    }

    /// Publishes datasets, each as a volume of its own, below [`Self::volumes`].
    pub(crate) fn publish(&self, runtime: &Runtime, names: &[String], progress: &dyn Progress) -> anyhow::Result<()> {
        let mut published = 0;
        let publishing = async {
            let driver = NodeClient::new(connect_channel(&self.folder.join("csi.sock")));
            let each = names.iter().map(|name| {
                let request = publish_request(name, &self.volumes().join(name));
                publish(driver.clone(), request, self.stop.clone())
            });
            let mut all = futures::stream::iter(each).buffer_unordered(PUBLISHING);
            while all.try_next().await?.is_some() {
                published += 1;
                progress.doing(&format!("{published} of {} volumes published", names.len()));
            }
            anyhow::Ok(())
        };
        let outcome = runtime.block_on(publishing);
        self.stop.check()?;
        outcome.with_context(|| format!("publish {} volumes; {}\n", names.len(), self.last_words()))
    }

    /// The folder with a folder for each published dataset.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.folder.join("kubelet/pods")
    }

    /// `kill -9` of larderd, and waits until it has ended.
    pub(crate) fn kill_larderd(&mut self) {
        self.serving = None;
    }

    /// Starts larderd, which must have ended.
    pub(crate) fn start_larderd(&mut self) -> anyhow::Result<()> {
        self.serving = Some(Child::spawn("larderd", &mut self.larderd, &self.folder.join("larderd.log"))?);
        Ok(())
    }

    /// The process of larderd. Fails if it has ended.
    pub(crate) fn larderd(&mut self) -> anyhow::Result<u32> {
        let Some(larderd) = &mut self.serving else { bail!("larderd does not run") };
        match larderd.ended()? {
            None => Ok(larderd.id()),
            Some(status) => bail!("larderd ended with {status}; {}", larderd.last_words()),
        }
    }

    /// The resources that larderd has used.
    pub(crate) fn usage(&mut self) -> anyhow::Result<Usage> {
        Ok(Usage::of(&[self.larderd()?]))
    }

    /// The last lines of both logs, for an error.
    pub(crate) fn last_words(&self) -> String {
        let words: Vec<String> = [&self.serving, &self.holding].into_iter().flatten().map(Child::last_words).collect();
        words.join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Together they hold the connections; without them the kernel ends the mounts and fails what waits for them.
        (self.serving, self.holding) = (None, None);
        // The folder's owner detaches what cannot be detached now, and reports nothing either.
        let _ = mounts::detach_below(&self.folder);
    }
}

/// Publishes a volume as the kubelet does, which repeats a refused call.
async fn publish(
    mut driver: NodeClient<Channel>,
    request: csi::NodePublishVolumeRequest,
    stop: Stop,
) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let Err(refused) = driver.node_publish_volume(request.clone()).await else { return Ok(()) };
        stop.check()?;
        if started.elapsed() > PUBLISH_TIMEOUT {
            bail!("publish the volume {}: {}", request.volume_id, refused.message());
        }
        tokio::time::sleep(PUBLISH_RETRY).await;
    }
}

fn publish_request(name: &str, target: &Path) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: name.to_owned(),
        target_path: target.display().to_string(),
        volume_capability: Some(csi::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() }),
        }),
        readonly: true,
        volume_context: [("source".to_owned(), Origin::url(name))].into(),
        ..csi::NodePublishVolumeRequest::default()
    }
}
