//! Advice to the kernel that files will be read, which it follows by reading them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::{Advice as KernelAdvice, fadvise};

/// How long the kernel may take for the next file before it counts as taking no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Advice that a thread gives, one file after the other.
pub(super) struct Advice(Receiver<anyhow::Result<()>>);

impl Advice {
    /// Starts the thread. The kernel blocks it once a mount has as many background requests as the kernel allows, until
    /// they are answered or the mount ends.
    pub(super) fn give(paths: Vec<PathBuf>) -> anyhow::Result<Self> {
        let (sender, taken) = channel();
        let give = move || {
            // Ends early if the caller has gone.
            let _ = paths.iter().try_for_each(|path| sender.send(give_for(path)));
        };
        thread::Builder::new().spawn(give).context("start a thread")?;
        Ok(Self(taken))
    }

    /// Waits until the kernel has taken the advice for `count` files, or takes no more. Returns for how many it has.
    pub(super) fn taken(&self, count: u32) -> anyhow::Result<u32> {
        let mut taken = 0;
        while taken < count {
            // A timeout: the kernel takes no more. A closed channel: there is no more.
            let Ok(advice) = self.0.recv_timeout(PATIENCE) else { break };
            advice?;
            taken += 1;
        }
        Ok(taken)
    }
}

/// The kernel reads a whole file at once only if its read-ahead covers it.
fn give_for(path: &Path) -> anyhow::Result<()> {
    let context = || format!("advise the kernel to read {}", path.display());
    let file = File::open(path).with_context(context)?;
    fadvise(&file, 0, None, KernelAdvice::WillNeed).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_counted_and_a_file_that_cannot_be_opened_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["a", "b", "c"].map(|name| folder.path().join(name)).into();
        paths.iter().for_each(|path| std::fs::write(path, b"bytes").unwrap());
        assert_eq!(Advice::give(paths.clone()).unwrap().taken(4).unwrap(), 3);
        std::fs::remove_file(&paths[1]).unwrap();
        let error = Advice::give(paths).unwrap().taken(3).unwrap_err();
        assert!(error.to_string().contains("advise the kernel"), "{error}");
    }
}
