//! The files of a list, in its order. A thread of its own finds them: a pattern may have to look at every name of a
//! dataset.
//!
//! Invariant: lines and files that wait are bounded. The thread ends when nobody takes its files any more, also while a
//! line names none, when the list ends, or when its sender has been silent for a minute.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::FileIndex;
use larder_dataset::selection::{Advance, Selected, path_of_line};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::warn;

use crate::manifest_file::MappedManifest;

/// Files that wait to be fetched.
const FILES_MOST: usize = 1024;

/// Entries of a dataset that are looked at until the next look at whether anybody still takes files.
const STEPS_MOST: usize = 4096;

/// A sender that is silent for this long is dead. One that lives is only ever held up by warming itself.
const SILENCE_MOST: Duration = Duration::from_secs(60);

/// The result of looking up a line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A file.
    File(FileIndex),
    /// No file.
    Nothing {
        /// The line.
        line: Vec<u8>,
    },
    /// A part of the manifest that cannot be read.
    Unreadable,
}

/// The files of a list.
#[derive(Debug)]
pub(super) struct Listed(mpsc::Receiver<Found>);

impl Listed {
    /// Finds the files of `lines`. Must be called within a runtime.
    pub(super) fn start(manifest: Arc<MappedManifest>, lines: mpsc::Receiver<Vec<u8>>) -> Self {
        let (found, waiting) = mpsc::channel(FILES_MOST);
        let runtime = Handle::current();
        runtime.clone().spawn_blocking(move || find(&manifest, lines, &found, &runtime));
        Self(waiting)
    }

    /// Finds the files of the lines in a file. Must be called within a runtime.
    pub(super) fn of_file(manifest: Arc<MappedManifest>, list: File) -> Self {
        let (found, waiting) = mpsc::channel(FILES_MOST);
        Handle::current().spawn_blocking(move || {
            let mut lines = BufReader::new(list);
            let mut line = Vec::new();
            // If the order cannot be read to its end, its other files are warmed with the rest.
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let path = path_of_line(line.strip_suffix(b"\n").unwrap_or(&line));
                if path.is_some_and(|path| send_files(&manifest, path, &found).is_none()) {
                    return;
                }
                line.clear();
            }
        });
        Self(waiting)
    }

    /// The next one; `None` at the end of the list. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Found> {
        self.0.recv().await
    }
}

fn find(manifest: &MappedManifest, mut lines: mpsc::Receiver<Vec<u8>>, found: &mpsc::Sender<Found>, runtime: &Handle) {
    loop {
        let next = runtime.block_on(async {
            tokio::select! {
                () = found.closed() => None,
                next = tokio::time::timeout(SILENCE_MOST, lines.recv()) => next.unwrap_or_else(|_| {
                    warn!("dropped an incomplete list of files to warm: its sender is gone");
                    None
                }),
            }
        });
        let Some(part) = next else { return };
        for path in part.split(|&byte| byte == b'\n').filter_map(path_of_line) {
            if send_files(manifest, path, found).is_none() {
                return;
            }
        }
    }
}

/// `None` if nobody takes them any more.
fn send_files(manifest: &MappedManifest, path: &[u8], found: &mpsc::Sender<Found>) -> Option<()> {
    let Ok(mut selected) = Selected::new(manifest, path) else { return found.blocking_send(Found::Unreadable).ok() };
    let mut nothing = true;
    while !found.is_closed() {
        let next = match selected.advance(STEPS_MOST) {
            Ok(Advance::Paused) => continue,
            Ok(Advance::File(file)) => Found::File(file),
            Ok(Advance::End) if nothing => Found::Nothing { line: path.to_vec() },
            Ok(Advance::End) => return Some(()),
            Err(_) => Found::Unreadable,
        };
        nothing = false;
        let is_last = !matches!(next, Found::File(_));
        found.blocking_send(next).ok()?;
        if is_last {
            return Some(());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use larder_dataset::manifest::{ManifestBuilder, PlainFile};
    use larder_dataset::{NameRules, VersionTag};

    use super::*;
    use crate::manifest_file::open_manifest;

    // SEMANTICS: C7
    #[test]
    fn a_line_without_matches_ends_when_its_receiver_is_gone() {
        let mut builder = ManifestBuilder::new();
        for depth in 0..64 {
            let path = format!("{}f", "d/".repeat(depth));
            let version = VersionTag::MtimeSize { mtime_ns: 0, size: 1 };
            let file = PlainFile { path: path.as_bytes(), size: 1, mtime_ns: 0, version };
            builder.push(&file, NameRules::FOLDER).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest");
        std::fs::write(&path, builder.finish("n", "file:///n", 0).unwrap().to_bytes()).unwrap();
        let manifest = open_manifest(&path).unwrap();
        let (found, mut waiting) = mpsc::channel(8);
        let line = format!("{}zz*", "**/*/".repeat(20));
        assert_eq!(send_files(&manifest, line.as_bytes(), &found), Some(()));
        assert_eq!(waiting.try_recv(), Ok(Found::Nothing { line: line.clone().into_bytes() }));
        drop(waiting);
        assert_eq!(send_files(&manifest, line.as_bytes(), &found), None);
        assert_eq!(send_files(&manifest, b"**/f", &found), None);
    }
}
