//! The passes of the last mounts of this machine, so that yesterday's job can be explained.
//!
//! A task appends each pass that has ended to a file of the home folder, one line of JSON each. A file that is large
//! enough takes the place of the one before it, so there are at most two. Passes that come while the disk hangs are
//! dropped beyond a number: nothing waits for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use larder_dataset::Chain;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinHandle;
use tracing::debug;

use crate::passes::Pass;

/// The name of the file in the home folder.
const NAME: &str = "history.jsonl";

/// The name of the file that it takes the place of.
const OLD_NAME: &str = "history.old.jsonl";

/// A file of so many bytes, about a thousand passes, is large enough.
const FILE_BYTES: u64 = 1 << 20;

/// Passes that wait to be written, at most: more than a node has mounts, whose passes all end when it stops.
const WAITING: usize = 1_000;

/// How long a stop waits for the last passes to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A pass over a dataset that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRecord {
    /// The dataset's name.
    pub name: String,
    /// URL of the origin; never holds credentials.
    pub origin: String,
    /// Snapshot id, 64 hex digits.
    pub snapshot: String,
    /// The id of its cache.
    pub cache: String,
    /// The policy's name.
    pub policy: String,
    /// When the pass ended, in seconds since 1970.
    pub ended_unix_seconds: i64,
    /// The pass.
    pub pass: Pass,
}

/// Writes passes to the file.
#[derive(Debug)]
pub(crate) struct History(Mutex<Option<(Sender<PassRecord>, JoinHandle<()>)>>);

impl History {
    /// Writes to a file of the folder `home`, on `runtime`.
    pub(crate) fn start(home: &Path, runtime: &Handle) -> Self {
        let (sender, mut ended) = channel::<PassRecord>(WAITING);
        let home = home.to_owned();
        let writing = runtime.spawn(async move {
            while let Some(record) = ended.recv().await {
                let home = home.clone();
                let written = tokio::task::spawn_blocking(move || append(&home, &record)).await;
                if let Err(error) = written.unwrap_or_else(|panic| Err(panic.into())) {
                    debug!(error = %Chain(&error), "cannot write down a pass");
                }
            }
        });
        Self(Mutex::new(Some((sender, writing))))
    }

    /// Adds a pass. Drops it if too many wait for the disk.
    pub(crate) fn add(&self, record: PassRecord) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((sender, _)) = &*open
            && sender.try_send(record).is_err()
        {
            debug!("a pass is not written down: the disk of the home folder does not answer");
        }
    }

    /// Waits a bounded time until all passes are written. None is added after that.
    pub(crate) async fn close(&self) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, writing)) = open {
            drop(sender);
            // A disk that hangs costs the last passes.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, writing).await;
        }
    }
}

fn append(home: &Path, record: &PassRecord) -> io::Result<()> {
    let open = || OpenOptions::new().append(true).create(true).mode(0o600).open(home.join(NAME));
    let mut file = open()?;
    if file.metadata()?.len() >= FILE_BYTES {
        rotate(home, &file)?;
        file = open()?;
    }
    // In one write, after the end of a line: a line that a full disk has cut off takes no other with it.
    let line = format!("\n{}\n", serde_json::to_string(record)?);
    file.write_all(line.as_bytes())
}

/// Has the file that is `full` take the place of the one before it. Several processes may write to a home.
fn rotate(home: &Path, full: &File) -> io::Result<()> {
    // Until the file is closed.
    full.lock()?;
    let path = home.join(NAME);
    // Another process may have done it since this one opened the file.
    if File::open(&path)?.metadata()?.len() >= FILE_BYTES {
        std::fs::rename(&path, home.join(OLD_NAME))?;
    }
    Ok(())
}

/// The passes that were written to the folder `home`, oldest first. Lines that are not whole are left out, and so is a
/// file that cannot be read.
pub fn read(home: &Path) -> Vec<PassRecord> {
    [OLD_NAME, NAME].into_iter().flat_map(|name| records(home.join(name))).collect()
}

fn records(path: PathBuf) -> Vec<PassRecord> {
    let mut bytes = Vec::new();
    // Twice what it may have: another version may have written it.
    let read = File::open(path).and_then(|file| file.take(2 * FILE_BYTES).read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> PassRecord {
        PassRecord {
            name: "d".to_owned(),
            origin: "s3://bucket/d".to_owned(),
            snapshot: "0".repeat(64),
            cache: "0".repeat(64),
            policy: "nr".to_owned(),
            ended_unix_seconds: 1_000,
            pass: Pass { number, hit_ratio: Some(0.5), ..Pass::default() },
        }
    }

    fn numbers(home: &Path) -> Vec<u64> {
        read(home).iter().map(|record| record.pass.number).collect()
    }

    #[tokio::test]
    async fn passes_outlive_the_process_and_a_line_that_is_cut_off_takes_no_other_with_it() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path()), [], "nothing was mounted yet");
        let history = History::start(home.path(), &Handle::current());
        history.add(record(1));
        history.close().await;
        history.add(record(99));
        let path = home.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&whole[..whole.len() / 2]).unwrap();

        let history = History::start(home.path(), &Handle::current());
        history.add(record(2));
        history.close().await;
        assert_eq!(read(home.path()), [record(1), record(2)]);
    }

    #[test]
    fn the_history_is_bounded_and_its_newest_passes_stay() {
        let home = tempfile::tempdir().unwrap();
        let each = serde_json::to_string(&record(0)).unwrap().len() as u64;
        let all = 3 * FILE_BYTES / each;
        (0..all).for_each(|number| append(home.path(), &record(number)).unwrap());
        let bytes: u64 = std::fs::read_dir(home.path()).unwrap().map(|it| it.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes < 2 * FILE_BYTES + 4 * each, "{bytes} bytes");
        let numbers = numbers(home.path());
        assert!(numbers.is_sorted() && numbers.len() as u64 > FILE_BYTES / each / 2);
        assert_eq!(numbers.last(), Some(&(all - 1)));
    }

    #[test]
    fn two_processes_that_find_the_file_full_move_it_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(NAME);
        append(home.path(), &record(1)).unwrap();
        // Lines of another version.
        let mut full = OpenOptions::new().append(true).open(&path).unwrap();
        full.write_all("\n".repeat(FILE_BYTES as usize).as_bytes()).unwrap();
        let others = File::open(&path).unwrap();
        append(home.path(), &record(2)).unwrap();
        rotate(home.path(), &others).unwrap();
        assert_eq!(numbers(home.path()), [1, 2]);
    }

    #[tokio::test]
    async fn a_home_that_cannot_be_written_to_costs_the_history_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("a file");
        std::fs::write(&home, "").unwrap();
        let history = History::start(&home, &Handle::current());
        (0..10 * WAITING as u64).for_each(|number| history.add(record(number)));
        history.close().await;
        assert_eq!(read(&home), []);
    }
}
