//! What `larder mount` checks on this machine before its first request to the origin.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use larder_cachenode::Home;
use larder_fs::mount::check_mount_point;
use larder_store::probe::try_to_write;

use crate::args::MountArgs;

/// Checks the home, the mount point and the cache folder.
pub(super) fn check(args: &MountArgs) -> anyhow::Result<()> {
    check_home(&Home::of_process()?)?;
    check_mount_point(&args.dir, args.over)?;
    match &args.cache_dir {
        Some(dir) if args.cache_size != Some(0) => check_cache_dir(dir),
        _ => Ok(()),
    }
}

/// Refuses a `--cache-dir` in which nothing can be cached. A disk that is full, that failed or that became read-only
/// after it was filled is no error: what it has cached is served.
fn check_cache_dir(dir: &Path) -> anyhow::Result<()> {
    let has_cache = || std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    let failed = match std::fs::create_dir_all(dir).and_then(|()| try_to_write(dir)) {
        Ok(()) => return Ok(()),
        Err(error) if [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&error.kind()) => return Ok(()),
        Err(error) if error.kind() != ErrorKind::PermissionDenied && has_cache() => return Ok(()),
        Err(error) => error,
    };
    Err(failed).context(format!(
        "--cache-dir {}: nothing can be cached there; name a directory on a local disk",
        dir.display()
    ))
}

/// Checks that manifests and logs can be written. Errors say what to do.
fn check_home(home: &Home) -> anyhow::Result<()> {
    match try_to_write(home.dir()) {
        Err(error) if matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
            let home = home.dir().display();
            let what =
                format!("write to {home}, where manifests and logs are kept: set LARDER_HOME to a writable directory");
            Err(error).context(what)
        }
        // A full disk is no error here: the manifest and the log may already exist.
        _ => Ok(()),
    }
}
