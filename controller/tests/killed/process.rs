//! `larder-controller` as a process that can be killed.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_fake_platform::program::{Figures, Program, free_address};

/// The delay before a controller that has exited is restarted.
const RESTART: Duration = Duration::from_millis(200);

/// A controller that runs until it is killed or dropped. If it exits, as it does when a busy machine keeps it from
/// renewing its Lease, it is restarted, as a kubelet would do. It prints its log if it is dropped by a panic.
pub(crate) struct Process<'a> {
    /// `None` after the kill.
    child: Arc<Mutex<Option<Child>>>,
    /// Whether it has exited and was restarted.
    restarted: Arc<AtomicBool>,
    admin: SocketAddr,
    identity: &'a str,
    log: PathBuf,
}

impl<'a> Process<'a> {
    /// Starts a controller with this identity in the Lease of a namespace.
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
        let restarted = Arc::new(AtomicBool::new(false));
        let kept = (Arc::clone(&child), Arc::clone(&restarted));
        std::thread::spawn(move || keep_running(&kept.0, &kept.1, command));
        Self { child, restarted, admin: program.admin, identity, log }
    }

    pub(crate) fn identity(&self) -> &'a str {
        self.identity
    }

    /// Its metrics. `None` until it runs, and after it has exited, because the counters then start over.
    pub(crate) async fn figures(&self) -> Option<Figures> {
        let figures = Figures::of(self.admin).await;
        figures.filter(|_| !self.restarted.load(Ordering::Acquire))
    }

    /// Whether it is the leader; `None` while it does not answer.
    pub(crate) async fn leads(&self) -> Option<bool> {
        Figures::of(self.admin).await.map(|figures| figures.get("leading") == 1)
    }

    /// Sends SIGKILL.
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
        // It may have exited a moment ago, which is harmless here.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Restarts the controller whenever it has exited, until it is killed.
fn keep_running(child: &Mutex<Option<Child>>, restarted: &AtomicBool, mut command: Command) {
    loop {
        std::thread::sleep(RESTART);
        let mut child = child.lock().expect("no other panic");
        let Some(running) = child.as_mut() else { return };
        if running.try_wait().expect("a child").is_some() {
            restarted.store(true, Ordering::Release);
            *running = command.spawn().expect("the controller starts again");
        }
    }
}
