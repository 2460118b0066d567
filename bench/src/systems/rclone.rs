//! `rclone mount`, with the options that its documentation gives for reading, and with the options that it recommends
//! for S3.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::corpus::Corpus;
use super::programs::version_of;
use super::served::Served;
use super::system::{AnySystem, Kind, System};

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
            "as rclone, with --no-modtime --no-checksum --vfs-fast-fingerprint (its documentation: S3 benefits hugely)"
        } else {
            "read-only, VFS cache mode full, directory cache 24 h, attributes 1 h, cache age 24 h, all else default"
        }
    }

    fn prepare(&mut self, _: &Corpus) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        let name = self.name().to_owned();
        let (mountpoint, cache) = self.served.folders(corpus, &name)?;
        let mut command = Command::new(&self.program);
        command
            .arg("mount")
            .arg(format!("peer:{}/{}", corpus.bucket, corpus.prefix))
            .arg(mountpoint)
            .args(["--read-only", "--vfs-cache-mode", "full", "--dir-cache-time", "24h", "--attr-timeout", "1h"])
            .args(["--vfs-cache-max-age", "24h", "--cache-dir"])
            .arg(cache)
            // No configuration file: the environment defines the remote.
            .env("RCLONE_CONFIG", "")
            .env("RCLONE_CONFIG_PEER_TYPE", "s3")
            .env("RCLONE_CONFIG_PEER_PROVIDER", "Other")
            .env("RCLONE_CONFIG_PEER_ENDPOINT", &corpus.endpoint)
            .env("RCLONE_CONFIG_PEER_ACCESS_KEY_ID", &corpus.access_key)
            .env("RCLONE_CONFIG_PEER_SECRET_ACCESS_KEY", &corpus.secret_key);
        if self.tuned {
            command.args(["--no-modtime", "--no-checksum", "--vfs-fast-fingerprint"]);
        }
        self.served.start(corpus, &name, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
