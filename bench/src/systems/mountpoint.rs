//! Mountpoint for Amazon S3.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::systems::{AnySystem, Kind, Served, Source, System, version_of};

pub(super) const NAME: &str = "mountpoint-s3";

struct Mountpoint {
    program: PathBuf,
    served: Served,
}

pub(super) fn new(program: &Path) -> AnySystem {
    Box::new(Mountpoint { program: program.to_owned(), served: Served::default() })
}

impl System for Mountpoint {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> Kind {
        Kind::Shipped
    }

    fn version(&self) -> String {
        version_of(&self.program, "--version")
    }

    fn options(&self) -> &str {
        "read-only, disk cache, metadata kept for ever (--metadata-ttl indefinite), all else default"
    }

    fn prepare(&mut self, _: &Source) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, source: &Source) -> anyhow::Result<PathBuf> {
        let (mountpoint, cache) = self.served.folders(source, NAME)?;
        let mut command = Command::new(&self.program);
        command
            .arg(&source.bucket)
            .arg(mountpoint)
            .args(["--foreground", "--read-only", "--force-path-style", "--region", "us-east-1"])
            .args(["--endpoint-url", &source.endpoint, "--prefix", &format!("{}/", source.prefix)])
            .args(["--metadata-ttl", "indefinite", "--cache"])
            .arg(cache)
            .envs(source.aws_variables())
            // It looks for the kind of cloud machine it is on otherwise.
            .env("AWS_EC2_METADATA_DISABLED", "true");
        self.served.start(source, NAME, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
