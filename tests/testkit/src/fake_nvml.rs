//! A fake NVML for a test.

use std::path::{Path, PathBuf};

use larder_fake_nvml::{FILE_NAME, Machine};
use tempfile::TempDir;

use crate::binary::built_library;

/// A test's own copy of the fake `libnvidia-ml.so.1`, and the file with its machine.
pub struct FakeNvml {
    folder: PathBuf,
    /// Removed on drop.
    _scratch: Option<TempDir>,
}

impl FakeNvml {
    /// A copy in a temporary directory, without a loaded driver. Dropping the value removes it.
    pub fn new() -> Self {
        let scratch = tempfile::tempdir().expect("make a temporary directory");
        let library = Self::in_folder(scratch.path());
        Self { _scratch: Some(scratch), ..library }
    }

    /// As [`Self::new`], in a directory where it stays.
    pub fn in_folder(folder: &Path) -> Self {
        let this = Self { folder: folder.to_owned(), _scratch: None };
        std::fs::create_dir_all(folder).expect("make the directory of the fake NVML");
        // A copy, not a link: the dynamic linker identifies libraries by inode.
        std::fs::copy(built_library("larder_fake_nvml"), this.library()).expect("copy the fake NVML");
        this
    }

    /// A copy in a temporary directory that reports this machine.
    pub fn with(machine: &Machine) -> Self {
        let this = Self::new();
        this.set(machine);
        this
    }

    pub fn library(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    /// Makes the library report this machine, from the next call on. A waiting call sees it immediately.
    pub fn set(&self, machine: &Machine) {
        machine.write(&self.folder.join(FILE_NAME)).expect("write the machine of the fake NVML");
    }

    /// Unloads the driver.
    pub fn unload(&self) {
        std::fs::remove_file(self.folder.join(FILE_NAME)).expect("remove the machine of the fake NVML");
    }
}

impl Default for FakeNvml {
    fn default() -> Self {
        Self::new()
    }
}
