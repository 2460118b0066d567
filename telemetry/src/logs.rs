//! Log lines go to standard error.

use tracing_subscriber::EnvFilter;

/// The environment variable that selects the log lines to write, such as `info` or `larder_fs=debug`.
pub const LOG_VARIABLE: &str = "LARDER_LOG";

/// Sends log lines to standard error: `default_level` and above, unless [`LOG_VARIABLE`] says otherwise. Called once,
/// by `main`. Errors: the variable is invalid.
pub fn init_logs(default_level: &str) -> Result<(), String> {
    let wanted = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| default_level.to_owned());
    let filter = EnvFilter::try_new(&wanted)
        .map_err(|error| format!("{LOG_VARIABLE}={wanted}: {error} (try `info` or `larder_fs=debug`)"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init()
        .map_err(|error| format!("set up logs: {error}"))
}
