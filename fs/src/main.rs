//! `larderd`, the node daemon: flags, then serve until a signal.

use std::process::ExitCode;

use clap::Parser;
use larder_cachenode::allocator::bound_kept_memory;
use larder_fs::process::{DaemonFlags, serve};

/// Serves datasets to a node: one cache, many mounts.
///
/// It needs no privilege. The CSI node plugin mounts, hands the FUSE connections over, and keeps duplicates of them, so
/// that larderd may be killed and upgraded under its readers. `larder mount` talks to it as well. With --peers it
/// shares its cache with other nodes.
#[derive(Debug, Parser)]
#[command(
    name = "larderd",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  larderd --cache-dir /nvme/larder --cache-size 2TiB
  larderd --cache-dir /nvme/larder --run-dir /run/larder --admin-address 0.0.0.0:9464
  larder mount s3://bucket/imagenet /data/train --cache-dir /nvme/larder  uses the first of these
  larderd --cache-dir /nvme/larder --peers kubernetes:larder-system/larderd
    --peer-listen 0.0.0.0:9466 --peer-ca ca.crt
    --peer-cert tls.crt --peer-key tls.key                  shares its cache with the other nodes

Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables or from files
(--origin-credentials-dir), unless a mount brings its own. LARDER_LOG sets the log filter, such as `debug`."
)]
struct Flags {
    #[command(flatten)]
    daemon: DaemonFlags,
}

fn main() -> ExitCode {
    if let Some(code) = larder_cachenode::importer_process::run_if_asked() {
        return code;
    }
    bound_kept_memory();
    let flags = Flags::parse();
    larder_telemetry::program("larderd", None, |stop| serve(flags.daemon, stop))
}
