//! The start of the daemons, while they wait for what they need.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_e2e::wait_until;
use larder_testkit::built;
use rustix::process::{Pid, Signal, kill_process};

/// The shortest that a daemon waits, for another process that has the cache, is 5 s.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A daemon that waits during its start, with its folders.
struct Starting {
    child: Child,
    folder: PathBuf,
}

impl Starting {
    /// Starts a program that may not write to the folders of other users, although it runs as root.
    fn new(folder: &Path, program: &str, flags: &[&str]) -> Self {
        let path = |name: &str| folder.join(name).display().to_string();
        let own = match program {
            "larder-csi" => vec![
                "--node-name=n1".to_owned(),
                format!("--endpoint={}", path("csi.sock")),
                format!("--kubelet-dir={}", path("kubelet")),
                format!("--state-dir={}", path("cache")),
                format!("--run-dir={}", path("run")),
                "--daemon-uid=0".to_owned(),
            ],
            _ => vec![format!("--cache-dir={}", path("cache")), format!("--home={}", path("home"))],
        };
        let child = Command::new("setpriv")
            .args(["--inh-caps=-dac_override", "--bounding-set=-dac_override", "--"])
            .arg(built(program))
            .args(own)
            .args(flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, folder: folder.to_owned() }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// True if it handles SIGTERM.
    fn handles_signals(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    }

    fn assert_stops_on(mut self, signal: Signal) {
        let stopped = Instant::now();
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        assert!(stopped.elapsed() < AT_ONCE, "{:?}: {}", stopped.elapsed(), self.log());
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The flags of a cachenode.
const CACHENODE: [&str; 5] = [
    "--dataset=file:///nowhere",
    "--peers=n1=127.0.0.1:1",
    "--node-name=n1",
    "--peer-listen=127.0.0.1:0",
    "--peer-plaintext",
];

// SEMANTICS: P5
#[test]
fn a_signal_ends_a_daemon_that_waits_for_its_folder() {
    for (program, flags) in [("larderd", &[][..]), ("cachenode", &CACHENODE)] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        std::fs::create_dir(&cache).unwrap();
        std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o700)).unwrap();
        chown(&cache, Some(65534), None).unwrap();
        let starting = Starting::new(folder.path(), program, flags);
        wait_until("it handles signals", || starting.handles_signals());
        starting.assert_stops_on(Signal::TERM);
    }
}

// SEMANTICS: P5
#[test]
fn a_signal_ends_a_daemon_that_waits_for_another_process() {
    for (program, flags, lock) in
        [("larderd", &[][..], "cache/LOCK"), ("cachenode", &CACHENODE, "cache/LOCK"), ("larder-csi", &[], "cache")]
    {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        let lock = folder.path().join(lock);
        let held = if lock.is_dir() { File::open(&lock) } else { File::create(&lock) }.unwrap();
        held.lock().unwrap();
        let starting = Starting::new(folder.path(), program, flags);
        wait_until("its settings are known", || starting.log().contains("settings"));
        starting.assert_stops_on(Signal::INT);
    }
}
