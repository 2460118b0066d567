//! Log lines go to standard error.

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::traces::Traces;

/// The environment variable that selects the log lines to write, for example `info` or `larder_fs=debug`.
pub const LOG_VARIABLE: &str = "LARDER_LOG";

/// Sends log lines to standard error: those of `default_level` and above, unless [`LOG_VARIABLE`] sets another filter.
/// `main` calls this once. Errors: the variable is invalid.
pub fn init_logs(default_level: &str) -> Result<(), String> {
    init(default_level, None)
}

/// The same, and spans to the collector of `traces`.
pub(crate) fn init(default_level: &str, traces: Option<&Traces>) -> Result<(), String> {
    let wanted = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| default_level.to_owned());
    let filter = EnvFilter::try_new(with_own_lines(&wanted))
        .map_err(|error| format!("{LOG_VARIABLE}={wanted}: {error} (try `info` or `larder_fs=debug`)"))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_filter(filter);
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = vec![lines.boxed()];
    layers.extend(traces.map(Traces::layer));
    tracing_subscriber::registry().with(layers).try_init().map_err(|error| format!("set up logs: {error}"))
}

/// A filter that names modules only, such as `larder_csi=debug`, also selects the lines that this crate writes for every
/// program: that it started, why it stopped. It can name `larder_telemetry` to change that.
fn with_own_lines(wanted: &str) -> String {
    let names_modules_only = wanted.split(',').all(|directive| directive.contains('='));
    if names_modules_only { format!("larder_telemetry=info,{wanted}") } else { wanted.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_modules_keeps_the_lines_of_the_program() {
        for (wanted, filter) in [
            ("larder_csi=debug", "larder_csi=debug,larder_telemetry=info"),
            ("larder_telemetry=off,larder_csi=debug", "larder_csi=debug,larder_telemetry=off"),
            ("warn", "warn"),
            ("warn,larder_csi=debug", "larder_csi=debug,warn"),
            ("", ""),
        ] {
            let shown = |filter: &str| EnvFilter::try_new(filter).unwrap().to_string();
            assert_eq!(shown(&with_own_lines(wanted)), shown(filter), "{wanted}");
        }
    }
}
