//! The files of a list, in its order. A thread of its own finds them: a pattern may have to look at every name of a
//! dataset.
//!
//! Invariant: lines and files that wait are bounded. The thread ends when nobody takes its files any more, when the
//! list ends, or when its sender has been silent for a minute.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::selection::{Selected, path_of_line};
use larder_dataset::{FileIndex, ManifestError};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::warn;

use crate::manifest_file::MappedManifest;

/// Files that wait to be fetched.
const FILES_MOST: usize = 1024;

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
                    warn!("a list of files to warm was not continued: its sender is gone");
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
    let mut nothing = true;
    let files: Result<(), ManifestError> = (|| {
        for file in Selected::new(manifest, path)? {
            nothing = false;
            if found.blocking_send(Found::File(file?)).is_err() {
                break;
            }
        }
        Ok(())
    })();
    let last = match files {
        Err(_) => Found::Unreadable,
        Ok(()) if nothing => Found::Nothing { line: path.to_vec() },
        Ok(()) => return if found.is_closed() { None } else { Some(()) },
    };
    found.blocking_send(last).ok()
}
