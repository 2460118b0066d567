//! What the scenarios share: [`Lab`], an S3 server with a fault proxy before it and a home folder for the command, and
//! [`Mount`], a dataset mounted by the real binary in a process of its own. [`nodes::Nodes`] is a lab of several nodes.
//!
//! Invariant: whatever a test does, when its `Lab` and `Mount`s are dropped, no mount, process or file of it is left.
#![expect(clippy::unwrap_used, clippy::panic, reason = "this is test code: a panic is how it fails")]

pub mod certificates;
pub mod network;
pub mod node;
pub mod nodes;
pub mod platform;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy, larder_binary};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::network::Namespace;

/// The bucket of all scenarios.
pub const BUCKET: &str = "bucket";

/// The secret of the server's key pair, so that a test can look for it where it must not be.
pub const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY";

/// An S3 server behind a fault proxy, and a home for the command.
pub struct Lab {
    runtime: Runtime,
    /// The server; tests put objects into it and count what was asked of it.
    pub server: S3Server,
    /// What the command talks to; passes everything on until a test sets a fault.
    pub proxy: FaultProxy,
    namespace: Namespace,
    home: tempfile::TempDir,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// Starts server and proxy. Fails loudly where nothing can be mounted.
    pub fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap(), Namespace::default(), S3ServerConfig::default())
    }

    /// Starts them in a network namespace, and both at the address of `config`. The command is run there, too.
    pub(crate) fn start(home: tempfile::TempDir, namespace: Namespace, config: S3ServerConfig) -> Self {
        assert!(Path::new("/dev/fuse").exists(), "these tests mount for real, and there is no /dev/fuse here");
        let config = S3ServerConfig {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: SECRET.into(),
            buckets: vec![BUCKET.into()],
            ..config
        };
        // The runtime's threads are started in the namespace, and so is every socket of theirs.
        let (runtime, server, proxy) = namespace.enter(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let (server, proxy) = runtime.block_on(async {
                let ip = config.address.ip();
                let server = S3Server::start(config).await.unwrap();
                let listener = TcpListener::bind(SocketAddr::from((ip, 0))).await.unwrap();
                let proxy = FaultProxy::serve(listener, server.address(), |_| Fault::None).unwrap();
                (server, proxy)
            });
            (runtime, server, proxy)
        });
        Self { runtime, server, proxy, namespace, home }
    }

    /// A folder of the test's own, gone afterwards.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// The runtime of server and proxy.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Puts an object below `s3://bucket/data`.
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.server.put(BUCKET, &format!("data/{key}"), bytes.into());
    }

    /// How often an object below `s3://bucket/data` was asked for since the last reset.
    pub fn gets_of(&self, key: &str) -> u64 {
        self.server.gets_of(BUCKET, &format!("data/{key}"))
    }

    /// The URL of the dataset that `put` fills.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/data")
    }

    /// The command with this lab's environment and nothing of the machine's.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.namespace.command(larder_binary());
        let environment = self.environment(&self.home.path().join("larder"), &self.proxy.endpoint());
        command.args(args).env_clear().envs(environment).env("HOME", self.home.path()).stdin(Stdio::null());
        command
    }

    /// The environment of a command that has this folder for itself, and this S3 server.
    pub(crate) fn environment(&self, home: &Path, endpoint: &str) -> Vec<(&'static str, OsString)> {
        vec![
            ("PATH", std::env::var_os("PATH").unwrap_or_default()),
            ("HOME", home.into()),
            ("LARDER_HOME", home.into()),
            ("AWS_ACCESS_KEY_ID", self.server.access_key().into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
            ("AWS_ENDPOINT_URL", endpoint.into()),
        ]
    }

    /// Runs the command to its end.
    pub fn larder(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs the command, which must succeed, and returns what it printed.
    pub fn larder_ok(&self, args: &[&str]) -> String {
        let output = self.larder(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "larder {args:?} failed: {out}{err}");
        out.into_owned()
    }

    /// Runs the command, which must fail with this exit code, and returns its complaint.
    pub fn larder_fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.larder(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "larder {args:?}: {}{err}",
            String::from_utf8_lossy(&output.stdout)
        );
        err
    }

    /// Mounts `src` at a new folder. `name` is the mount's and its cache's, so that a second mount of the same name finds
    /// the cache of the first.
    pub fn mount(&self, name: &str, src: &str, flags: &[&str]) -> Mount {
        let dir = self.home.path().join(format!("mnt-{name}"));
        std::fs::create_dir_all(&dir).ok();
        let cache = self.cache_dir(name);
        let mut args = vec!["mount", src, dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
        args.extend(flags);
        self.larder_ok(&args);
        Mount::new(dir, false)
    }

    /// The cache folder of a mount's name.
    pub fn cache_dir(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("cache-{name}"))
    }

    /// What all background mounts have logged.
    pub fn logs(&self) -> String {
        let folder = self.home.path().join("larder/logs");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect()
    }
}

/// A mounted dataset.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    pid: u32,
    /// The process serves others as well, and does not end with this one.
    standing: bool,
}

impl Mount {
    fn new(dir: PathBuf, standing: bool) -> Self {
        let mut mount = Self { dir, pid: 0, standing };
        mount.pid = u32::try_from(mount.stats()["process"]["pid"].as_u64().unwrap()).unwrap();
        mount
    }

    /// One that a daemon serves which goes on without it.
    pub(crate) fn standing(dir: PathBuf) -> Self {
        Self::new(dir, true)
    }

    /// A path below the mount.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.join(path)
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The serving process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// `.larder/stats.json`.
    pub fn stats(&self) -> Value {
        // The text stays the same for 50 ms, so that one reader's pieces belong together.
        std::thread::sleep(Duration::from_millis(60));
        serde_json::from_slice(&std::fs::read(self.path(".larder/stats.json")).unwrap()).unwrap()
    }

    /// One of its metrics.
    pub fn metric(&self, name: &str) -> u64 {
        self.stats()["metrics"][name].as_u64().unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// Waits until `done`, at most 30 s.
    pub fn wait_until(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let started = Instant::now();
        while !done(self) {
            assert!(started.elapsed() < Duration::from_secs(30), "waited in vain until {what}: {:#}", self.stats());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nothing is on its way from the origin or into the store.
    pub fn settle(&self) {
        self.wait_until("the mount is idle", |mount| mount.metric("fs_fetches_running") == 0);
    }

    /// Drops a file's pages from the kernel's cache, so that the next read asks the mount again.
    pub fn drop_pages(&self, path: impl AsRef<Path>) {
        let file = std::fs::File::open(self.path(path)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    /// Reads a file, past the kernel's page cache.
    pub fn read_fresh(&self, path: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
        self.drop_pages(&path);
        std::fs::read(self.path(path))
    }

    /// `kill -9` of the serving process; the dead mount is left behind.
    pub fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", self.pid));
        let started = Instant::now();
        // A zombie holds neither locks nor files.
        while proc.exists() && !is_zombie(self.pid) {
            assert!(started.elapsed() < Duration::from_secs(30), "the killed process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        if self.standing {
            return;
        }
        let Some(pid) = rustix::process::Pid::from_raw(self.pid.cast_signed()) else { return };
        // An unmounted process ends by itself and leaves a clean cache; one that hangs is killed.
        let started = Instant::now();
        while rustix::process::test_kill_process(pid).is_ok() && started.elapsed() < Duration::from_secs(10) {
            if is_zombie(self.pid) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// True if a process has ended, and nobody has noticed yet.
pub(crate) fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}
