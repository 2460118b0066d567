//! `larderd.service`, which serves root's mounts where it runs: they outlive its process.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use larder_daemon_api::socket::GRPC_SOCKET;

use crate::daemon;

/// How long a service that restarts is waited for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two attempts to reach a service that restarts.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Whether the environment names a home, which is not that of the service.
pub(crate) fn has_own_home() -> bool {
    std::env::var_os("LARDER_HOME").is_some_and(|home| !home.is_empty())
}

/// `run_dir`, if the service whose sockets are there serves the cache `cache_dir`, which is that of --cache-dir, for
/// this user: root's, unless they have a cache of their own. Waits for a service that restarts. Must be called within a
/// runtime. Errors: it does not answer, and a process beside it would fill another cache with what is in its own.
pub(crate) async fn serving(cache_dir: Option<&Path>, run_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !rustix::process::geteuid().is_root() || (has_own_home() && cache_dir.is_none()) {
        return Ok(None);
    }
    let joins = match (cache_dir_of(run_dir).await, cache_dir) {
        (found, None) => found?.is_some(),
        (Ok(Some(serves)), Some(dir)) => resolved(dir)? == resolved(&serves)?,
        (_, Some(_)) => false,
    };
    Ok(joins.then(|| run_dir.to_owned()))
}

/// The cache folder of the service whose sockets are in `run_dir`. None if it does not run: systemd removes that folder
/// then.
async fn cache_dir_of(run_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let socket = run_dir.join(GRPC_SOCKET);
    let asked = async {
        while run_dir.is_dir() {
            if let Some(cache_dir) = daemon::cache_dir_of(&socket).await? {
                return Ok(Some(cache_dir));
            }
            tokio::time::sleep(PAUSE).await;
        }
        anyhow::Ok(None)
    };
    tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(|_| Err(no_answer()))
}

/// The error of a service that does not answer.
pub(super) fn no_answer() -> anyhow::Error {
    anyhow!(
        "larderd.service does not answer: `systemctl status larderd` says why; with --cache-dir DIR the mount gets a \
         process of its own"
    )
}

fn resolved(dir: &Path) -> io::Result<PathBuf> {
    dir.canonicalize().or_else(|_| std::path::absolute(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_service_that_does_not_answer_is_an_error_and_one_that_does_not_run_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path().join("larderd");
        assert!(cache_dir_of(&run_dir).await.unwrap().is_none());
        std::fs::create_dir(&run_dir).unwrap();
        let error = cache_dir_of(&run_dir).await.unwrap_err().to_string();
        assert!(error.contains("systemctl status larderd"), "{error}");
        // It listens, and answers nothing.
        let _listener = std::os::unix::net::UnixListener::bind(run_dir.join(GRPC_SOCKET)).unwrap();
        assert!(cache_dir_of(&run_dir).await.is_err());
    }
}
