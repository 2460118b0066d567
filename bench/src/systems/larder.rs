//! Larder, over plain objects and over packs, through the command that a user runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::corpus::Corpus;
use super::programs::version_of;
use super::served::Served;
use super::system::{AnySystem, Kind, System};

/// Larder over plain objects or over packs.
struct Larder {
    binary: PathBuf,
    packed: bool,
    /// Of `larder mount`, beside those that every mount has.
    flags: Vec<String>,
    served: Served,
}

/// Larder over plain objects, and over packs.
pub(super) fn both(binary: &Path) -> Vec<AnySystem> {
    let one = |packed| -> AnySystem { Box::new(Larder::new(binary, packed, Vec::new())) };
    vec![one(false), one(true)]
}

/// Larder over plain objects, mounted with these flags.
pub(super) fn with_flags(binary: &Path, flags: Vec<String>) -> AnySystem {
    Box::new(Larder::new(binary, false, flags))
}

impl Larder {
    fn new(binary: &Path, packed: bool, flags: Vec<String>) -> Self {
        Self { binary: binary.to_owned(), packed, flags, served: Served::default() }
    }

    fn url(&self, corpus: &Corpus) -> String {
        let Corpus { bucket, prefix, .. } = corpus;
        if self.packed { format!("s3://{bucket}/{prefix}-packed") } else { format!("s3://{bucket}/{prefix}") }
    }

    /// The command with a separate home folder, and the keys in its environment.
    fn command(&self, corpus: &Corpus) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.binary);
        command
            .env("LARDER_HOME", corpus.folder_of(self.name())?.join("home"))
            .envs(corpus.aws_variables())
            // Errors quote the last lines of the output, where a backtrace would hide the message.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        Ok(command)
    }

    fn run(&self, corpus: &Corpus, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self
            .command(corpus)?
            .args(arguments)
            .args(["--endpoint", &corpus.endpoint])
            .output()
            .with_context(|| format!("start {}", self.binary.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("larder {}: {}: {}", arguments[0], output.status, words.trim());
        }
        Ok(())
    }
}

impl System for Larder {
    fn name(&self) -> &str {
        if self.packed { "larder packed" } else { "larder" }
    }

    fn kind(&self) -> Kind {
        Kind::Larder
    }

    fn version(&self) -> String {
        version_of(&self.binary, "--version")
    }

    fn options(&self) -> &str {
        if self.packed {
            "objects packed by `larder pack`; `larder mount` with defaults except for the cache directory"
        } else {
            "plain objects listed by `larder import`; `larder mount` with defaults except for the cache directory"
        }
    }

    fn prepare(&mut self, corpus: &Corpus) -> anyhow::Result<()> {
        let plain = format!("s3://{}/{}", corpus.bucket, corpus.prefix);
        if self.packed {
            corpus.room_for_a_copy()?;
            self.run(corpus, &["pack", &plain, &self.url(corpus)])
        } else {
            self.run(corpus, &["import", &plain])
        }
    }

    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        let name = self.name().to_owned();
        let (mountpoint, cache) = self.served.folders(corpus, &name)?;
        let mut command = self.command(corpus)?;
        command
            .args(["mount", &self.url(corpus)])
            .arg(mountpoint)
            .args(["--foreground", "--endpoint", &corpus.endpoint, "--cache-dir"])
            .arg(cache)
            .args(&self.flags);
        self.served.start(corpus, &name, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
