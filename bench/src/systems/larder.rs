//! Larder, over plain objects and over packs, by the command that a user runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::systems::{AnySystem, Kind, Served, Source, System, version_of};

/// Larder over one form of the objects.
struct Larder {
    binary: PathBuf,
    packed: bool,
    served: Served,
}

/// Larder over plain objects, and over packs.
pub(super) fn both(binary: &Path) -> Vec<AnySystem> {
    let one =
        |packed| -> AnySystem { Box::new(Larder { binary: binary.to_owned(), packed, served: Served::default() }) };
    vec![one(false), one(true)]
}

impl Larder {
    fn url(&self, source: &Source) -> String {
        let Source { bucket, prefix, .. } = source;
        if self.packed { format!("s3://{bucket}/{prefix}-packed") } else { format!("s3://{bucket}/{prefix}") }
    }

    /// The command with a home of its own, and the keys in its environment.
    fn command(&self, source: &Source) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.binary);
        command
            .env("LARDER_HOME", source.folder_of(self.name())?.join("home"))
            .envs(source.aws_variables())
            // Its last words are shown in errors.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        Ok(command)
    }

    fn run(&self, source: &Source, arguments: &[&str]) -> anyhow::Result<()> {
        let output = self
            .command(source)?
            .args(arguments)
            .args(["--endpoint", &source.endpoint])
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
            "the objects packed once by `larder pack`, `larder mount` with nothing set but where the cache is"
        } else {
            "plain objects listed once by `larder import`, `larder mount` with nothing set but where the cache is"
        }
    }

    fn prepare(&mut self, source: &Source) -> anyhow::Result<()> {
        let plain = format!("s3://{}/{}", source.bucket, source.prefix);
        if self.packed {
            source.room_for_a_copy()?;
            self.run(source, &["pack", &plain, &self.url(source)])
        } else {
            self.run(source, &["import", &plain])
        }
    }

    fn mount(&mut self, source: &Source) -> anyhow::Result<PathBuf> {
        let name = self.name().to_owned();
        let (mountpoint, cache) = self.served.folders(source, &name)?;
        let mut command = self.command(source)?;
        command
            .args(["mount", &self.url(source)])
            .arg(mountpoint)
            .args(["--foreground", "--endpoint", &source.endpoint, "--cache-dir"])
            .arg(cache);
        self.served.start(source, &name, &mut command)
    }

    fn processes(&self) -> Vec<u32> {
        self.served.processes()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.served.unmount()
    }
}
