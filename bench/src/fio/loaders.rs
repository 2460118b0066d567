//! Loaders of model weights, which read a mount beside fio: `bench/fio/load.py` runs them.
//!
//! Invariant: a loader whose packages are missing is reported, never skipped in silence.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::model::{eighth_bytes, tensor_bytes};
use super::output::FioResult;
use crate::side_by_side::LeftOut;
use crate::systems::find_python;
use larder_epochs::epochs::Epoch;

/// The loader that reads an eighth of each tensor.
const EIGHTH: &str = "safetensors_eighth";

/// The loaders, by their names in `load.py`. Only the first two need no packages.
pub(super) const LOADERS: [&str; 4] = ["safetensors", EIGHTH, "runai", "fastsafetensors"];

/// The installed loaders.
pub(super) struct Loaders {
    python: PathBuf,
    script: PathBuf,
    /// The names of those that can run.
    pub(super) names: Vec<&'static str>,
}

/// The output of `load.py`.
#[derive(Deserialize)]
struct Loaded {
    bytes: u64,
    seconds: f64,
    tensor_seconds: Vec<f64>,
}

impl Loaders {
    /// Writes the script into `folder` and finds out which loaders can run. Returns the others with the reason.
    pub(super) fn find(folder: &Path) -> anyhow::Result<(Self, Vec<LeftOut>)> {
        let script = folder.join("load.py");
        std::fs::write(&script, include_str!("../../fio/load.py")).context("write load.py")?;
        let mut found = Self { python: find_python(), script, names: Vec::new() };
        let mut left_out = Vec::new();
        for name in LOADERS {
            match found.load(name, None) {
                Ok(_) => found.names.push(name),
                Err(error) => left_out.push(LeftOut {
                    name: format!("{name} (a loader)"),
                    why: format!("{error:#} (bench/install-peers --loaders installs its packages)"),
                }),
            }
        }
        Ok((found, left_out))
    }

    /// Loads the tensors of `file`, a model of `size` bytes.
    pub(super) fn run(&self, name: &str, file: &Path, size: u64) -> anyhow::Result<FioResult> {
        let expected = if name == EIGHTH { eighth_bytes(size) } else { tensor_bytes(size) };
        let output = self.load(name, Some(file))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // A library may print lines of its own before.
        let last = text.lines().last().unwrap_or_default();
        let loaded: Loaded = serde_json::from_str(last).with_context(|| format!("parse the output {text:?}"))?;
        ensure!(loaded.bytes == expected, "{name} loaded {} bytes instead of {expected}", loaded.bytes);
        let times = loaded.tensor_seconds.into_iter().map(Duration::from_secs_f64).collect();
        Ok(Epoch::new(times, loaded.bytes, loaded.seconds, 0.0).into())
    }

    /// Runs the script; without a file, it only imports what the loader needs.
    fn load(&self, name: &str, file: Option<&Path>) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.python);
        let output = command.arg(&self.script).arg(name).args(file).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("start {}", self.python.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            // The last line of a traceback is the error.
            bail!("{name}: {}", words.trim().lines().last().unwrap_or("Python failed"));
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::write_header;
    use super::*;

    #[test]
    fn all_tensors_of_a_model_are_loaded_and_what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (loaders, left_out) = Loaders::find(folder.path()).unwrap();
        assert_eq!(loaders.names[..2], LOADERS[..2], "they need only Python: {left_out:?}");
        assert_eq!(loaders.names.len() + left_out.len(), LOADERS.len());
        for one in &left_out {
            assert!(one.why.contains("install-peers --loaders"), "{one:?}");
        }
        let (file, size) = (folder.path().join("model"), 5_000_001);
        std::fs::write(&file, vec![7; size as usize]).unwrap();
        write_header(&file, size).unwrap();
        let loaded = loaders.run("safetensors", &file, size).unwrap();
        assert_eq!(loaded.bytes, tensor_bytes(size));
        let eighth = loaders.run(EIGHTH, &file, size).unwrap();
        assert!(eighth.bytes.abs_diff(loaded.bytes / 8) < 100, "{}", eighth.bytes);
        assert!(loaders.run("safetensors", &file, size + 1).unwrap_err().to_string().contains("instead of"));
    }
}
