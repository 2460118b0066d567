//! [`Larderd`]: the node daemon as a process.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use larder_daemon_api::connect_channel;
use larder_daemon_api::socket::GRPC_SOCKET;
use larder_daemon_api::v1::daemon_client::DaemonClient;
use larder_dataset::environment::PEER_TOKEN;
use larder_testkit::built;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tonic::transport::Channel;

use crate::lab::{Lab, SECRET};
use crate::memory_cgroup::MemoryCgroup;
use crate::network::Namespace;
use crate::process::{connections_of, is_zombie, memory_kib};
use crate::systemd::{Systemd, UNIT};

/// The token that a node shows its peers, unless a mount gets another one.
pub const TOKEN: &str = "correct-horse-battery-staple";

/// The most resident memory of a larderd with this `--threads` and this `--memory-target`, in MiB, as
/// docs/kubernetes/operations.md says: 512 MiB, 2.2 MiB for each of its threads, which are four times `--threads`, and
/// 1.5 times the target.
pub fn memory_mib_most(threads: u64, target_mib: u64) -> u64 {
    512 + 22 * 4 * threads / 10 + 3 * target_mib / 2
}

/// A `larderd` with folders below a lab's, or a `cachenode`, which mounts nothing.
pub struct Larderd {
    program: PathBuf,
    namespace: Namespace,
    /// Flags of every larderd, and this one's own.
    flags: [Vec<String>; 2],
    environment: Vec<(String, String)>,
    run_dir: PathBuf,
    /// A process that writes its number into this file is in the cgroup in which it runs.
    cgroup: Option<PathBuf>,
    /// The service manager that starts it.
    systemd: Option<Systemd>,
    /// How often it was started.
    starts: usize,
    log: PathBuf,
    child: Option<Child>,
}

impl Larderd {
    /// Starts one. `name` names its cache. Its credentials are the lab's.
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
            program: built(program),
            namespace,
            flags: [needed, flags.to_vec()],
            environment: vec![
                ("AWS_ACCESS_KEY_ID".to_owned(), lab.server.access_key().to_owned()),
                ("AWS_SECRET_ACCESS_KEY".to_owned(), SECRET.to_owned()),
                ("TMPDIR".to_owned(), lab.folder().display().to_string()),
            ],
            run_dir,
            cgroup: None,
            systemd: None,
            starts: 0,
            log: folder.with_extension("log"),
            child: None,
        };
        // No mount brings it a token.
        if program == "cachenode" {
            larderd.environment.push((PEER_TOKEN.to_owned(), TOKEN.to_owned()));
        }
        larderd.restart();
        larderd
    }

    /// Starts it again; it must have ended.
    pub fn restart(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let (mut command, passed) = match (&self.cgroup, &self.systemd) {
            (None, None) => (self.namespace.command(&self.program), Vec::new()),
            (None, Some(systemd)) => systemd.command(&self.program),
            // It is in the cgroup before it takes any memory.
            (Some(cgroup), _) => {
                let mut command = self.namespace.command("/bin/sh");
                command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(cgroup).arg(&self.program);
                (command, Vec::new())
            }
        };
        let child = command
            .args(self.flags.iter().flatten())
            .env_clear()
            // A test may run on a disk that is almost full. A flag precedes the variable.
            .env("LARDER_KEEP_FREE", "0%")
            .envs(self.environment.iter().cloned())
            .envs(self.systemd.iter().flat_map(Systemd::environment))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        drop(passed);
        self.child = Some(child);
        self.starts += 1;
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

    /// Sets a variable of its environment from the next start on.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Its program from the next start on, of another version.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Its flags from the next start on.
    pub fn set_flags(&mut self, flags: &[String]) {
        self.flags[1] = flags.to_vec();
    }

    /// Reads its credentials from a folder of files from the next start on, and not from its environment.
    pub fn set_credentials_dir(&mut self, dir: &Path) {
        self.environment.retain(|(name, _)| !name.starts_with("AWS_"));
        self.flags[0].push(format!("--origin-credentials-dir={}", dir.display()));
    }

    /// Is a service of this service manager from the next start on.
    pub fn set_systemd(&mut self, systemd: &Systemd) {
        self.systemd = Some(systemd.clone());
        self.flags[1].push(format!("--systemd-unit={UNIT}"));
    }

    /// Runs in this cgroup from the next start on.
    pub fn set_cgroup(&mut self, cgroup: &MemoryCgroup) {
        self.cgroup = Some(cgroup.processes());
    }

    /// Logs everything from the next start on.
    pub fn log_everything(&mut self) {
        self.environment.push(("LARDER_LOG".to_owned(), "trace".to_owned()));
    }

    /// Waits until it accepts connections, at most 60 s. Before that there is no socket, or that of a killed
    /// predecessor. A `cachenode` has no socket: its log says when it serves.
    pub fn wait_until_it_answers(&self) {
        let started = Instant::now();
        let socket = self.run_dir.join(GRPC_SOCKET);
        let is_cachenode = self.program.ends_with("cachenode");
        let answers = || match is_cachenode {
            true => self.log().matches("serving peers").count() >= self.starts,
            false => UnixStream::connect(&socket).is_ok(),
        };
        while !answers() {
            let runs = self.pid().is_some_and(|pid| !is_zombie(pid));
            assert!(runs && started.elapsed() < Duration::from_secs(60), "larderd does not come up: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process, unless it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends it a signal; it must run.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops it with SIGSTOP. One thread takes the signal and stops the others, so they may run a little longer: the
    /// call returns once the kernel reports the whole process as stopped.
    pub(crate) fn pause(&self) {
        let pid = Pid::from_raw(self.pid().unwrap().cast_signed()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    /// A field of its `/proc/PID/status`, in KiB.
    pub fn memory_kib(&self, field: &str) -> u64 {
        memory_kib(self.pid().unwrap(), field)
    }

    /// The processes that import for it.
    pub fn importing(&self) -> Vec<u32> {
        let Some(id) = self.pid() else { return Vec::new() };
        let parent = format!("PPid:\t{id}\n");
        let is_its = |id: &u32| {
            let read = |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
            read("status").contains(&parent) && read("cmdline").contains("import-for-a-mount")
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_its).collect()
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The folder of its sockets: the cache folder, unless it was told to use others.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Has its sockets in these folders from the next start on, and answers in the first.
    pub fn set_run_dirs(&mut self, dirs: &[&Path]) {
        self.run_dir = dirs[0].to_owned();
        self.flags[1].retain(|flag| !flag.starts_with("--run-dir="));
        self.flags[1].extend(dirs.iter().map(|dir| format!("--run-dir={}", dir.display())));
    }

    /// A gRPC client. Must be called within a runtime.
    pub fn client(&self) -> DaemonClient<Channel> {
        DaemonClient::new(connect_channel(&self.run_dir.join(GRPC_SOCKET)))
    }

    /// How many FUSE connections this process holds.
    pub fn connections(&self) -> usize {
        self.child.as_ref().map_or(0, |child| connections_of(child.id()))
    }
}

impl Drop for Larderd {
    fn drop(&mut self) {
        self.kill();
    }
}
