//! The program fio: finding it, checking its version, running one section of a job file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::output::{self, FioResult};
use crate::systems::find_program;

/// The oldest fio whose options and output the job files and this code support.
const OLDEST_FIO: (u32, u32) = (3, 33);

/// An installed fio that is new enough.
pub(super) struct Fio {
    path: PathBuf,
    /// The version that it reports.
    pub(super) version: String,
}

impl Fio {
    /// Finds fio on `PATH`. Errors say how to install it.
    pub(super) fn find() -> anyhow::Result<Self> {
        let (major, minor) = OLDEST_FIO;
        let path = find_program("fio").with_context(|| {
            format!("no fio on PATH: install fio {major}.{minor} or newer (bench/install-peers does)")
        })?;
        let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output().context("start fio")?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match parse_version(&version) {
            Some(found) if found >= OLDEST_FIO => Ok(Self { path, version }),
            _ => bail!(
                "{} is {version:?}: install fio {major}.{minor} or newer (bench/install-peers does)",
                path.display()
            ),
        }
    }

    /// Runs one section of a job file, with these variables, and returns its figures. `said` is the file for its
    /// output.
    pub(super) fn run(
        &self,
        jobs: &Path,
        section: &str,
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
        said: &Path,
    ) -> anyhow::Result<FioResult> {
        let output = Command::new(&self.path)
            .args(["--readonly", "--output-format=json"])
            .arg(format!("--output={}", said.display()))
            .arg(format!("--section={section}"))
            .arg(jobs)
            .envs(variables)
            .stdin(Stdio::null())
            .output()
            .context("start fio")?;
        let text = std::fs::read_to_string(said).unwrap_or_default();
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("fio: {}: {} {}", output.status, words.trim(), text.lines().next().unwrap_or_default());
        }
        output::parse(&text)
    }
}

/// The major and the minor number of a version such as "fio-3.33" or "fio-3.36-5-gabc".
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("fio-")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_version_is_parsed() {
        assert_eq!(parse_version("fio-3.33"), Some((3, 33)));
        assert_eq!(parse_version("fio-3.36-5-gabc1"), Some((3, 36)));
        assert!(parse_version("fio-3.9") < Some(OLDEST_FIO));
        assert_eq!(parse_version("fio"), None);
    }
}
