//! The command `larder` as a process: an import that reports its figures, and a mount.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

use super::outcome::{MountRow, Row, Work};
use crate::systems::child::Child;
use crate::systems::{Stop, mounts};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::{Usage, family};

/// The command with a separate home folder.
pub(super) struct Larder {
    pub(super) binary: PathBuf,
    pub(super) home: PathBuf,
    pub(super) variables: Vec<(&'static str, String)>,
}

/// The output of an import and its duration.
pub(super) struct Imported {
    pub(super) files: u64,
    /// Number of files whose version has changed; `None` if there was no earlier import.
    pub(super) changed: Option<u64>,
    seconds: f64,
    said: Value,
}

impl Larder {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("LARDER_HOME", &self.home).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// Imports `url` to the default location, where a mount finds the manifest.
    pub(super) fn import(&self, url: &str, flags: &[&str]) -> anyhow::Result<Imported> {
        let started = Instant::now();
        let mut command = self.command();
        let output =
            command.args(["import", url, "--restart", "--json"]).args(flags).output().context("start larder")?;
        let seconds = started.elapsed().as_secs_f64();
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("larder import {url}: {}: {}", output.status, words.trim());
        }
        let said: Value = serde_json::from_slice(&output.stdout).context("read what larder import says")?;
        let files = said["files"].as_u64().context("larder import does not say how many files there are")?;
        Ok(Imported { files, changed: said["changes"]["changed"].as_u64(), seconds, said })
    }

    /// Removes the imported manifest.
    pub(super) fn forget(&self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&self.home).with_context(|| format!("remove {}", self.home.display()))
    }

    /// Mounts the imported manifest with nothing in the kernel's caches, and looks one file up.
    pub(super) fn mount(
        &self,
        url: &str,
        file: &str,
        folder: &Path,
        round: u32,
        stop: &Stop,
    ) -> anyhow::Result<MountRow> {
        let [mountpoint, cache] = ["mnt", "cache"].map(|name| folder.join(name));
        for folder in [&mountpoint, &cache] {
            std::fs::create_dir_all(folder).with_context(|| format!("create the directory {}", folder.display()))?;
        }
        drop_kernel_caches()?;
        let mut command = self.command();
        command.arg("mount").arg(url).arg(&mountpoint).args(["--foreground", "--cache-size", "1GiB", "--cache-dir"]);
        let started = Instant::now();
        let mut daemon = Child::spawn("larder", command.arg(&cache), &folder.join("log"))?;
        let measured = mounts::wait_for(&mountpoint, &mut daemon, stop).and_then(|()| {
            let path = mountpoint.join(file);
            std::fs::symlink_metadata(&path).with_context(|| format!("look at {}", path.display()))?;
            let seconds = started.elapsed().as_secs_f64();
            Ok(MountRow { round, seconds, rss_bytes: Usage::of(&family(daemon.id())).rss_bytes })
        });
        let unmounted = mounts::unmount(&mountpoint);
        daemon.end();
        let _ = std::fs::remove_dir_all(&cache);
        let row = measured?;
        unmounted?;
        Ok(row)
    }
}

impl Imported {
    pub(super) fn row(&self, work: Work, round: u32) -> Row {
        let figure = |name: &str| self.said[name].as_u64().unwrap_or_default();
        Row {
            list_requests: figure("list_requests"),
            peak_memory_bytes: figure("peak_memory_bytes"),
            spilled_bytes: figure("spilled_bytes"),
            manifest_bytes: figure("manifest_bytes"),
            ..Row::new(work, round, self.files, self.seconds)
        }
    }
}
