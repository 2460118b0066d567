//! [`Disk`]: an ext4 that takes no writes for a while.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

    /// Lets all writes wait until the stall ends. It also ends if it is dropped, or if the test is killed: the shell
    /// waits for the end of its input.
    pub(super) fn stall(&self) -> Stall {
        let script = "fsfreeze --freeze \"$0\" && echo frozen && cat >/dev/null; fsfreeze --unfreeze \"$0\"";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .arg(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It has to outlive a test whose process group is killed.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let stall = Stall(shell);
        assert_eq!(said, "frozen\n", "fsfreeze needs root");
        stall
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

/// A disk that stalls.
pub(super) struct Stall(Child);

impl Stall {
    pub(super) fn end(mut self) {
        // This closes its input first.
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the disk stalls still: {status}");
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.wait().unwrap();
    }
}
