//! [`Larderd`], the node daemon as a process, and [`Keeper`], a stand-in for the CSI node plugin: it mounts, hands
//! connections over and keeps duplicates.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_daemon_api::handover::{Said, Socket};
use larder_daemon_api::v1::daemon_client::DaemonClient;
use larder_daemon_api::{connect_channel, v1};
use larder_testkit::built;
use rustix::process::{Pid, Signal, kill_process};
use tonic::transport::Channel;

use crate::network::Namespace;
use crate::{Lab, is_zombie};

/// A `larderd` with folders below a lab's, or a `cachenode`, which is one without mounts.
pub struct Larderd {
    program: &'static str,
    namespace: Namespace,
    /// What every larderd needs, and what this one was told.
    flags: [Vec<String>; 2],
    environment: Vec<(String, String)>,
    run_dir: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Larderd {
    /// Starts one. `name` is its cache's. Its own credentials are the lab's.
    pub fn start(lab: &Lab, name: &str, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        Self::start_in(lab, Namespace::default(), &lab.proxy.endpoint(), "larderd", name, &flags)
    }

    /// Starts `program` in a network namespace, from which it reaches the S3 server by this URL.
    pub(crate) fn start_in(
        lab: &Lab,
        namespace: Namespace,
        endpoint: &str,
        program: &'static str,
        name: &str,
        flags: &[String],
    ) -> Self {
        let folder = lab.folder().join(format!("node-{name}"));
        let run_dir = folder.join("cache");
        std::fs::create_dir_all(&run_dir).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let needed = vec![
            format!("--cache-dir={}", path("cache")),
            format!("--home={}", path("home")),
            format!("--endpoint={endpoint}"),
        ];
        let mut larderd = Self {
            program,
            namespace,
            flags: [needed, flags.to_vec()],
            environment: vec![
                ("AWS_ACCESS_KEY_ID".to_owned(), lab.server.access_key().to_owned()),
                ("AWS_SECRET_ACCESS_KEY".to_owned(), crate::SECRET.to_owned()),
            ],
            run_dir,
            log: folder.join("log"),
            child: None,
        };
        // It is told by nobody else.
        if program == "cachenode" {
            larderd.environment.push(("LARDER_PEER_TOKEN".to_owned(), crate::nodes::TOKEN.to_owned()));
        }
        larderd.restart();
        larderd
    }

    /// Starts it anew; it must have ended.
    pub fn restart(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let child = self
            .namespace
            .command(built(self.program))
            .args(self.flags.iter().flatten())
            .env_clear()
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGTERM, and waits until it has ended by itself.
    pub fn terminate(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "larderd ended with {status}: {}", self.log());
    }

    /// What it is told from its next start on.
    pub fn set_flags(&mut self, flags: &[String]) {
        self.flags[1] = flags.to_vec();
    }

    /// Waits until it takes connections, at most 60 s: who asks earlier finds nobody, or the socket of one that was killed.
    pub(crate) fn wait_until_it_answers(&self) {
        let started = Instant::now();
        let socket = self.run_dir.join("larderd.sock");
        while UnixStream::connect(&socket).is_err() {
            let runs = self.pid().is_some_and(|pid| !is_zombie(pid));
            assert!(runs && started.elapsed() < Duration::from_secs(60), "larderd does not come up: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process, unless it has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends it a signal; it must run.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where its sockets are: in the cache folder.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// A gRPC client. Must be called within a runtime.
    pub fn client(&self) -> DaemonClient<Channel> {
        DaemonClient::new(connect_channel(&self.run_dir.join("larderd.sock")))
    }
}

impl Drop for Larderd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Mounts as the plugin does, and keeps the connections. Dropped, it unmounts them.
pub struct Keeper {
    run_dir: PathBuf,
    socket: Option<Socket>,
    kept: HashMap<String, (v1::Connection, OwnedFd)>,
    dirs: Vec<PathBuf>,
}

impl Keeper {
    /// Not connected yet.
    pub fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned(), socket: None, kept: HashMap::new(), dirs: Vec::new() }
    }

    /// Connects, within 30 s, takes what the daemon holds, and offers what it lacks. Returns the mounts it held.
    pub fn connect(&mut self) -> Vec<String> {
        let started = Instant::now();
        loop {
            match self.try_connect() {
                Ok(held) => return held,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "larderd does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_connect(&mut self) -> std::io::Result<Vec<String>> {
        let socket = Socket::connect(&self.run_dir.join("handover.sock"))?;
        socket.set_timeout(Some(Duration::from_secs(20)))?;
        let mut held = Vec::new();
        loop {
            match socket.receive()? {
                Some((Said::Held(connection), Some(fd))) => {
                    held.push(connection.mount.clone());
                    self.kept.entry(connection.mount.clone()).or_insert((connection, fd));
                }
                Some((Said::HeldEnd(_), _)) => break,
                other => return Err(std::io::Error::other(format!("{other:?}"))),
            }
        }
        for (mount, (connection, fd)) in &self.kept {
            if !held.contains(mount) {
                socket.ask(Said::Offer(connection.clone()), Some(fd.as_fd()))?.map_err(std::io::Error::other)?;
            }
        }
        self.socket = Some(socket);
        Ok(held)
    }

    /// Makes a FUSE mount at `dir` and hands it over.
    pub fn mount(&mut self, prepared: &v1::Prepared, dataset: v1::Dataset, dir: &Path) -> Result<(), String> {
        std::fs::create_dir_all(dir).unwrap();
        let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!(
            "fd={},rootmode=40555,user_id=0,group_id=0,allow_other,default_permissions",
            fuse.as_fd().as_raw_fd()
        );
        let flags = rustix::mount::MountFlags::RDONLY | rustix::mount::MountFlags::NODEV;
        rustix::mount::mount("larder:kept", dir, "fuse", flags, Some(&*CString::new(options).unwrap())).unwrap();
        self.dirs.push(dir.to_owned());
        let mut init = vec![0; 64 << 10];
        let len = rustix::io::read(&fuse, &mut init).unwrap();
        init.truncate(len);
        let connection = v1::Connection { mount: prepared.mount.clone(), dataset: Some(dataset), init };
        let (connection, fuse) =
            self.kept.entry(connection.mount.clone()).insert_entry((connection, OwnedFd::from(fuse))).into_mut();
        let socket = self.socket.as_ref().expect("connected");
        socket.ask(Said::Offer(connection.clone()), Some(fuse.as_fd())).map_err(|error| error.to_string())?
    }

    /// As if it were killed: everything it holds is gone, its mounts stay.
    pub fn lose_everything(&mut self) {
        self.socket = None;
        self.kept.clear();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // By force: a reader of this very process that waits for an answer would keep the connection open for ever.
            use rustix::mount::UnmountFlags;
            let _ = rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

/// The CSI node plugin as a process, beside a [`Larderd`].
pub struct Plugin {
    flags: Vec<String>,
    folder: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Plugin {
    /// Starts one whose kubelet's folder is below the lab's.
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
        let mut plugin = Self { flags: all, log: folder.join("log"), folder, child: None };
        plugin.restart();
        plugin
    }

    /// Starts it anew; it must have ended.
    pub fn restart(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let child = Command::new(built("larder-csi"))
            .args(&self.flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// A path below its folder; `kubelet/pods` is where targets go.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A channel to its socket. Must be called within a runtime.
    pub fn channel(&self) -> Channel {
        connect_channel(&self.path("csi.sock"))
    }

    /// True if this process holds a FUSE connection.
    pub fn holds_a_connection(&self) -> bool {
        self.child.as_ref().is_some_and(holds_a_connection)
    }
}

impl Larderd {
    /// True if this process holds a FUSE connection.
    pub fn holds_a_connection(&self) -> bool {
        self.child.as_ref().is_some_and(holds_a_connection)
    }
}

fn holds_a_connection(child: &Child) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", child.id()));
    fds.into_iter()
        .flatten()
        .flatten()
        .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == Path::new("/dev/fuse")))
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
        // Its mounts would outlive it: that is what it is for.
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for path in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if Path::new(path).starts_with(&folder) {
                use rustix::mount::UnmountFlags;
                let _ = rustix::mount::unmount(path, UnmountFlags::FORCE | UnmountFlags::DETACH);
            }
        }
    }
}
