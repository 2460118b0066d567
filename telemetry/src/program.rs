//! The one way in which a program of Larder runs: log, runtime, signals, exit code.

use std::error::Error;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::logs::init_logs;

/// Runs a program until SIGTERM, SIGINT or its own end. `run` gets the token that the signals cancel, and should then end
/// soon. `workers` is the number of threads of the runtime; without it, there is one for each core.
///
/// Exit codes: 0 the program ended as asked, 1 it failed, 2 [`LOG_VARIABLE`](crate::LOG_VARIABLE) is invalid.
pub fn program<F>(name: &str, workers: Option<usize>, run: impl FnOnce(CancellationToken) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    if let Err(error) = init_logs("info") {
        eprintln!("{name}: {error}");
        return ExitCode::from(2);
    }
    info!(version = env!("CARGO_PKG_VERSION"), "{name} started");
    match run_until_signal(workers, run) {
        Ok(()) => {
            info!("{name} stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // A filter for other modules must not hide why the program ended.
            if tracing::enabled!(tracing::Level::ERROR) {
                error!(error = chain(&*error), "{name} failed");
            } else {
                eprintln!("{name} failed: {}", chain(&*error));
            }
            ExitCode::FAILURE
        }
    }
}

fn run_until_signal<F>(workers: Option<usize>, run: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    // Never shut down: a call that hangs in the kernel or in a device's firmware must not keep the process alive, and a
    // task that a shutdown drops would answer its FUSE reader with EIO, where the next larderd answers it with data.
    let runtime = ManuallyDrop::new(builder.enable_all().build().context("start the runtime")?);
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

/// An error and its causes. Some errors quote their cause: it is not repeated.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let quoted = error.to_string();
        if !text.ends_with(&quoted) {
            text = format!("{text}: {quoted}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_named_once() {
        let quoting = anyhow::anyhow!("open the cache").context("serve: open the cache").context("start");
        assert_eq!(chain(&*quoting), "start: serve: open the cache");
    }

    #[test]
    fn a_signal_cancels_the_token_and_an_error_is_returned() {
        run_until_signal(Some(1), |stop| async move {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
            stop.cancelled().await;
            Ok(())
        })
        .unwrap();
        let error = run_until_signal(None, |_| async { anyhow::bail!("no cache") }).unwrap_err();
        assert_eq!(error.to_string(), "no cache");
    }
}
