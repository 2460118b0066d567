//! Notices when sockets appear and disappear in the kubelet's folder.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::registration::KUBELET_SOCKET;

/// How often the folder is checked without an event: it may have been replaced.
const LOOK: Duration = Duration::from_secs(5);

/// How soon a missing folder is looked for again.
const RETRY: Duration = Duration::from_millis(250);

/// Increments `changes` whenever the kubelet's socket or one of ours may have changed, until `stop`.
pub(super) async fn watch(folder: PathBuf, changes: watch::Sender<u64>, stop: CancellationToken) {
    let mut is_told = false;
    loop {
        let failed = tokio::select! {
            () = stop.cancelled() => return,
            failed = follow(&folder, &changes) => failed,
        };
        if let Err(error) = failed
            && !std::mem::replace(&mut is_told, true)
        {
            warn!(folder = %folder.display(), %error, "cannot watch the kubelet's directory; retrying");
        }
        tokio::time::sleep(RETRY).await;
        changes.send_modify(|count| *count += 1);
    }
}

/// Watches the folder until an error occurs.
async fn follow(folder: &Path, changes: &watch::Sender<u64>) -> io::Result<()> {
    #[expect(deprecated, reason = "the replacement is unsafe; this descriptor is owned, so it stays valid")]
    let events = AsyncFd::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)?;
    let what = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    loop {
        // If this folder is already watched, the call changes nothing. If the folder was replaced, the call watches the
        // new one.
        inotify::add_watch(events.get_ref(), folder, what)?;
        // Reported after the watch begins, so no change in between is missed.
        changes.send_modify(|count| *count += 1);
        while let Ok(ready) = tokio::time::timeout(LOOK, events.readable()).await {
            let mut ready = ready?;
            if drain(events.get_ref())? {
                changes.send_modify(|count| *count += 1);
            }
            ready.clear_ready();
        }
    }
}

/// Reads all pending events. True if one may concern the kubelet's socket or one of ours.
fn drain(events: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(events, &mut buffer);
    let mut is_about_us = false;
    loop {
        match reader.next() {
            Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the directory was removed"));
            }
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_bytes());
                is_about_us |=
                    name.is_none_or(|name| name == KUBELET_SOCKET.as_bytes() || name.starts_with(b"larder-"));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(is_about_us),
            Err(errno) => return Err(errno.into()),
        }
    }
}
