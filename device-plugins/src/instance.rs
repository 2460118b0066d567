//! Which process of this program is the newest on its node: during a rolling update, two run at the same time.
//!
//! Each process locks its own file in a subfolder of the kubelet's socket folder. The kubelet keeps subfolders when it
//! empties its socket folder. The kernel releases the lock when the process ends, even if it crashes.
//!
//! Invariant: an older process never registers after a newer one. Registrations and starts exclude each other: a
//! registration holds the folder's lock shared, and a start holds it exclusively while it creates its file.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;

/// The folder of the processes' files, below the kubelet's socket folder.
const FOLDER: &str = "larder";

/// How long a process waits for the lock before it continues without it: another process may have been stopped while it
/// holds the lock.
const TURN: Duration = Duration::from_secs(20);

/// This process's rank among all processes of the program on the node.
#[derive(Debug)]
pub struct Instance {
    folder: PathBuf,
    sockets: PathBuf,
    /// Higher in a newer process.
    number: u64,
    sockets_made: AtomicU64,
    /// Locked while this process runs.
    _file: File,
}

/// The [`Instance`] of this process, for tasks that start before it exists. Clones share one value.
#[derive(Clone, Debug, Default)]
pub struct Begun(Arc<OnceLock<Arc<Instance>>>);

impl Begun {
    /// Sets the instance. Later calls have no effect.
    pub fn set(&self, instance: &Arc<Instance>) {
        let _ = self.0.set(Arc::clone(instance));
    }

    /// Whether this process is the newest; `None` before [`Self::set`].
    pub fn is_newest(&self) -> Option<bool> {
        self.0.get().map(|instance| instance.is_newest())
    }
}

/// The permission to register, held until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

impl Instance {
    /// Makes this process the newest, and removes the sockets and files of dead processes from `sockets`, the kubelet's
    /// folder.
    pub async fn begin(sockets: &Path) -> io::Result<Self> {
        let folder = sockets.join(FOLDER);
        let turn = lock(&folder, FlockOperation::NonBlockingLockExclusive).await?;
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64);
        let known = numbers(&folder)?.into_iter().max().unwrap_or(0);
        let number = clock.max(known + 1);
        let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(folder.join(name(number)))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let instance =
            Self { folder, sockets: sockets.to_owned(), number, sockets_made: AtomicU64::new(1), _file: file };
        instance.sweep()?;
        drop(turn);
        Ok(instance)
    }

    /// A socket file name that was never used before.
    pub fn new_socket_name(&self) -> String {
        format!("larder-{}-{}.sock", name(self.number), self.sockets_made.fetch_add(1, Ordering::Relaxed))
    }

    /// False while a newer process is running.
    pub fn is_newest(&self) -> bool {
        let newer = numbers(&self.folder).unwrap_or_default().into_iter().filter(|number| *number > self.number);
        newer.into_iter().all(|number| !self.lives(number))
    }

    /// Acquires the permission to register; `None` while a newer process is running.
    pub async fn turn(&self) -> io::Result<Option<Turn>> {
        let turn = lock(&self.folder, FlockOperation::NonBlockingLockShared).await?;
        Ok(self.is_newest().then_some(Turn { _lock: turn }))
    }

    /// True if the process with this number is still running.
    fn lives(&self, number: u64) -> bool {
        let file = match File::open(self.folder.join(name(number))) {
            Ok(file) => file,
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Removes the files and sockets of dead processes.
    fn sweep(&self) -> io::Result<()> {
        let dead = |number: u64| number != self.number && !self.lives(number);
        for entry in std::fs::read_dir(&self.sockets)?.flatten() {
            let number = entry.file_name().to_str().and_then(|name| {
                let (number, _) = name.strip_prefix("larder-")?.strip_suffix(".sock")?.split_once('-')?;
                u64::from_str_radix(number, 16).ok()
            });
            if number.is_some_and(dead) {
                remove(&entry.path())?;
            }
        }
        for number in numbers(&self.folder)?.into_iter().filter(|number| dead(*number)) {
            remove(&self.folder.join(name(number)))?;
        }
        Ok(())
    }
}

/// Removes a file if it exists. The kubelet may have removed it already, since it empties its folder when it starts.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.folder.join(name(self.number)));
    }
}

/// The file name of the process with this number.
fn name(number: u64) -> String {
    format!("{number:011x}")
}

/// The numbers of the processes that have a file.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let number = |name: &OsStr| u64::from_str_radix(name.to_str()?, 16).ok();
    Ok(std::fs::read_dir(folder)?.flatten().filter_map(|entry| number(&entry.file_name())).collect())
}

/// Opens and locks the folder. After [`TURN`], returns it without the lock.
async fn lock(folder: &Path, operation: FlockOperation) -> io::Result<File> {
    // Opened again for each lock: the kubelet's folder may have been deleted and recreated.
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let file = File::open(folder)?;
    let started = Instant::now();
    loop {
        match rustix::fs::flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < TURN => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                tracing::warn!(folder = %folder.display(), "another larder-devices does not finish its registration; continuing without waiting");
                return Ok(file);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: D13
    #[tokio::test]
    async fn the_newest_running_process_registers() {
        let folder = tempfile::tempdir().unwrap();
        let older = Instance::begin(folder.path()).await.unwrap();
        assert!(older.turn().await.unwrap().is_some());
        let newer = Instance::begin(folder.path()).await.unwrap();
        assert!(newer.number > older.number);
        assert!(older.turn().await.unwrap().is_none());
        assert!(newer.turn().await.unwrap().is_some());
        drop(newer);
        assert!(older.turn().await.unwrap().is_some());
    }

    // SEMANTICS: D13
    #[tokio::test]
    async fn a_start_waits_for_a_registration() {
        let folder = tempfile::tempdir().unwrap();
        let older = Instance::begin(folder.path()).await.unwrap();
        let turn = older.turn().await.unwrap();
        // Registrations do not wait for each other.
        assert!(older.turn().await.unwrap().is_some());
        let path = folder.path().to_owned();
        let newer = tokio::spawn(async move { Instance::begin(&path).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!newer.is_finished());
        drop(turn);
        let newer = newer.await.unwrap().unwrap();
        assert!(newer.is_newest() && !older.is_newest());
    }

    // SEMANTICS: D13
    #[tokio::test]
    async fn leftovers_may_go_while_a_process_starts() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<PathBuf> =
            (0..200).map(|n| folder.path().join(format!("larder-00000000001-{n}.sock"))).collect();
        // The kubelet empties its folder when it starts.
        let (emptied, is_over) = (names.clone(), tokio_util::sync::CancellationToken::new());
        let over = is_over.clone();
        let emptying = std::thread::spawn(move || {
            while !over.is_cancelled() {
                emptied.iter().for_each(|name| drop(std::fs::remove_file(name)));
            }
        });
        for _ in 0..50 {
            names.iter().for_each(|name| std::fs::write(name, b"").unwrap());
            Instance::begin(folder.path()).await.unwrap();
        }
        is_over.cancel();
        emptying.join().unwrap();
    }

    // SEMANTICS: D13
    #[tokio::test]
    async fn leftovers_of_the_dead_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let living = Instance::begin(folder.path()).await.unwrap();
        let dead = folder.path().join("larder-00000000001-3.sock");
        let file = folder.path().join(FOLDER).join(name(1));
        let kept = [living.new_socket_name(), "nvidia-gpu.sock".to_owned(), "kubelet_internal_checkpoint".to_owned()];
        std::fs::write(&dead, b"").unwrap();
        std::fs::write(&file, b"").unwrap();
        for name in &kept {
            std::fs::write(folder.path().join(name), b"").unwrap();
        }
        let _newer = Instance::begin(folder.path()).await.unwrap();
        assert!(!dead.exists() && !file.exists());
        assert!(kept.iter().all(|name| folder.path().join(name).exists()));
    }
}
