//! The reader, the same for every system: `larder bench epochs` in a separate process, so that its CPU time is
//! separate.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::systems::Stop;
use crate::systems::child::Child;
use larder_epochs::epochs::Epoch;

/// The timeout of an epoch, and its extension per file. A system that needs more time is stuck.
const TIMEOUT: Duration = Duration::from_secs(120);
const TIMEOUT_A_FILE: Duration = Duration::from_millis(50);

/// Starts readers.
pub(crate) struct Reader<'a> {
    /// The command `larder`.
    pub(crate) binary: &'a Path,
    /// The list of the files, with their sizes and checksums.
    pub(crate) expected: &'a Path,
    /// An existing folder for its log and its figures.
    pub(crate) work: &'a Path,
    /// Ends an epoch early.
    pub(crate) stop: &'a Stop,
}

impl Reader<'_> {
    /// Reads the first `files` in the order of this seed and checks them.
    pub(crate) fn read(&self, folder: &Path, readers: u32, files: u32, seed: u64) -> anyhow::Result<Epoch> {
        let json = self.work.join("epochs.json");
        let mut command = Command::new(self.binary);
        command
            .args(["bench", "epochs"])
            .arg(folder)
            .args(["--epochs", "1"])
            .arg(format!("--readers={readers}"))
            .arg(format!("--files={files}"))
            .arg(format!("--seed={seed}"))
            .arg("--expect")
            .arg(self.expected)
            .arg("--json")
            .arg(&json)
            // The table shows the error, which must not include a backtrace.
            .env("RUST_BACKTRACE", "0");
        let mut reader = Child::spawn("reader", &mut command, &self.work.join("log"))?;
        let (started, limit) = (Instant::now(), TIMEOUT + TIMEOUT_A_FILE * files);
        let status = loop {
            if let Some(status) = reader.ended()? {
                break status;
            }
            self.stop.check()?;
            if started.elapsed() > limit {
                bail!("the reader did not end within {} s", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            bail!("the reader ended with {status}: {}", reader.last_words());
        }
        let text = std::fs::read(&json).with_context(|| format!("read {}", json.display()))?;
        let epochs: Vec<Epoch> = serde_json::from_slice(&text).context("parse the reader's output")?;
        let epoch = epochs.into_iter().next().context("the reader measured nothing")?;
        if epoch.files != u64::from(files) {
            bail!("the reader read {} of {files} files", epoch.files);
        }
        Ok(epoch)
    }
}
