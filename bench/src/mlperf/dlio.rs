//! The program DLIO: finding it, making data, and an epoch of training.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::summary::{self, Summary};
use crate::systems::find_program;

/// The name of the program.
const NAME: &str = "dlio_benchmark";

/// An installed DLIO.
pub(super) struct Dlio {
    path: PathBuf,
    /// The search path of its helpers, which are in its folder.
    search_path: OsString,
}

impl Dlio {
    /// The program that `--dlio` names, or the one that is installed. Errors say how to install it.
    pub(super) fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => find_program(NAME).with_context(|| {
                format!("no {NAME} on PATH: bench/install-dlio installs it, or set --dlio to its path")
            })?,
        };
        // The installed program is a link into its virtual environment.
        let path = path.canonicalize().with_context(|| format!("--dlio {}", path.display()))?;
        let folders = path.parent().map(Path::to_owned).into_iter();
        let others = std::env::var_os("PATH").unwrap_or_default();
        let search_path = std::env::join_paths(folders.chain(std::env::split_paths(&others)))
            .with_context(|| format!("{} has a ':' in its path", path.display()))?;
        Ok(Self { path, search_path })
    }

    /// Makes the data of a workload in `folder`.
    pub(super) fn generate(&self, options: &[String], folder: &Path, output: &Path) -> anyhow::Result<()> {
        let flags = ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"].map(str::to_owned);
        self.run(options, folder, output, flags)
    }

    /// Trains for one epoch on the data in `folder`, in the order of this seed.
    pub(super) fn train(&self, options: &[String], folder: &Path, output: &Path, seed: u64) -> anyhow::Result<Summary> {
        let flags = [
            "++workload.workflow.generate_data=False".to_owned(),
            "++workload.workflow.train=True".to_owned(),
            "++workload.train.epochs=1".to_owned(),
            // NumPy's seeds have 32 bits.
            format!("++workload.train.seed={}", seed & 0x7fff_ffff),
        ];
        self.run(options, folder, output, flags)?;
        let path = output.join("summary.json");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        summary::parse(&text)
    }

    /// Runs it with an empty folder `output` for all that it writes beside the data.
    fn run(
        &self,
        options: &[String],
        folder: &Path,
        output: &Path,
        flags: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<()> {
        let _ = std::fs::remove_dir_all(output);
        std::fs::create_dir_all(output).with_context(|| format!("create the directory {}", output.display()))?;
        let ended = Command::new(&self.path)
            .args(options)
            .args(flags)
            .arg(format!("++workload.dataset.data_folder={}", folder.display()))
            .arg(format!("++workload.output.folder={}", output.display()))
            .arg(format!("hydra.run.dir={}", output.display()))
            .env("PATH", &self.search_path)
            .env("DFTRACER_ENABLE", "0")
            .current_dir(output)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start {}", self.path.display()))?;
        if !ended.status.success() {
            let words = String::from_utf8_lossy(&ended.stderr);
            bail!("{NAME}: {}: {}", ended.status, words.trim().lines().last().unwrap_or_default());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program in place of DLIO.
    fn program(folder: &Path, script: &str) -> Dlio {
        let path = folder.join(NAME);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Dlio::find(Some(&path)).unwrap()
    }

    #[test]
    fn an_epoch_is_trained_on_the_folder_and_its_summary_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (data, output) = (folder.path().join("data"), folder.path().join("output"));
        let summary = r#"{"metric": {"train_au_percentage": [50.0], "train_throughput_samples_per_second": [7.0]}}"#;
        let dlio = program(folder.path(), &format!("printf '%s\\n' \"$@\" >arguments; echo '{summary}' >summary.json"));
        let options = ["workload=unet3d_h100".to_owned()];
        let said = dlio.train(&options, &data, &output, 5).unwrap();
        assert_eq!(said, Summary { busy_percent: 50.0, samples_per_second: 7.0 });
        let arguments = std::fs::read_to_string(output.join("arguments")).unwrap();
        let data_folder = format!("++workload.dataset.data_folder={}", data.display());
        for argument in ["workload=unet3d_h100", &data_folder, "++workload.train.epochs=1", "++workload.train.seed=5"] {
            assert!(arguments.lines().any(|line| line == argument), "{argument}: {arguments}");
        }
    }

    #[test]
    fn a_run_that_fails_or_says_nothing_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("output");
        let failing = program(folder.path(), "echo 'Exception: no such format' >&2; exit 3");
        let error = failing.generate(&[], folder.path(), &output).unwrap_err().to_string();
        assert!(error.contains("no such format"), "{error}");
        program(folder.path(), "true").train(&[], folder.path(), &output, 1).unwrap_err();
        let Err(error) = Dlio::find(Some(Path::new("/nonexistent/dlio"))) else { panic!("found") };
        assert!(format!("{error:#}").contains("--dlio"), "{error:#}");
    }
}
