//! Replaces files atomically: a reader finds either the old or the new content, also after a crash.
//!
//! The new file is written beside the old one. Its name ends with `.tmp`, so programs that scan the folder ignore it.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const SUFFIX: &str = ".tmp";

/// Replaces the content of a file with these bytes. The file gets this mode regardless of the umask. Its folder must
/// exist. Blocks until the file is on disk.
///
/// If two writers replace one file at the same time, one may fail, but the content is never mixed. Temporary files of a
/// killed writer are removed.
///
/// # Errors
/// The folder cannot be written to, the disk is full, or the path is a folder.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    sweep(path);
    let (folder, name) = parts(path)?;
    let beside = tempfile::Builder::new().prefix(&prefix(name)).suffix(SUFFIX).tempfile_in(folder)?;
    let mut file = beside.as_file();
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()?;
    // The file is closed before the rename, since the kernel does not run a program that is open for writing. If an
    // error occurs before the rename, dropping the value removes the temporary file.
    beside.into_temp_path().persist(path)?;
    File::open(folder)?.sync_all()
}

/// Removes temporary files that killed writers of this file left. A writer that is still running fails.
pub fn sweep(path: &Path) {
    let Ok((folder, name)) = parts(path) else { return };
    let prefix = prefix(name);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let between = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
        if between.is_some_and(|between| !between.contains('.')) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The name prefix of a file's temporary files.
fn prefix(name: &str) -> String {
    format!(".{name}.")
}

fn parts(path: &Path) -> io::Result<(&Path, &str)> {
    let parts = path.parent().zip(path.file_name().and_then(OsStr::to_str));
    parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path has no folder or no file name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_and_what_the_killed_left_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for left in [".a.json.x1.tmp", ".a.json.x.x1.tmp", ".b.json.x1.tmp", "a.json.tmp"] {
            std::fs::write(folder.path().join(left), b"torn").unwrap();
        }
        for (bytes, mode) in [(&b"one"[..], 0o644), (b"", 0o600), (b"two", 0o755)] {
            replace(&path, bytes, mode).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(names(folder.path()), [".a.json.x.x1.tmp", ".b.json.x1.tmp", "a.json", "a.json.tmp"]);
    }

    #[test]
    fn nothing_is_left_of_a_file_that_cannot_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::create_dir(&path).unwrap();
        replace(&path, b"one", 0o644).unwrap_err();
        assert_eq!(names(folder.path()), ["a.json"]);
        replace(&path.join("absent/a.json"), b"one", 0o644).unwrap_err();
        replace(Path::new("/"), b"one", 0o644).unwrap_err();
    }

    #[test]
    fn no_reader_finds_a_torn_file_however_many_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, &[0; 4096], 0o644).unwrap();
        std::thread::scope(|scope| {
            for byte in 1..5 {
                let path = &path;
                // Some writers fail, since the others remove their temporary files.
                scope.spawn(move || (0..50).for_each(|_| drop(replace(path, &[byte; 4096], 0o644))));
            }
            for _ in 0..200 {
                let found = std::fs::read(&path).unwrap();
                assert!(found.len() == 4096 && found.iter().all(|byte| *byte == found[0]));
            }
        });
        replace(&path, b"last", 0o644).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(folder.path())), (b"last".to_vec(), vec!["a".to_owned()]));
    }
}
