//! The controller as a process of a benchmark.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_fake_platform::program::{Figures, Program, free_address};

use super::objects::NAMESPACE;
use crate::systems::child::Child;

/// The pause before the metrics of a controller that did not answer are scraped again.
const TRIES: u32 = 100;

/// The program to run and the cluster to use.
#[derive(Clone, Debug)]
pub struct Places {
    /// The executable of `larder-controller`.
    pub program: PathBuf,
    /// The kubeconfig. Default: $KUBECONFIG.
    pub kubeconfig: Option<PathBuf>,
}

/// A running controller. Dropping it ends the process.
pub(crate) struct Running {
    child: Option<Child>,
    admin: SocketAddr,
    log: PathBuf,
}

impl Running {
    /// Starts the controller. Must be called on the main thread, because the process ends with the thread that started
    /// it.
    pub(crate) fn start(places: &Places, logs: &Path) -> anyhow::Result<Self> {
        let (admin, log) = (free_address()?, logs.join("larder-controller.log"));
        let child = Some(spawn(places, admin, &log)?);
        Ok(Self { child, admin, log })
    }

    /// Ends the controller and starts it again. Returns the time of the start.
    pub(crate) fn restart(&mut self, places: &Places) -> anyhow::Result<Instant> {
        if let Some(child) = self.child.take() {
            child.stop();
        }
        let started = Instant::now();
        self.child = Some(spawn(places, self.admin, &self.log)?);
        Ok(started)
    }

    pub(crate) fn stop(mut self) {
        if let Some(child) = self.child.take() {
            child.stop();
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Fails if the controller has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else { bail!("larder-controller was stopped") };
        match child.ended()? {
            Some(status) => bail!("larder-controller ended: {status}; {}", child.last_words()),
            None => Ok(()),
        }
    }

    pub(crate) async fn try_figures(&self) -> Option<Figures> {
        Figures::of(self.admin).await
    }

    pub(crate) async fn figures(&mut self) -> anyhow::Result<Figures> {
        for _ in 0..TRIES {
            self.check()?;
            if let Some(figures) = self.try_figures().await {
                return Ok(figures);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("larder-controller does not serve metrics at {}", self.admin)
    }
}

fn spawn(places: &Places, admin: SocketAddr, log: &Path) -> anyhow::Result<Child> {
    let (path, kubeconfig) = (places.program.as_path(), places.kubeconfig.as_deref());
    // The identity is always the same, so that a restarted controller need not wait until its own Lease expires.
    let program = Program { path, kubeconfig, namespace: NAMESPACE, identity: NAMESPACE, admin };
    Child::spawn("larder-controller", &mut program.command(), log).context("--controller")
}
