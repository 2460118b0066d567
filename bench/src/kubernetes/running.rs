//! The controller as a process of a benchmark.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_fake_platform::program::{Figures, Program, free_address};

use super::objects::NAMESPACE;
use crate::systems::child::Child;

/// How often a controller that does not tell its figures is asked again.
const TRIES: u32 = 100;

/// Where the program and the cluster are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The program `larder-controller`.
    pub program: PathBuf,
    /// The kubeconfig; by default that of the environment.
    pub kubeconfig: Option<PathBuf>,
}

/// A controller that runs, until it is dropped.
pub(crate) struct Running {
    child: Option<Child>,
    admin: SocketAddr,
    log: PathBuf,
}

impl Running {
    /// Must be called on the main thread.
    pub(crate) fn start(places: &Places, logs: &Path) -> anyhow::Result<Self> {
        let (admin, log) = (free_address()?, logs.join("larder-controller.log"));
        let child = Some(spawn(places, admin, &log)?);
        Ok(Self { child, admin, log })
    }

    /// Ends it, and starts it again. Returns when that was.
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

    /// Fails if it has ended.
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
    // Always of the same name, so that it need not wait until its own lease has run out.
    let program = Program { path, kubeconfig, namespace: NAMESPACE, identity: NAMESPACE, admin };
    Child::spawn("larder-controller", &mut program.command(), log).context("--controller")
}
