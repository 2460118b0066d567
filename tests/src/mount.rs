//! [`Mount`]: a dataset mounted by the real binary, in a process of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::is_zombie;

/// A mounted dataset.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    pid: u32,
    /// The process serves other mounts as well, and does not end with this one.
    standing: bool,
}

impl Mount {
    pub(crate) fn new(dir: PathBuf, standing: bool) -> Self {
        let mut mount = Self { dir, pid: 0, standing };
        mount.pid = u32::try_from(mount.stats()["process"]["pid"].as_u64().unwrap()).unwrap();
        mount
    }

    /// A mount that `larder mount` has made at `dir`.
    pub fn of(dir: PathBuf) -> Self {
        Self::new(dir, false)
    }

    /// A mount whose daemon outlives it.
    pub fn standing(dir: PathBuf) -> Self {
        Self::new(dir, true)
    }

    /// A path below the mount.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.join(path)
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The serving process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// `.larder/stats.json`.
    pub fn stats(&self) -> Value {
        // The file keeps its content for 50 ms, so that the pieces of one read belong together.
        std::thread::sleep(Duration::from_millis(60));
        serde_json::from_slice(&std::fs::read(self.path(".larder/stats.json")).unwrap()).unwrap()
    }

    /// One of its metrics.
    pub fn metric(&self, name: &str) -> u64 {
        self.stats()["metrics"][name].as_u64().unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// Waits until `done`, at most 30 s.
    pub fn wait_until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let started = Instant::now();
        while !done(self) {
            assert!(started.elapsed() < Duration::from_secs(30), "waited in vain until {what}: {:#}", self.stats());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nothing is in flight from the origin or into the store.
    pub fn settle(&self) {
        self.wait_until("the mount is idle", |mount| mount.metric("fs_fetches_running") == 0);
    }

    /// Drops a file's pages from the kernel's cache, so that the next read reaches the mount.
    pub fn drop_pages(&self, path: impl AsRef<Path>) {
        let file = std::fs::File::open(self.path(path)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    /// Reads a file past the kernel's page cache.
    pub fn read_fresh(&self, path: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(self.path(path))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes)?;
        Ok(bytes)
    }

    /// `kill -9` of the serving process. The dead mount stays.
    pub fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", self.pid));
        let started = Instant::now();
        // A zombie holds neither locks nor files.
        while proc.exists() && !is_zombie(self.pid) {
            assert!(started.elapsed() < Duration::from_secs(30), "the killed process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        if self.standing {
            return;
        }
        let Some(pid) = rustix::process::Pid::from_raw(self.pid.cast_signed()) else { return };
        // After the unmount the process ends by itself and leaves a clean cache. If it hangs it is killed.
        let started = Instant::now();
        while rustix::process::test_kill_process(pid).is_ok() && started.elapsed() < Duration::from_secs(10) {
            if is_zombie(self.pid) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
