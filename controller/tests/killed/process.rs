//! `larder-controller` as a process that can be killed.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Child;

use larder_stand_in::program::{Figures, Program, free_address};

/// A controller that runs until it is killed or dropped. Dropped by a panic, it prints its log.
pub(crate) struct Process<'a> {
    child: Child,
    admin: SocketAddr,
    identity: &'a str,
    log: PathBuf,
}

impl<'a> Process<'a> {
    /// Starts one with this name in the Lease of a namespace.
    pub(crate) fn start(kubeconfig: &Path, namespace: &str, identity: &'a str, log: PathBuf) -> Self {
        let program = Program {
            path: Path::new(env!("CARGO_BIN_EXE_larder-controller")),
            kubeconfig: Some(kubeconfig),
            namespace,
            identity,
            admin: free_address().expect("a free port"),
        };
        let file = File::create(&log).expect("a log");
        let child = program.command().stdout(file.try_clone().expect("a file")).stderr(file).spawn();
        Self { child: child.expect("the controller starts"), admin: program.admin, identity, log }
    }

    pub(crate) fn identity(&self) -> &str {
        self.identity
    }

    /// Its metrics; none until it runs.
    pub(crate) async fn figures(&self) -> Figures {
        Figures::of(self.admin).await.unwrap_or_default()
    }

    /// SIGKILL.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of {}\n{}", self.identity, std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        // It may have ended by itself, which is no harm here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
