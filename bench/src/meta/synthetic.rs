//! Manifests of millions of files that do not exist: the cost of mounting them before anything is read.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use larder_dataset::manifest::PlainFile;
use larder_dataset::{ManifestBuilder, NameRules, VersionTag};
use serde::Serialize;

use super::walk::{self, Rate};
use crate::systems::child::Child;
use crate::systems::{Stop, mounts};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::order::shuffled;
use larder_epochs::process::{self, Usage};

/// Size of each file in the manifest.
const FILE_BYTES: u64 = 111_000;

const FILES_IN_A_FOLDER: u32 = 1000;

/// Number of files that are looked up.
const LOOK_UPS: u32 = 100_000;

/// One synthetic manifest, mounted once.
#[derive(Clone, Debug, Serialize)]
pub struct SyntheticRow {
    /// Number of files in the manifest.
    pub files: u32,
    /// The round, from 0.
    pub round: u32,
    /// Seconds from the start of the daemon to its first answer to a look-up.
    pub mount_seconds: f64,
    /// Resident memory of the daemon after that look-up.
    pub rss_bytes_mounted: u64,
    /// Look-ups of up to 100,000 different files in random order by one thread.
    pub stat: Rate,
    /// Resident memory of the daemon after all look-ups.
    pub rss_bytes: u64,
    /// Size of the manifest.
    pub manifest_bytes: u64,
}

/// A manifest in a separate folder.
pub(super) struct Made {
    folder: PathBuf,
    manifest: PathBuf,
    files: u32,
    bytes: u64,
}

impl Made {
    /// Creates the manifest. This takes about 200 bytes of memory per file.
    pub(super) fn new(folder: &Path, files: u32) -> anyhow::Result<Self> {
        let origin = folder.join("origin");
        std::fs::create_dir_all(&origin).with_context(|| format!("create the directory {}", origin.display()))?;
        let mut builder = ManifestBuilder::new();
        for file in 0..files {
            let version = VersionTag::MtimeSize { mtime_ns: 0, size: FILE_BYTES };
            let path = path(file);
            let source = PlainFile { path: path.as_bytes(), size: FILE_BYTES, mtime_ns: 0, version };
            if let Err(reason) = builder.push(&source, NameRules::FOLDER) {
                bail!("add {path} to the manifest: {reason}");
            }
        }
        let built = builder.finish("synthetic", &format!("file://{}", origin.display()), 0)?;
        let manifest = folder.join("manifest");
        let context = || format!("write {}", manifest.display());
        let mut out = BufWriter::new(std::fs::File::create(&manifest).with_context(context)?);
        built.parts.iter().try_for_each(|part| out.write_all(part)).with_context(context)?;
        out.flush().with_context(context)?;
        Ok(Self { folder: folder.to_owned(), bytes: built.len_bytes(), manifest, files })
    }

    /// Mounts it with nothing in the kernel's caches, looks files up, and unmounts it.
    pub(super) fn measure(&self, binary: &Path, round: u32, seed: u64, stop: &Stop) -> anyhow::Result<SyntheticRow> {
        let [mountpoint, cache] = ["mnt", "cache"].map(|name| self.folder.join(name));
        for folder in [&mountpoint, &cache] {
            std::fs::create_dir_all(folder).with_context(|| format!("create the directory {}", folder.display()))?;
        }
        drop_kernel_caches()?;
        let mut command = Command::new(binary);
        command
            .env("LARDER_HOME", self.folder.join("home"))
            .arg("mount")
            .args([&self.manifest, &mountpoint])
            .args(["--foreground", "--cache-size", "1GiB", "--cache-dir"])
            .arg(&cache)
            .stdin(Stdio::null());
        let started = Instant::now();
        let mut daemon = Child::spawn("larder", &mut command, &self.folder.join("log"))?;
        let measured = mounts::wait_for(&mountpoint, &mut daemon, stop).and_then(|()| {
            let last = mountpoint.join(path(self.files - 1));
            std::fs::symlink_metadata(&last).with_context(|| format!("look at {}", last.display()))?;
            let mount_seconds = started.elapsed().as_secs_f64();
            let processes = process::family(daemon.id());
            let rss_bytes_mounted = Usage::of(&processes).rss_bytes;
            let mut order = shuffled(self.files, seed.wrapping_mul(1000).wrapping_add(u64::from(round)));
            order.truncate(LOOK_UPS as usize);
            let paths: Vec<PathBuf> = order.iter().map(|&file| path(file).into()).collect();
            let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
            // The paths are already shuffled.
            let in_order: Vec<u32> = (0_u32..).take(paths.len()).collect();
            let stat = walk::stat(&mountpoint, &paths, &in_order, 1, FILE_BYTES)?;
            Ok(SyntheticRow {
                files: self.files,
                round,
                mount_seconds,
                rss_bytes_mounted,
                stat,
                rss_bytes: Usage::of(&processes).rss_bytes,
                manifest_bytes: self.bytes,
            })
        });
        let unmounted = mounts::unmount(&mountpoint);
        daemon.end();
        let _ = std::fs::remove_dir_all(&cache);
        let row = measured?;
        unmounted?;
        Ok(row)
    }
}

/// The path of a file, in the order of the manifest.
fn path(file: u32) -> String {
    format!("class-{:05}/image-{file:08}.jpg", file / FILES_IN_A_FOLDER)
}

#[cfg(test)]
mod tests {
    use larder_dataset::{FileIndex, Manifest};

    use super::*;

    #[test]
    fn a_synthetic_manifest_can_be_opened_and_has_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let made = Made::new(folder.path(), 2500).unwrap();
        let manifest = Manifest::open(std::fs::read(&made.manifest).unwrap()).unwrap();
        manifest.verify().unwrap();
        assert_eq!((manifest.totals().files, manifest.totals().dirs), (2500, 4));
        assert_eq!(manifest.len_bytes(), made.bytes);
        let last = manifest.file(FileIndex(2499)).unwrap();
        assert_eq!(manifest.file_path(&last).unwrap(), path(2499).as_bytes());
        assert_eq!(last.size, FILE_BYTES);
    }
}
