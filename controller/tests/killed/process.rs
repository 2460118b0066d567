//! `larder-controller` as a process that can be killed.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_stand_in::program::{Figures, Program, free_address};

/// How soon a controller that has ended by itself is started again.
const RESTART: Duration = Duration::from_millis(200);

/// A controller that runs until it is killed or dropped. One that ends by itself, as it does when a busy machine keeps it from
/// renewing its lease, is started again, as a kubelet would. Dropped by a panic, it prints its log.
pub(crate) struct Process<'a> {
    /// `None` once it is killed.
    child: Arc<Mutex<Option<Child>>>,
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
        let mut command = program.command();
        command.stdout(file.try_clone().expect("a file")).stderr(file);
        let child = Arc::new(Mutex::new(Some(command.spawn().expect("the controller starts"))));
        let kept = Arc::clone(&child);
        std::thread::spawn(move || keep_running(&kept, command));
        Self { child, admin: program.admin, identity, log }
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
        let Some(mut child) = self.child.lock().ok().and_then(|mut child| child.take()) else { return };
        // It may just have ended by itself, which is no harm here.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Starts it again whenever it has ended, until it is killed.
fn keep_running(child: &Mutex<Option<Child>>, mut command: Command) {
    loop {
        std::thread::sleep(RESTART);
        let mut child = child.lock().expect("no other panic");
        let Some(running) = child.as_mut() else { return };
        if running.try_wait().expect("a child").is_some() {
            *running = command.spawn().expect("the controller starts again");
        }
    }
}
