//! Ends a running benchmark.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

/// A request to a running benchmark to end soon and to remove its mounts and files.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Requests the stop on SIGINT or SIGTERM. A second signal ends the process immediately. `runtime` listens for the
    /// signals.
    pub fn on_signals(runtime: &Handle) -> anyhow::Result<Self> {
        let stop = Self::default();
        let requested = stop.clone();
        let _in_runtime = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        runtime.spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if requested.0.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
        Ok(stop)
    }

    /// Requests the stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was requested.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if a stop was requested.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.requested() {
            bail!("stopped by a signal");
        }
        Ok(())
    }
}
