//! The stats that a mount publishes in `.larder/stats.json`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use larder_cachenode::Stats;
use larder_dataset::larder_command;

/// How long a command waits for the stats of mounts. A process with little CPU needs seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Why a mount has no stats, if it does not answer.
pub(crate) const SILENT: &str = "its process does not answer: it is stopped, or has no CPU";

/// Reads the stats of mounts, each in a thread of its own: one whose process is stopped does not answer, and hides no
/// other. Waits this long at most.
pub(crate) fn read_all(dirs: &[PathBuf], patience: Duration) -> Vec<anyhow::Result<Stats>> {
    let ask = |dir: &PathBuf| {
        let (answer, answers) = sync_channel(1);
        let dir = dir.clone();
        // It ends with the answer, or with the process.
        std::thread::spawn(move || {
            let _ = answer.send(read(&dir));
        });
        answers
    };
    let asked: Vec<Receiver<anyhow::Result<Stats>>> = dirs.iter().map(ask).collect();
    let deadline = Instant::now() + patience;
    let take = |(answers, dir): (Receiver<anyhow::Result<Stats>>, &PathBuf)| {
        let left = deadline.saturating_duration_since(Instant::now());
        answers.recv_timeout(left).unwrap_or_else(|_| Err(anyhow!("{}: {SILENT}", dir.display())))
    };
    asked.into_iter().zip(dirs).map(take).collect()
}

/// The sentence about a mount without stats.
pub(crate) fn without(dir: &Path, why: &str) -> String {
    format!("{} has no figures: {why}.", dir.display())
}

/// Reads the stats of the mount at `dir`.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Stats> {
    let path = dir.join(".larder/stats.json");
    let text = std::fs::read(&path).map_err(|error| unreadable(dir, error))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}

/// A command about the mount at `dir`, ready to be pasted into a shell.
pub(crate) fn command(verb: &str, dir: &Path) -> String {
    larder_command(&[verb, &dir.to_string_lossy()])
}

/// Why the stats of the mount at `dir` cannot be opened or read.
pub(crate) fn unreadable(dir: &Path, error: io::Error) -> anyhow::Error {
    let why = match error.kind() {
        io::ErrorKind::NotConnected => format!(
            "the process that served {} is gone: mount the dataset again, or run `{}`",
            dir.display(),
            command("umount", dir)
        ),
        _ => format!("read {0}/.larder/stats.json: is {0} the root of a Larder mount?", dir.display()),
    };
    anyhow::Error::new(error).context(why)
}

/// True if stats could not be read because the mount is of a user who shares it with nobody.
pub(crate) fn is_foreign(error: &anyhow::Error) -> bool {
    error.root_cause().downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_another_user_does_not_count_as_dead() {
        for (kind, foreign) in [(io::ErrorKind::PermissionDenied, true), (io::ErrorKind::NotConnected, false)] {
            assert_eq!(is_foreign(&unreadable(Path::new("/data"), kind.into())), foreign);
        }
    }

    // SEMANTICS: W1
    #[test]
    fn a_mount_that_does_not_answer_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".larder")).unwrap();
        // A pipe that nobody writes to answers as little as a process that is stopped.
        let pipe = folder.path().join(".larder/stats.json");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = read_all(&[folder.path().to_owned()], Duration::ZERO);
        let error = read[0].as_ref().unwrap_err().to_string();
        assert!(read.len() == 1 && error.contains("does not answer"), "{error}");
    }

    #[test]
    fn a_dead_mount_is_answered_with_a_command_that_can_be_pasted() {
        let error = unreadable(Path::new("/data/my set"), io::ErrorKind::NotConnected.into());
        assert!(error.to_string().ends_with("or run `larder umount '/data/my set'`"), "{error}");
    }
}
