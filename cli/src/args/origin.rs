//! The flags for reaching the origin.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_duration, parse_rate};
use larder_origin::{CONCURRENCY, SharedLimits};

/// How to reach the origin.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Origin")]
pub(crate) struct OriginArgs {
    /// The server, if it is not the cloud's own (Ceph, MinIO, an emulator): http://host:port.
    #[arg(long, value_name = "URL", env = "LARDER_ENDPOINT", hide_env_values = true)]
    pub(crate) endpoint: Option<String>,
    /// The S3 region.
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Send no credentials (for public buckets).
    #[arg(long)]
    pub(crate) anonymous: bool,
    /// Directory of credentials, such as a mounted Secret: one file for each AWS_*, GOOGLE_* or AZURE_* variable and
    /// for LARDER_PEER_TOKEN, with the variable's name. Files precede variables.
    #[arg(long, value_name = "DIR", env = "LARDER_ORIGIN_CREDENTIALS_DIR")]
    pub(crate) origin_credentials_dir: Option<PathBuf>,
    /// Retry after this long without progress.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) attempt_timeout: Duration,
    /// Fail a read with ETIMEDOUT after this long at the origin, over all attempts.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) read_deadline: Duration,
    /// Maximum concurrent requests to the origin. Larder sends fewer while more would bring nothing, and while the
    /// origin rejects requests or slows down.
    #[arg(long, value_name = "N", default_value_t = CONCURRENCY as u32,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) origin_concurrency: u32,
    /// Maximum bytes per second to read from an origin, such as 1GiB/s. Readers come before warm-ups. Default: no
    /// limit. A mount that joins a serving process gets that process's limit.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) origin_rate: Option<u64>,
    /// Shared by all origins that the command opens.
    #[arg(skip)]
    pub(crate) limits: OnceLock<SharedLimits>,
}
