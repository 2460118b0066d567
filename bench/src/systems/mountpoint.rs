//! Mountpoint for Amazon S3.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::corpus::Corpus;
use super::programs::version_of;
use super::served::Served;
use super::system::{AnySystem, Kind, System};

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
        "read-only, disk cache, metadata cached without limit (--metadata-ttl indefinite), all else default"
    }

    fn prepare(&mut self, _: &Corpus) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        let (mountpoint, cache) = self.served.folders(corpus, NAME)?;
        let mut command = Command::new(&self.program);
        command
            .arg(&corpus.bucket)
            .arg(mountpoint)
            .args(["--foreground", "--read-only", "--force-path-style", "--region", "us-east-1"])
            .args(["--endpoint-url", &corpus.endpoint, "--prefix", &format!("{}/", corpus.prefix)])
            .args(["--metadata-ttl", "indefinite", "--cache"])
            .arg(cache)
            .envs(corpus.aws_variables())
            // Otherwise it queries the instance metadata service of AWS, which does not exist here.
            .env("AWS_EC2_METADATA_DISABLED", "true");
        self.served.start(corpus, NAME, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
