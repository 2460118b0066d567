//! `larderd.service`, which serves root's mounts where it runs: they outlive its process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
/// this user: root's, unless they have a cache of their own. Waits for a service that restarts; systemd removes the
/// folder of one that is stopped. Must be called within a runtime.
pub(crate) async fn serving(cache_dir: Option<&Path>, run_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !rustix::process::geteuid().is_root() || (has_own_home() && cache_dir.is_none()) {
        return Ok(None);
    }
    let started = Instant::now();
    let has = loop {
        match daemon::cache_dir_of(&run_dir.join(GRPC_SOCKET)).await? {
            Some(has) => break has,
            None if run_dir.is_dir() && started.elapsed() < TIMEOUT => tokio::time::sleep(PAUSE).await,
            None => return Ok(None),
        }
    };
    let joins = match cache_dir {
        Some(dir) => std::path::absolute(dir)? == has,
        None => true,
    };
    Ok(joins.then(|| run_dir.to_owned()))
}
