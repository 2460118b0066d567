//! A machine's GPUs, made up.

use std::path::{Path, PathBuf};

use larder_made_up_nvml::{FILE_NAME, Machine};
use tempfile::TempDir;

use crate::binary::built_library;

/// A `libnvidia-ml.so.1` of a test's own, and the file that says what it answers.
pub struct MadeUpNvml {
    folder: PathBuf,
    /// Ends with the value.
    _scratch: Option<TempDir>,
}

impl MadeUpNvml {
    /// The library, with a driver that is not loaded. It ends with the value.
    ///
    /// # Panics
    /// When the library is not built, or a temporary folder cannot be made.
    pub fn new() -> Self {
        let scratch = tempfile::tempdir().expect("make a temporary folder");
        let library = Self::in_folder(scratch.path());
        Self { _scratch: Some(scratch), ..library }
    }

    /// The same in a folder, where it stays.
    ///
    /// # Panics
    /// When the library is not built, or cannot be copied there.
    pub fn in_folder(folder: &Path) -> Self {
        let this = Self { folder: folder.to_owned(), _scratch: None };
        std::fs::create_dir_all(folder).expect("make the folder of the made-up NVML");
        // A copy, not a link: the dynamic linker takes files with one inode for one library.
        std::fs::copy(built_library("larder_made_up_nvml"), this.library()).expect("copy the made-up NVML");
        this
    }

    /// The library, with this machine.
    ///
    /// # Panics
    /// As [`Self::new`] and [`Self::set`].
    pub fn with(machine: &Machine) -> Self {
        let this = Self::new();
        this.set(machine);
        this
    }

    /// The library's path.
    pub fn library(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    /// From the next call on, or at once for one that waits, the library answers for this machine.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn set(&self, machine: &Machine) {
        machine.write(&self.folder.join(FILE_NAME)).expect("write the machine of the made-up NVML");
    }

    /// Unloads the driver.
    ///
    /// # Panics
    /// When it was not loaded.
    pub fn unload(&self) {
        std::fs::remove_file(self.folder.join(FILE_NAME)).expect("remove the machine of the made-up NVML");
    }
}

impl Default for MadeUpNvml {
    fn default() -> Self {
        Self::new()
    }
}
