//! A node that shares its cache: a `larderd` and a mount.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use larder_daemon_api::socket::GRPC_SOCKET;

use super::outcome::SpreadConfig;
use crate::systems::child::Child;
use crate::systems::{Corpus, mounts};

/// How long a larderd may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which that is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A node. Dropping it ends its process and detaches its mount.
pub(super) struct Node {
    folder: PathBuf,
    larderd: Option<Child>,
}

impl Node {
    /// Starts the node with this number, from 0, in a new folder of `home`. `addresses` are those at which the nodes
    /// serve each other, with TLS. Must be called on the main thread.
    pub(super) fn start(
        config: &SpreadConfig,
        corpus: &Corpus,
        home: &Path,
        addresses: &[SocketAddr],
        number: usize,
    ) -> anyhow::Result<Self> {
        let folder = home.join(format!("node-{number}"));
        for name in ["cache", "home", "mnt"] {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder).with_context(|| format!("create the directory {}", folder.display()))?;
        }
        let peers: Vec<String> =
            addresses.iter().enumerate().map(|(number, address)| format!("n{number}={address}")).collect();
        let mut larderd = Command::new(&config.larderd);
        larderd
            .arg("--cache-dir")
            .arg(folder.join("cache"))
            .arg("--home")
            .arg(folder.join("home"))
            .args(["--endpoint", &corpus.endpoint, "--keep-free", "0%", "--peers", &peers.join(",")])
            .args([format!("--node-name=n{number}"), format!("--peer-listen={}", addresses[number])])
            .envs(corpus.aws_variables())
            // Errors quote the last lines of the log, where a backtrace would hide the message.
            .env("RUST_BACKTRACE", "0");
        let certificates = corpus.folder_of("certificates")?;
        for (flag, file) in [("--peer-ca", "ca.pem"), ("--peer-cert", "node.pem"), ("--peer-key", "key.pem")] {
            larderd.arg(flag).arg(certificates.join(file));
        }
        let mut child = Child::spawn("larderd", &mut larderd, &folder.join("larderd.log"))?;
        let (socket, started) = (folder.join("cache").join(GRPC_SOCKET), Instant::now());
        while UnixStream::connect(&socket).is_err() {
            corpus.stop.check()?;
            if child.ended()?.is_some() || started.elapsed() > START_TIMEOUT {
                bail!("larderd does not answer; {}", child.last_words());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Self { folder, larderd: Some(child) })
    }

    /// Mounts the dataset, of which the node keeps its share, and returns the mount point.
    pub(super) fn mount(&self, config: &SpreadConfig, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        let mountpoint = self.folder.join("mnt");
        let output = Command::new(&config.larder)
            .arg("mount")
            .arg(format!("s3://{}/{}", corpus.bucket, corpus.prefix))
            .arg(&mountpoint)
            .args(["--endpoint", &corpus.endpoint, "--placement", "partitioned", "--cache-dir"])
            .arg(self.folder.join("cache"))
            .envs(corpus.aws_variables())
            .env("LARDER_HOME", self.folder.join("home"))
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .output()
            .context("start larder mount")?;
        ensure!(output.status.success(), "larder mount: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(mountpoint)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Without it the kernel ends the mount and fails whoever waits for it.
        self.larderd = None;
        // The folder's owner detaches what cannot be detached now, and reports nothing either.
        let _ = mounts::detach_below(&self.folder);
    }
}
