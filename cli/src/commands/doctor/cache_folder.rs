//! Checks of the cache folder.

use std::path::{Path, PathBuf};

use larder_dataset::size::show_bytes;

use larder_store::probe::spare_bytes;

use super::finding::{Finding, Verdict};

/// The folder, which is absolute, or its nearest ancestor that exists; without symbolic links.
pub(super) fn existing(folder: &Path) -> PathBuf {
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    existing.canonicalize().unwrap_or_else(|_| existing.to_owned())
}

pub(super) fn direct_io(cache_dir: &Path) -> Finding {
    let folder = existing(cache_dir);
    match larder_store::probe::try_direct(&folder) {
        Ok(()) => Finding::ok("direct I/O", format!("works in {}", folder.display())),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Finding {
            what: "direct I/O",
            verdict: Verdict::Warn,
            found: format!("{} does not support it", folder.display()),
            remedy: "put the cache (--cache-dir) on ext4 or XFS on a local disk: elsewhere cached bytes take memory twice",
        },
        Err(error) => Finding {
            what: "direct I/O",
            verdict: Verdict::Fail,
            found: format!("cannot write to {}: {error}", folder.display()),
            remedy: "name a writable folder (--cache-dir)",
        },
    }
}

/// `keep_free`: the part of the disk that stays free, in percent.
pub(super) fn disk(cache_dir: &Path, keep_free: u8) -> Finding {
    const WANTED: u64 = 10 << 30;
    let folder = existing(cache_dir);
    let measured = rustix::fs::statvfs(&folder).map_err(std::io::Error::from);
    match measured.and_then(|disk| Ok((disk.f_bavail * disk.f_frsize, spare_bytes(&folder, keep_free)?))) {
        Ok((free, spare)) => {
            let verdict = if spare >= WANTED { Verdict::Ok } else { Verdict::Warn };
            let found = format!("{} free in {}", show_bytes(free), folder.display());
            if keep_free == 0 {
                return Finding {
                    what: "disk",
                    verdict,
                    found,
                    remedy: "put the cache on a larger disk (--cache-dir)",
                };
            }
            Finding {
                what: "disk",
                verdict,
                found: format!("{found}, of which the cache may take {} (--keep-free {keep_free}%)", show_bytes(spare)),
                remedy: "make room, put the cache on a larger disk (--cache-dir), or leave less of it free (--keep-free)",
            }
        }
        Err(error) => Finding {
            what: "disk",
            verdict: Verdict::Fail,
            found: format!("{}: {error}", folder.display()),
            remedy: "name another folder (--cache-dir)",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_does_not_exist_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(existing(&folder.path().join("a/b/c")), folder.path().canonicalize().unwrap());
    }

    #[test]
    fn space_that_must_stay_free_is_not_counted_as_space_for_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let all = disk(folder.path(), 0);
        assert!(!all.found.contains("--keep-free"), "{}", all.found);
        // No disk has so much free.
        let none = disk(folder.path(), 100);
        assert_eq!(none.verdict, Verdict::Warn);
        assert!(
            none.found.contains("may take 0 B (--keep-free 100%)") && none.remedy.contains("--keep-free"),
            "{none:?}"
        );
    }
}
