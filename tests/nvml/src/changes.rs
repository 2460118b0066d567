//! Waits until the file may have been replaced.
//!
//! NVIDIA's library sleeps while it waits for events. This library sleeps too, so that measurements do not include
//! polling.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

/// The polling interval without inotify, whose instances the kernel limits for each user.
const TICK: Duration = Duration::from_millis(50);

/// Changes in the file's directory.
pub(crate) struct Changes(Option<&'static OwnedFd>);

impl Changes {
    /// Watches the file from now on. Each change wakes one waiting thread.
    pub(crate) fn of(file: &Path) -> Self {
        static WATCH: OnceLock<Option<OwnedFd>> = OnceLock::new();
        Self(WATCH.get_or_init(|| watch(file.parent()?).ok()).as_ref())
    }

    /// Returns after `timeout`, or earlier if the file may have been replaced.
    pub(crate) fn wait(&self, timeout: Duration) {
        let Some(watch) = self.0 else { return sleep(TICK.min(timeout)) };
        let timeout = Timespec::try_from(timeout).ok();
        let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], timeout.as_ref());
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(watch, &mut buffer);
        while reader.next().is_ok() {}
    }
}

fn watch(folder: &Path) -> rustix::io::Result<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let what = WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE | WatchFlags::MOVE;
    inotify::add_watch(&watch, folder, what)?;
    Ok(watch)
}
