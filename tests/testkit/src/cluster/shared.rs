//! The cluster that the tests of one run share, and whose turn it is.
//!
//! A run is the process that starts the tests: nextest, or cargo. Its first test that needs the cluster starts it, and
//! it ends with the run. Tests use it one after the other, so each may kill, upgrade and restart what it likes.

use std::fs::File;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// A test's turn. It ends when this is dropped, and when the test's process ends.
#[derive(Debug)]
pub(super) struct Turn {
    /// The process that the cluster ends with.
    pub(super) run: u32,
    folder: PathBuf,
    _lock: File,
}

impl Turn {
    /// Waits for this test's turn among these tests, which share a cluster of their own.
    pub(super) fn take(tests: &str) -> Self {
        let run = parent_id();
        let folder = std::env::temp_dir().join(format!("larder-k8s-{tests}-{run}"));
        // `cluster.sh guard` removes it at the end of the run.
        let lock = File::create(folder.with_extension("lock")).expect("a file in the temporary folder");
        flock(&lock, FlockOperation::LockExclusive).expect("a file can be locked");
        Self { run, folder, _lock: lock }
    }

    /// Where the cluster is or is to be.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if the cluster runs and no test has left it in an unknown state.
    pub(super) fn finds_a_sound_cluster(&self) -> bool {
        self.folder.join("ready").exists() && !self.in_use().exists()
    }

    /// Until `end_well`, a test that ends leaves the cluster in an unknown state.
    pub(super) fn begin(&self) {
        File::create(self.in_use()).expect("a file in the cluster's folder");
    }

    /// The test is over, and the cluster is as good as new.
    pub(super) fn end_well(&self) {
        let _ = std::fs::remove_file(self.in_use());
    }

    fn in_use(&self) -> PathBuf {
        self.folder.join("in-use")
    }
}
