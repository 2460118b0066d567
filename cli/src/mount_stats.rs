//! The stats that a mount publishes in `.larder/stats.json`.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use larder_cachenode::Stats;
use larder_dataset::larder_command;

/// Reads the stats of the mount at `dir`.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Stats> {
    let path = dir.join(".larder/stats.json");
    let text = std::fs::read(&path).map_err(|error| unreadable(dir, error))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}

/// The same, or an error after `limit`: a mount whose process is stopped, or whose service restarts, does not answer.
pub(crate) fn read_within(dir: &Path, limit: Duration) -> anyhow::Result<Stats> {
    let (sender, receiver) = mpsc::channel();
    let asked = dir.to_owned();
    // It ends with this process, if the mount never answers; when it answers too late, nobody receives.
    std::thread::spawn(move || drop(sender.send(read(&asked))));
    receiver.recv_timeout(limit).with_context(|| format!("{} does not answer", dir.display()))?
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

    #[test]
    fn a_dead_mount_is_answered_with_a_command_that_can_be_pasted() {
        let error = unreadable(Path::new("/data/my set"), io::ErrorKind::NotConnected.into());
        assert!(error.to_string().ends_with("or run `larder umount '/data/my set'`"), "{error}");
    }
}
