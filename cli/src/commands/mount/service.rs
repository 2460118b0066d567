//! `larderd.service`, which serves root's mounts where it runs: they outlive its process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_daemon_api::socket::GRPC_SOCKET;

use crate::args::MountArgs;
use crate::daemon;

/// How long a service that restarts is waited for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two attempts to reach a service that restarts.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// `run_dir`, if the service whose sockets are there is to serve a mount of this user: root's mounts, unless they have
/// a cache of their own. Waits for a service that restarts; systemd removes the folder of one that is stopped. Must be
/// called within a runtime.
pub(super) async fn serving(args: &MountArgs, run_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let has_own_home = std::env::var_os("LARDER_HOME").is_some_and(|home| !home.is_empty());
    if !rustix::process::geteuid().is_root() || (has_own_home && args.cache_dir.is_none()) {
        return Ok(None);
    }
    let started = Instant::now();
    let cache_dir = loop {
        match daemon::cache_dir_of(&run_dir.join(GRPC_SOCKET)).await? {
            Some(cache_dir) => break cache_dir,
            None if run_dir.is_dir() && started.elapsed() < TIMEOUT => tokio::time::sleep(PAUSE).await,
            None => return Ok(None),
        }
    };
    let joins = match &args.cache_dir {
        Some(dir) => std::path::absolute(dir)? == cache_dir,
        None => true,
    };
    Ok(joins.then(|| run_dir.to_owned()))
}
