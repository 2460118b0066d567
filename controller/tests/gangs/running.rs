//! Programs beside the controllers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bed::Bed;

/// A program that runs until it is dropped. It prints its log if it is dropped by a panic.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> Self {
        let file = File::create(&log).expect("a log");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a file")).stderr(file);
        Self { child: command.spawn().expect("the program starts"), log }
    }

    /// Starts another kube-scheduler with this configuration. Its files are in `folder`.
    pub(crate) fn scheduler(bed: &Bed, config: &Value, folder: &Path) -> Self {
        let path = folder.join("scheduler.yaml");
        std::fs::write(&path, config.to_string()).expect("a file");
        let mut command = Command::new(bed.kubeconfig().with_file_name("bin/kube-scheduler"));
        command.arg(format!("--config={}", path.display())).arg("--secure-port=0");
        Self::start(&mut command, folder.join("scheduler.log"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program runs");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let end = log.len() - log.len().min(20_000);
            eprintln!("--- the end of {}\n{}", self.log.display(), log.get(end..).unwrap_or(&log));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
