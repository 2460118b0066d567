//! [`Plugin`]: the CSI node plugin as a process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use larder_daemon_api::connect_channel;
use larder_daemon_api::mountinfo::mounts;
use larder_testkit::built;
use tonic::transport::Channel;

use crate::lab::Lab;
use crate::larderd::Larderd;
use crate::process::connections_of;

/// A `larder-csi` beside a [`Larderd`].
pub struct Plugin {
    program: PathBuf,
    flags: Vec<String>,
    folder: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Plugin {
    /// Starts one. Its kubelet's folder is below the lab's.
    pub fn start(lab: &Lab, larderd: &Larderd, flags: &[&str]) -> Self {
        let folder = lab.folder().join("csi");
        std::fs::create_dir_all(folder.join("kubelet/pods")).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let mut all = vec![
            "--node-name=n1".to_owned(),
            format!("--endpoint={}", path("csi.sock")),
            format!("--kubelet-dir={}", path("kubelet")),
            format!("--state-dir={}", path("state")),
            format!("--run-dir={}", larderd.run_dir().display()),
            "--daemon-uid=0".to_owned(),
        ];
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let program = built("larder-csi");
        let mut plugin = Self { program, flags: all, log: folder.join("log"), folder, child: None };
        plugin.restart();
        plugin
    }

    /// Starts it again; it must have ended.
    pub fn restart(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let child = Command::new(&self.program)
            .args(&self.flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Its program from the next start on, of another version.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Looks for larderd's sockets in these folders from the next start on.
    pub fn set_run_dirs(&mut self, dirs: &[&Path]) {
        self.flags.retain(|flag| !flag.starts_with("--run-dir="));
        self.flags.extend(dirs.iter().map(|dir| format!("--run-dir={}", dir.display())));
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Its process, unless it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// A path below its folder. Targets are below `kubelet/pods`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A channel to its socket. Must be called within a runtime.
    pub fn channel(&self) -> Channel {
        connect_channel(&self.path("csi.sock"))
    }

    /// How many FUSE connections this process holds.
    pub fn connections(&self) -> usize {
        self.child.as_ref().map_or(0, |child| connections_of(child.id()))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
        // Its mounts are made to outlive it.
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        for mount in mounts().unwrap_or_default().iter().filter(|mount| mount.path.starts_with(&folder)) {
            use rustix::mount::UnmountFlags;
            let _ = rustix::mount::unmount(&mount.path, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}
