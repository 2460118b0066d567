//! `larder-csi`, the node plugin: reads its flags, then runs the driver until a signal.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use larder_csi::{Config, Driver};
use tracing::info;

/// Mounts Larder's datasets into pods (CSI driver csi.larder.dev).
///
/// Runs as root on each node, beside larderd. larder-csi makes the FUSE mounts and holds their connections; larderd
/// serves them.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Examples:
  larder-csi --node-name node-1
      uses the kubelet in /var/lib/kubelet and the larderd in /run/larder
  larder-csi --node-name node-1 --datasets /etc/larder/datasets.yaml --file-root /mnt/nfs
      lets pods use the datasets of that file in inline volumes, and lets volumes name directories
      below /mnt/nfs
LARDER_LOG sets the log level, such as `info` or `larder_csi=debug`."
)]
struct Args {
    /// The unix socket on which to serve CSI: a path, or unix:///path. Default: plugins/csi.larder.dev/csi.sock in the
    /// kubelet's directory
    #[arg(long, env = "CSI_ENDPOINT", value_parser = socket_path)]
    endpoint: Option<PathBuf>,

    /// The path of that socket as the kubelet sees it. Default: the path of --endpoint
    #[arg(long, env = "LARDER_KUBELET_ENDPOINT")]
    kubelet_endpoint: Option<PathBuf>,

    /// The kubelet's directory; targets must be below it. Mount it here at the same path as on the node, with
    /// Bidirectional propagation
    #[arg(long, env = "LARDER_KUBELET_DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,

    /// Another directory in which targets may be, for tests; may be repeated
    #[arg(long, hide = true)]
    target_root: Vec<PathBuf>,

    /// The name of this node in Kubernetes
    #[arg(long, env = "NODE_NAME")]
    node_name: String,

    /// Report the node as a topology segment, topology.larder.dev/node. Volumes of a StorageClass with delayed binding
    /// then stay on the node of their first pod, which is rarely wanted
    #[arg(long, env = "LARDER_TOPOLOGY")]
    topology: bool,

    /// The directory of larderd's sockets, larderd.sock and handover.sock. It is created if missing and given to
    /// larderd's user. May be repeated: the first directory in which larderd answers is used
    #[arg(long, env = "LARDER_RUN_DIR", default_value = "/run/larder")]
    run_dir: Vec<PathBuf>,

    /// A directory to create and give to larderd's user, such as its --cache-dir; may be repeated
    #[arg(long, value_name = "DIR")]
    daemon_dir: Vec<PathBuf>,

    /// The directory for the records of published volumes; it must outlive the pod of this plugin. Default:
    /// plugins/csi.larder.dev/state in the kubelet's directory
    #[arg(long, env = "LARDER_STATE_DIR")]
    state_dir: Option<PathBuf>,

    /// A YAML file of the datasets that pods may use in inline volumes; it is read again at each use
    #[arg(long, env = "LARDER_DATASETS")]
    datasets: Option<PathBuf>,

    /// The user that larderd runs as
    #[arg(long, env = "LARDER_DAEMON_UID", default_value_t = 65532)]
    daemon_uid: u32,

    /// KiB that the kernel reads ahead in a file
    #[arg(
        long,
        env = "LARDER_READ_AHEAD",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(4..=65536)
    )]
    read_ahead: u64,

    /// A directory that volumes may name with file://, as larderd sees it; may be repeated
    #[arg(long, env = "LARDER_FILE_ROOT", value_delimiter = ',')]
    file_root: Vec<PathBuf>,

    /// The address on which to serve /metrics, /healthz and /readyz over HTTP, such as 0.0.0.0:9465
    #[arg(long, env = "LARDER_ADMIN_ADDRESS")]
    admin_address: Option<std::net::SocketAddr>,

    /// Milliseconds for which a publish waits for the listing of an origin before it fails and the kubelet retries
    #[arg(
        long,
        env = "LARDER_PREPARE_WAIT_MS",
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u64).range(1..=60_000)
    )]
    prepare_wait_ms: u64,

    /// Remove the taint csi.larder.dev/agent-not-ready of this node once the node's CSINode lists the driver and
    /// larderd answers: an autoscaled node that joins with the taint gets no pod before it can mount. Needs rights in
    /// the Kubernetes API; the component `startup-taint` of the deployment sets both
    #[arg(long, env = "LARDER_STARTUP_TAINT")]
    startup_taint: bool,
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if path.contains("://") || !Path::new(path).is_absolute() {
        return Err(
            "must be the absolute path of a unix socket, such as /run/csi.sock or unix:///run/csi.sock".to_owned()
        );
    }
    Ok(PathBuf::from(path))
}

impl Args {
    fn into_config(self) -> Config {
        let own = self.kubelet_dir.join("plugins").join(larder_csi::driver_name::DRIVER_NAME);
        let endpoint = self.endpoint.unwrap_or_else(|| own.join("csi.sock"));
        Config {
            kubelet_endpoint: self.kubelet_endpoint.unwrap_or_else(|| endpoint.clone()),
            endpoint,
            kubelet_dir: self.kubelet_dir,
            target_roots: self.target_root,
            node_id: self.node_name,
            topology: self.topology,
            run_dirs: self.run_dir,
            daemon_dirs: self.daemon_dir,
            state_dir: self.state_dir.unwrap_or_else(|| own.join("state")),
            datasets: self.datasets,
            daemon_uid: self.daemon_uid,
            read_ahead_kib: self.read_ahead,
            file_roots: self.file_root,
            admin_address: self.admin_address,
            prepare_wait: Duration::from_millis(self.prepare_wait_ms),
            startup_taint: self.startup_taint,
        }
    }
}

fn main() -> ExitCode {
    let config = Args::parse().into_config();
    // New files are accessible to root only, unless their mode is set explicitly.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    larder_telemetry::program("larder-csi", Some(2), |stop| async move {
        info!(?config, "settings");
        // A stop does not wait for another process's lock or for a disk: nothing is served yet.
        let opening = tokio::task::spawn_blocking(|| Driver::open(config));
        let Some(driver) = stop.run_until_cancelled(opening).await else { return Ok(()) };
        driver??.serve(stop).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_path_or_a_unix_url() {
        for good in ["/run/c.sock", "unix:///run/c.sock", "unix:/run/c.sock"] {
            assert_eq!(socket_path(good), Ok(PathBuf::from("/run/c.sock")), "{good}");
        }
        for bad in ["c.sock", "unix://c.sock", "tcp://127.0.0.1:1", ""] {
            assert!(socket_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_have_their_documented_defaults() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        let config = Args::parse_from(["larder-csi", "--node-name", "n"]).into_config();
        assert_eq!(config.endpoint, Path::new("/var/lib/kubelet/plugins/csi.larder.dev/csi.sock"));
        assert_eq!(config.state_dir, Path::new("/var/lib/kubelet/plugins/csi.larder.dev/state"));
        assert_eq!(config.daemon_uid, 65532);
    }
}
