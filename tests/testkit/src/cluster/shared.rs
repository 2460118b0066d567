//! The cluster that the tests of one run share, and the lock that gives each test its turn.
//!
//! A run is the process that starts the tests: nextest or cargo. The first test that needs the cluster starts it, and
//! the cluster ends with the run. Tests use it one after another, so each may kill, upgrade and restart any part of it.

use std::fs::File;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// A test's turn. It ends when the value is dropped or the test's process ends.
#[derive(Debug)]
pub(super) struct Turn {
    /// The process of the run; the cluster ends with it.
    pub(super) run: u32,
    folder: PathBuf,
    _lock: File,
}

impl Turn {
    /// Waits for this test's turn among the group `tests`. Each group shares one cluster.
    pub(super) fn take(tests: &str) -> Self {
        let run = parent_id();
        let folder = std::env::temp_dir().join(format!("larder-k8s-{tests}-{run}"));
        // `cluster.sh guard` removes it at the end of the run.
        let lock = File::create(folder.with_extension("lock")).expect("a file in the temporary folder");
        flock(&lock, FlockOperation::LockExclusive).expect("a file can be locked");
        Self { run, folder, _lock: lock }
    }

    /// The folder of the cluster, which exists once the cluster was started.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the cluster runs and no test has left it in an unknown state.
    pub(super) fn finds_a_sound_cluster(&self) -> bool {
        self.folder.join("ready").exists() && !self.in_use().exists()
    }

    /// Marks the cluster as in use. A test that ends without [`Self::end_well`] leaves it in an unknown state.
    pub(super) fn begin(&self) {
        File::create(self.in_use()).expect("a file in the cluster's folder");
    }

    /// Marks the cluster as clean after a successful test.
    pub(super) fn end_well(&self) {
        let _ = std::fs::remove_file(self.in_use());
    }

    fn in_use(&self) -> PathBuf {
        self.folder.join("in-use")
    }
}
