//! `larder-rdma-limit`: reads its flags and the container's state on stdin, then limits the container or fails.

use std::io::Write;
use std::process::ExitCode;

use larder_rdma_limit::Settings;

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let outcome = Settings::parse(args).and_then(|settings| settings.run(std::io::stdin().lock()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The runtime copies the text into an event of the pod. If stderr is closed, there is no other channel to
            // report on.
            let _ = writeln!(
                std::io::stderr(),
                "larder-rdma-limit: {error}; the container does not start without its limit"
            );
            ExitCode::FAILURE
        }
    }
}
