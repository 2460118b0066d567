//! The faults of GPUs, kept in a file, so that a restart of the process makes no GPU healthy. A reboot of the node does: it
//! resets the GPUs, and the driver tells what it did not help.
//!
//! ```json
//! {"version": 1, "boot": "3b7e…",
//!  "faults": [{"gpu": "GPU-…", "action": "drainGpu", "what": "Xid 95: …", "since": 1, "last": 2}]}
//! ```
//!
//! The file is a help, no necessity: one that is missing, torn or of another version is as if it were empty.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::health::Remembered;
use larder_kubelet::atomic_file;

const VERSION: u32 = 1;

/// The pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(30);

/// More than any node's faults take.
const LARGEST: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    boot: String,
    faults: Vec<Remembered>,
}

/// Reads what an earlier process wrote since the node was booted. `boot` is the kernel's `random/boot_id`.
pub fn load(path: &Path, boot: &str) -> Vec<Remembered> {
    use std::io::Read;
    let read = || -> io::Result<Kept> {
        let mut text = Vec::new();
        File::open(path)?.take(LARGEST).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    match read() {
        Ok(kept) if kept.version == VERSION && kept.boot == boot => kept.faults,
        Ok(_) => Vec::new(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            warn!(path = %path.display(), %error, "cannot read the GPU faults of earlier processes");
            Vec::new()
        }
    }
}

/// Writes the newest faults whenever they change, until `stop` is cancelled or the state is gone; the last ones are written
/// before it returns. `written` is what [`load`] returned. A write that fails is logged and tried again.
pub async fn keep(
    path: PathBuf,
    boot: String,
    mut written: Vec<Remembered>,
    mut memory: watch::Receiver<Vec<Remembered>>,
    stop: CancellationToken,
) {
    let mut is_last = false;
    while !is_last {
        is_last = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            changed = memory.changed() => changed.is_err(),
            () = tokio::time::sleep(AGAIN), if *memory.borrow() != written => false,
        };
        let faults = memory.borrow_and_update().clone();
        if faults == written {
            continue;
        }
        let kept = Kept { version: VERSION, boot: boot.clone(), faults: faults.clone() };
        let target = path.clone();
        let result = tokio::task::spawn_blocking(move || write(&target, &kept)).await;
        match result.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(()) => written = faults,
            Err(error) => warn!(path = %path.display(), %error, "cannot save GPU faults for a restart"),
        }
    }
}

fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let mut text = serde_json::to_vec(kept)?;
    text.push(b'\n');
    atomic_file::replace(path, &text, 0o644)
}
