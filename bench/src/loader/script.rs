//! The program `bench/python/loader.py`, which makes the JPEGs and reads them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::systems::Corpus;

const TEXT: &str = include_str!("../../python/loader.py");

/// The script in a folder, and the Python that runs it.
pub(super) struct Script {
    python: PathBuf,
    path: PathBuf,
    /// The names of all files.
    list: PathBuf,
    /// Why there are no plans, if there are none.
    without_plans: Option<String>,
}

/// How the files are read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loader {
    /// Worker processes; 0 loads in the process of the training loop.
    pub workers: u32,
    /// Samples in a batch.
    pub batch: u32,
    /// Samples a second that the accelerator takes; 0 takes them as they come.
    pub accelerator: f64,
}

/// The figures of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Samples read.
    pub samples: u64,
    /// Of the first batch.
    pub first_samples: u64,
    /// Seconds from the start of the loader to the end of the epoch.
    pub seconds: f64,
    /// Seconds until the first batch was there, the start of the workers included.
    pub first_seconds: f64,
    /// Seconds in which the training loop waited for all other batches.
    pub empty_seconds: f64,
    /// A checksum of the bytes of all samples in their order.
    pub checksum: u32,
}

impl Said {
    /// Samples a second, without those of the start.
    pub fn samples_per_second(&self) -> f64 {
        self.samples.saturating_sub(self.first_samples) as f64 / (self.seconds - self.first_seconds).max(1e-9)
    }
}

impl Script {
    /// Writes the script into a folder.
    pub(super) fn write(python: PathBuf, folder: &Path) -> anyhow::Result<Self> {
        let (path, list) = (folder.join("loader.py"), folder.join("list"));
        std::fs::write(&path, TEXT).with_context(|| format!("write {}", path.display()))?;
        let mut script = Self { python, path, list, without_plans: None };
        script.command().args(["-c", "import PIL, torch"]).output_of("find torch and Pillow").with_context(|| {
            format!(
                "{} needs torch and Pillow: bench/install-peers --loaders installs a Python that has them, or set \
                 --python to one",
                script.python.display()
            )
        })?;
        let package = script.command().args(["-c", "import larder.torch"]).output_of("find the package larder");
        script.without_plans = package.err().map(|error| format!("{error:#}: install the wheel of `make wheel`"));
        Ok(script)
    }

    /// Why there are no plans, if there are none.
    pub(super) fn without_plans(&self) -> Option<&str> {
        self.without_plans.as_deref()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        // Only the loader's own order and workers count.
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
        command
    }

    /// Makes JPEGs in a new folder.
    pub(super) fn make(&self, folder: &Path, files: u32, seed: u64) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("create the directory {}", folder.display()))?;
        let mut command = self.command();
        command.arg(&self.path).arg("make").arg(folder).args([files.to_string(), seed.to_string()]);
        command.output_of("make JPEGs").map(drop)
    }

    /// Writes the names of all files, in the order of their numbers.
    pub(super) fn write_list(&self, corpus: &Corpus) -> anyhow::Result<()> {
        let names: Vec<_> = corpus.files.iter().map(|file| file.path.to_string_lossy()).collect();
        std::fs::write(&self.list, names.join("\n")).with_context(|| format!("write {}", self.list.display()))
    }

    /// Reads one epoch of the files below a folder, with a plan or without.
    pub(super) fn read(&self, folder: &Path, loader: Loader, seed: u64, is_planned: bool) -> anyhow::Result<Said> {
        let mut command = self.command();
        command.arg(&self.path).arg("read").arg(folder).arg(&self.list).args([
            loader.workers.to_string(),
            loader.batch.to_string(),
            seed.to_string(),
            loader.accelerator.to_string(),
        ]);
        if is_planned {
            command.arg("plan");
        }
        let text = command.output_of("read the JPEGs")?;
        serde_json::from_str(&text).with_context(|| format!("parse the figures of the loader: {text:?}"))
    }
}

trait OutputOf {
    /// The standard output of a program that succeeds; an error quotes the end of the other.
    fn output_of(&mut self, step: &'static str) -> anyhow::Result<String>;
}

impl OutputOf for Command {
    fn output_of(&mut self, step: &'static str) -> anyhow::Result<String> {
        let output = self.output().with_context(|| format!("{step}: start Python"))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("{step}: {}: {}", output.status, words.lines().last().unwrap_or_default());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_the_script_are_parsed() {
        let text = concat!(
            r#"{"samples": 310, "first_samples": 10, "seconds": 4.0, "first_seconds": 1.0, "#,
            r#""empty_seconds": 0.5, "checksum": 4294967295}"#
        );
        let said: Said = serde_json::from_str(text).unwrap();
        assert_eq!((said.checksum, said.samples_per_second()), (u32::MAX, 100.0));
    }

    #[test]
    fn a_python_without_torch_is_an_error_that_names_the_flag() {
        let folder = tempfile::tempdir().unwrap();
        let Err(error) = Script::write("/bin/false".into(), folder.path()) else { panic!("accepted") };
        assert!(format!("{error:#}").contains("--python"), "{error:#}");
    }
}
