//! rclone mount, as its documents have one start it for reading, and with what they advise for S3.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::systems::{AnySystem, Kind, Served, Source, System, version_of};

pub(super) const NAMES: [&str; 2] = ["rclone", "rclone tuned"];

struct Rclone {
    program: PathBuf,
    tuned: bool,
    served: Served,
}

pub(super) fn both(program: &Path) -> Vec<AnySystem> {
    let one =
        |tuned| -> AnySystem { Box::new(Rclone { program: program.to_owned(), tuned, served: Served::default() }) };
    vec![one(false), one(true)]
}

impl System for Rclone {
    fn name(&self) -> &str {
        NAMES[usize::from(self.tuned)]
    }

    fn kind(&self) -> Kind {
        if self.tuned { Kind::Tuned } else { Kind::Shipped }
    }

    fn version(&self) -> String {
        version_of(&self.program, "--version")
    }

    fn options(&self) -> &str {
        if self.tuned {
            "as rclone, and --no-modtime --no-checksum --vfs-fast-fingerprint (its documents: S3 benefits hugely)"
        } else {
            "read-only, VFS cache mode full, directory cache 24 h, attributes 1 h, cache age 24 h, all else default"
        }
    }

    fn prepare(&mut self, _: &Source) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, source: &Source) -> anyhow::Result<PathBuf> {
        let name = self.name().to_owned();
        let (mountpoint, cache) = self.served.folders(source, &name)?;
        let mut command = Command::new(&self.program);
        command
            .arg("mount")
            .arg(format!("peer:{}/{}", source.bucket, source.prefix))
            .arg(mountpoint)
            .args(["--read-only", "--vfs-cache-mode", "full", "--dir-cache-time", "24h", "--attr-timeout", "1h"])
            .args(["--vfs-cache-max-age", "24h", "--cache-dir"])
            .arg(cache)
            // No file: what the remote is comes from the environment.
            .env("RCLONE_CONFIG", "")
            .env("RCLONE_CONFIG_PEER_TYPE", "s3")
            .env("RCLONE_CONFIG_PEER_PROVIDER", "Other")
            .env("RCLONE_CONFIG_PEER_ENDPOINT", &source.endpoint)
            .env("RCLONE_CONFIG_PEER_ACCESS_KEY_ID", &source.access_key)
            .env("RCLONE_CONFIG_PEER_SECRET_ACCESS_KEY", &source.secret_key);
        if self.tuned {
            command.args(["--no-modtime", "--no-checksum", "--vfs-fast-fingerprint"]);
        }
        self.served.start(source, &name, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
