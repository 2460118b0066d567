//! A kubelet's folder, a fake larderd, and drivers that are started and killed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_csi::{Config, Driver};
use larder_csi_api::csi;
use larder_csi_api::csi::node_server::Node as _;
use larder_csi_api::csi::volume_capability::access_mode::Mode;
use larder_csi_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use larder_daemon_api::mountinfo::{MountEntry, mounts};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::{Request, Status};

use crate::fake::FakeDaemon;

pub(crate) const SOURCE: &str = "s3://bucket/set";

pub(crate) struct Rig {
    pub(crate) fake: FakeDaemon,
    folder: TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        assert!(Path::new("/dev/fuse").exists(), "these tests mount: /dev/fuse is missing");
        let folder = tempfile::tempdir().unwrap();
        let fake = FakeDaemon::start(&folder.path().join("run"));
        let rig = Self { fake, folder };
        std::fs::create_dir_all(rig.kubelet().join("pods")).unwrap();
        rig
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.path("kubelet")
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.kubelet().join("pods").join(name)
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            endpoint: self.path("csi.sock"),
            kubelet_endpoint: self.path("csi.sock"),
            kubelet_dir: self.kubelet(),
            target_roots: vec![],
            node_id: "node-1".to_owned(),
            topology: false,
            run_dirs: vec![self.path("run")],
            daemon_dirs: vec![],
            state_dir: self.path("state"),
            datasets: Some(self.path("datasets.yaml")),
            daemon_uid: 0,
            read_ahead_kib: 2048,
            file_roots: vec![],
            admin_address: None,
            prepare_wait: Duration::from_secs(1),
            startup_taint: false,
        }
    }

    /// A driver that is connected to larderd.
    pub(crate) async fn driver(&self) -> Running {
        let running = self.driver_alone().await;
        until("the driver is ready", || running.driver.node.is_ready()).await;
        running
    }

    /// A driver that may not be connected.
    pub(crate) async fn driver_alone(&self) -> Running {
        let config = self.config();
        let driver = tokio::task::spawn_blocking(move || Driver::open(config)).await.unwrap().unwrap();
        let sweeping = tokio::spawn(Arc::clone(&driver.node).keep_clean());
        Running { driver, sweeping }
    }

    /// Our mounts below the kubelet's folder.
    pub(crate) fn mounts(&self) -> Vec<MountEntry> {
        let below = |entry: &MountEntry| entry.path.starts_with(self.folder.path()) && entry.is_ours();
        mounts().unwrap().into_iter().filter(below).collect()
    }

    pub(crate) fn mounted(&self, target: &Path) -> Option<MountEntry> {
        self.mounts().into_iter().find(|entry| entry.path == target)
    }

    /// The FUSE mounts, without their binds at targets.
    pub(crate) fn fuse_mounts(&self) -> Vec<MountEntry> {
        let dir = self.kubelet().join("plugins/csi.larder.dev/mounts");
        self.mounts().into_iter().filter(|entry| entry.path.starts_with(&dir)).collect()
    }

    /// Asserts that everything is cleaned up: no mount, no mount folder, no record and no connection remains.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.mounts(), []);
        for folder in ["kubelet/plugins/csi.larder.dev/mounts", "state/targets", "kubelet/pods"] {
            let left: Vec<_> =
                std::fs::read_dir(self.path(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        assert_eq!(self.fake.served(), [""; 0]);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.fake.kill();
        // The temporary folder is removed next, so all mounts in it must be unmounted.
        for entry in mounts().unwrap().iter().rev().filter(|entry| entry.path.starts_with(self.folder.path())) {
            let _ = rustix::mount::unmount(&entry.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

pub(crate) struct Running {
    pub(crate) driver: Driver,
    sweeping: JoinHandle<()>,
}

impl Running {
    /// Simulates SIGKILL: the descriptors close, and nothing is cleaned up.
    pub(crate) async fn kill(self) {
        self.sweeping.abort();
        let _ = self.sweeping.await;
        tokio::task::spawn_blocking(move || drop(self.driver)).await.unwrap();
    }

    pub(crate) async fn publish(&self, request: csi::NodePublishVolumeRequest) -> Result<(), Status> {
        self.driver.node_service().node_publish_volume(Request::new(request)).await.map(|_| ())
    }

    pub(crate) async fn unpublish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let target_path = target.to_str().unwrap().to_owned();
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path };
        self.driver.node_service().node_unpublish_volume(Request::new(request)).await.map(|_| ())
    }

    pub(crate) async fn stats(&self, volume: &str, path: &Path) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.to_str().unwrap().to_owned(),
            staging_target_path: String::new(),
        };
        self.driver.node_service().node_get_volume_stats(Request::new(request)).await.map(tonic::Response::into_inner)
    }
}

pub(crate) fn request(volume: &str, target: &Path, context: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: target.to_str().unwrap().to_owned(),
        volume_capability: Some(csi::VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        readonly: true,
        volume_context: map(context),
        ..csi::NodePublishVolumeRequest::default()
    }
}

/// A volume of [`SOURCE`].
pub(crate) fn plain(volume: &str, target: &Path) -> csi::NodePublishVolumeRequest {
    request(volume, target, &[("source", SOURCE)])
}

pub(crate) fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Lists a mounted folder, which sends requests to the fake larderd.
pub(crate) async fn list(path: &Path) -> std::io::Result<usize> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || Ok(std::fs::read_dir(path)?.count())).await.unwrap()
}

/// Waits until a condition holds; fails after 20 s.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
