//! The common frame of Larder's programs: log, runtime, signals, exit code.

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::process::ExitCode;

use anyhow::Context;
use larder_dataset::Chain;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::logs::init;
use crate::secrecy::keep_memory_private;
use crate::traces::Traces;

/// Runs a program until SIGTERM, SIGINT or its own end, with its memory private ([`keep_memory_private`]). The signals
/// cancel the token that `run` receives; `run` should then end soon, even while it still waits for what it needs to
/// serve. `workers` is the number of threads of the runtime; by default there is one for each core.
///
/// Exit codes: 0 after a clean end, 1 after a failure, 2 if [`LOG_VARIABLE`](crate::LOG_VARIABLE) or a variable of the
/// traces is invalid.
pub fn program<F>(name: &str, workers: Option<usize>, run: impl FnOnce(CancellationToken) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    keep_memory_private();
    // The runtime is never shut down. A call that hangs in the kernel or in a device's firmware must not keep the
    // process alive. A shutdown would also drop tasks that answer FUSE readers; those readers would get EIO, whereas
    // the next larderd answers them with data.
    let runtime = match runtime(workers) {
        Ok(runtime) => ManuallyDrop::new(runtime),
        Err(error) => {
            eprintln!("{name}: start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let inside = runtime.enter();
    let traces = match Traces::start(name).and_then(|traces| init("info", traces.as_ref()).map(|()| traces)) {
        Ok(traces) => traces,
        Err(error) => {
            eprintln!("{name}: {error}");
            return ExitCode::from(2);
        }
    };
    drop(inside);
    info!(version = env!("CARGO_PKG_VERSION"), "{name} started");
    let ended = run_until_signal(&runtime, run);
    let code = match ended {
        Ok(()) => {
            info!("{name} stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // A log filter for other modules must not hide the reason for the exit.
            if tracing::enabled!(tracing::Level::ERROR) {
                error!(error = Chain(&*error).to_string(), "{name} failed");
            } else {
                eprintln!("{name} failed: {}", Chain(&*error));
            }
            ExitCode::FAILURE
        }
    };
    if let Some(traces) = traces {
        traces.end();
    }
    code
}

fn runtime(workers: Option<usize>) -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    builder.enable_all().build()
}

fn run_until_signal<F>(runtime: &Runtime, run: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let stopping = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => info!("stopping on SIGTERM"),
                _ = interrupt.recv() => info!("stopping on SIGINT"),
            }
            stopping.cancel();
        });
        run(stop).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_cancels_the_token_and_an_error_is_returned() {
        run_until_signal(&runtime(Some(1)).unwrap(), |stop| async move {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
            stop.cancelled().await;
            Ok(())
        })
        .unwrap();
        let error = run_until_signal(&runtime(None).unwrap(), |_| async { anyhow::bail!("no cache") }).unwrap_err();
        assert_eq!(error.to_string(), "no cache");
    }
}
