//! [`Disk`]: an ext4 that takes no writes for a while.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use larder_testkit::FrozenDisk;
use rustix::mount::{UnmountFlags, unmount};

/// More than all caches take. The image is sparse.
const BYTES: u64 = 4 << 30;

/// An ext4 in a file. Make it before the programs that use it, and drop it after them.
pub(super) struct Disk(PathBuf);

impl Disk {
    pub(super) fn new(dir: PathBuf, image: &Path) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        File::create(image).unwrap().set_len(BYTES).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(image));
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&dir));
        Self(dir)
    }

    /// Lets all writes wait until the result is dropped.
    pub(super) fn stall(&self) -> FrozenDisk {
        FrozenDisk::freeze(&self.0).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?} (root only): {}", String::from_utf8_lossy(&output.stderr));
}
