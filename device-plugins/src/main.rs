//! `larder-devices`: reads its flags, then serves the kubelet until a signal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use larder_devices::inventory::Roots;
use larder_devices::run::{Settings, run};
use tracing::info;

/// Device plugin for GPUs and RDMA HCAs: NUMA-aligned allocation, automatic recovery, per-container limits.
///
/// It needs uid 0, because root owns the kubelet's directories and the NRI socket, but no capabilities.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Examples:
  larder-devices --config devices.yaml --node-name n1 --admin-address 127.0.0.1:9470
      Run it on a node, as root
  larder devices
      List the devices it offers, from another shell
LARDER_LOG sets the log level, such as `info` or `larder_devices=debug`."
)]
struct Args {
    /// Configuration file: YAML, or the configList of Mellanox's k8s-rdma-shared-dev-plugin
    #[arg(long, env = "LARDER_DEVICES_CONFIG", default_value = "/etc/larder/config.yaml")]
    config: PathBuf,

    /// Name of this node in Kubernetes
    #[arg(long, alias = "node", env = "LARDER_NODE")]
    node_name: String,

    /// The host's /sys
    #[arg(long, env = "LARDER_SYSFS", default_value = "/sys")]
    sysfs: PathBuf,

    /// The host's /dev
    #[arg(long, env = "LARDER_DEV", default_value = "/dev")]
    dev: PathBuf,

    /// The host's /dev as the container runtime sees it
    #[arg(long, env = "LARDER_HOST_DEV", default_value = "/dev")]
    host_dev: PathBuf,

    /// Root directory of the kubelet
    #[arg(long, env = "LARDER_KUBELET_DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,

    /// Directory to write CDI files to
    #[arg(long, env = "LARDER_CDI_DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,

    /// Other directories in which the container runtime looks for CDI files
    #[arg(long, env = "LARDER_VENDOR_CDI_DIR", default_values = ["/etc/cdi"])]
    vendor_cdi_dir: Vec<PathBuf>,

    /// Pass device nodes instead of CDI devices, for a container runtime without CDI. Limits need CDI
    #[arg(long, env = "LARDER_NO_CDI")]
    no_cdi: bool,

    /// Give pods no GPU that no CDI file names, instead of giving it by NVIDIA_VISIBLE_DEVICES
    #[arg(long, env = "LARDER_GPUS_BY_CDI_ONLY", conflicts_with = "no_cdi")]
    gpus_by_cdi_only: bool,

    /// NRI socket of the container runtime
    #[arg(long, env = "LARDER_NRI_SOCKET", default_value = "/var/run/nri/nri.sock")]
    nri_socket: PathBuf,

    /// The host's cgroup mount
    #[arg(long, env = "LARDER_CGROUPS", default_value = "/sys/fs/cgroup")]
    cgroups: PathBuf,

    /// OCI hook that limits RDMA objects; it is copied to the host
    #[arg(long, env = "LARDER_HOOK", default_value = "/usr/bin/larder-rdma-limit")]
    hook: PathBuf,

    /// Host directory for the hook, mounted at the same path here
    #[arg(long, env = "LARDER_HOOK_DIR", default_value = "/opt/larder/bin")]
    hook_dir: PathBuf,

    /// NVIDIA's management library (NVML)
    #[arg(long, env = "LARDER_NVML", default_value = "libnvidia-ml.so.1")]
    nvml: PathBuf,

    /// File that keeps GPU faults across restarts of this program, in a directory that no other user can write to
    #[arg(long, env = "LARDER_FAULTS", default_value = "/run/larder-devices/faults.json")]
    faults: PathBuf,

    /// Address to serve /metrics, /healthz, /readyz and /devices on, over HTTP
    #[arg(long, env = "LARDER_ADMIN_ADDRESS")]
    admin_address: Option<SocketAddr>,
}

impl Args {
    fn into_settings(self) -> Settings {
        let mut cdi_found = self.vendor_cdi_dir;
        cdi_found.push(self.cdi_dir.clone());
        Settings {
            node: self.node_name,
            config: self.config,
            roots: Roots { sysfs: self.sysfs, dev: self.dev },
            host_dev: self.host_dev,
            kubelet: self.kubelet_dir,
            cdi: (!self.no_cdi).then_some(self.cdi_dir),
            cdi_found,
            gpus_by_cdi_only: self.gpus_by_cdi_only,
            nri: self.nri_socket,
            cgroups: self.cgroups,
            hook: self.hook,
            hook_folder: self.hook_dir,
            nvml: self.nvml,
            faults: self.faults,
            admin: self.admin_address,
        }
    }
}

fn main() -> ExitCode {
    let settings = Args::parse().into_settings();
    // One worker: blocking calls have threads of their own, and a second worker costs memory and wake-ups.
    larder_telemetry::program("larder-devices", Some(1), |stop| async move {
        info!(?settings, "settings");
        run(settings, stop).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_documented_defaults() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        let settings = Args::parse_from(["larder-devices", "--node-name", "n1"]).into_settings();
        assert_eq!(settings.roots, Roots::default());
        assert_eq!(settings.cdi_found, ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from));
        // The flag was called --node in 0.1.0.
        let settings = Args::parse_from(["larder-devices", "--node", "n1", "--no-cdi"]).into_settings();
        assert_eq!(settings.cdi, None);
        // Without CDI there would be no GPUs.
        assert!(Args::try_parse_from(["larder-devices", "--node", "n1", "--no-cdi", "--gpus-by-cdi-only"]).is_err());
    }
}
