//! Checks of the cache folder.

use std::path::{Path, PathBuf};

use larder_dataset::size::show_bytes;

use super::finding::{Finding, Verdict, finding};

/// The folder, or its nearest ancestor that exists.
pub(super) fn existing(folder: &Path) -> PathBuf {
    folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

pub(super) fn direct_io(cache_dir: &Path) -> Finding {
    use rustix::fs::{Mode, OFlags};
    let folder = existing(cache_dir);
    let probe = folder.join(format!(".larder-doctor-{}", std::process::id()));
    let opened = rustix::fs::open(
        &probe,
        OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::DIRECT,
        Mode::RUSR | Mode::WUSR,
    );
    let _ = std::fs::remove_file(&probe);
    match opened {
        Ok(_) => finding("direct I/O", Verdict::Ok, format!("works in {}", folder.display()), ""),
        Err(rustix::io::Errno::INVAL) => finding(
            "direct I/O",
            Verdict::Warn,
            format!("{} does not support it", folder.display()),
            "put the cache (--cache-dir) on ext4 or XFS on a local disk: elsewhere cached bytes take memory twice",
        ),
        Err(error) => finding(
            "direct I/O",
            Verdict::Fail,
            format!("cannot write to {}: {error}", folder.display()),
            "name a writable folder (--cache-dir)",
        ),
    }
}

pub(super) fn disk(cache_dir: &Path) -> Finding {
    const WANTED: u64 = 10 << 30;
    let folder = existing(cache_dir);
    match rustix::fs::statvfs(&folder) {
        Ok(disk) => {
            let free = disk.f_bavail * disk.f_frsize;
            let verdict = if free >= WANTED { Verdict::Ok } else { Verdict::Warn };
            let found = format!("{} free in {}", show_bytes(free), folder.display());
            finding("disk", verdict, found, "put the cache on a larger disk (--cache-dir)")
        }
        Err(error) => finding(
            "disk",
            Verdict::Fail,
            format!("{}: {error}", folder.display()),
            "name another folder (--cache-dir)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_to_be_made_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(existing(&folder.path().join("a/b/c")), folder.path());
    }
}
