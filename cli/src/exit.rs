//! Exit codes: 0 success, 1 failure, 2 wrong usage, 141 if the reader has closed the output, as after SIGPIPE. Errors
//! go to standard error and say what to do.

use std::process::ExitCode;

use crate::output;

/// The exit code for wrong usage, the same as clap's.
pub const WRONG_USAGE: u8 = 2;

/// 128 plus the number of SIGPIPE.
const READER_GONE: u8 = 141;

/// Prints the error of a command, and returns its exit code.
pub fn code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if error.is::<output::ReaderGone>() => ExitCode::from(READER_GONE),
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Sets up the log. `Err` is the exit code for a wrong filter.
pub fn init_logs(filter: &str) -> Result<(), ExitCode> {
    larder_telemetry::init_logs(filter).map_err(|error| {
        output::note(format_args!("error: {error}"));
        ExitCode::from(WRONG_USAGE)
    })
}
