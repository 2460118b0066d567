//! A machine with agents, and the processes that run on it.

use std::io::{BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A generous timeout, because other tests run on the machine at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job's folder: its key, and the programs that `install` puts there.
pub(crate) struct Job {
    pub(crate) folder: tempfile::TempDir,
}

impl Job {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), [7; 32]).unwrap();
        let installed = Command::new(env!("CARGO_BIN_EXE_larder-agent")).arg("install").arg(folder.path()).status();
        assert!(installed.unwrap().success());
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, program: &str, port: u16) -> Command {
        let mut command = Command::new(self.path(program));
        self.set_up(&mut command, port);
        command
    }

    /// Sets the variables that the containers of a job have.
    pub(crate) fn set_up(&self, command: &mut Command, port: u16) {
        command
            .env("LARDER_AGENT_PORT", port.to_string())
            .env("LARDER_AGENT_KEY", self.path("key"))
            .env("LARDER_AGENT_ADDRESS", "127.0.0.1")
            .env("LARDER_AGENT_CONNECT_SECONDS", "1");
    }

    pub(crate) fn serve(&self) -> Agent {
        self.serve_with_silence("30")
    }

    pub(crate) fn serve_with_silence(&self, seconds: &str) -> Agent {
        let mut command = self.command("agent", 0);
        command.arg("serve").env("LARDER_AGENT_SILENCE_SECONDS", seconds);
        self.serve_by(command)
    }

    /// Serves through a command that execs the agent.
    pub(crate) fn serve_by(&self, mut command: Command) -> Agent {
        command.env("FROM_THE_POD", "yes").stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let port = first.rsplit_once(':').unwrap().1.parse().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&log);
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| *shared.lock().unwrap() += &(line + "\n"));
        });
        Agent { child, port, log }
    }

    /// Runs a command on the agent's host.
    pub(crate) fn rsh(&self, port: u16, command: &str) -> Command {
        let mut rsh = self.command("rsh", port);
        rsh.args(["127.0.0.1", command]);
        rsh
    }
}

pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) port: u16,
    log: Arc<Mutex<String>>,
}

impl Agent {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        send(self.child.id(), Signal::TERM);
        self.child.wait().unwrap();
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    // The process may have exited already.
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process ids that a command writes into a file, once the file has the expected number of them.
pub(crate) fn pids(file: &Path, count: usize) -> Vec<u32> {
    let read = || -> Vec<u32> {
        std::fs::read_to_string(file).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    };
    until("processes say their ids", || read().len() >= count);
    read()
}

/// Whether a process runs: it exists and is not a zombie.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A proxy between a launcher and an agent. It records what the launcher sends. On request it goes silent without
/// closing anything, like a node that has lost its power.
pub(crate) struct Cable {
    pub(crate) port: u16,
    pub(crate) sent: Arc<Mutex<Vec<u8>>>,
    pub(crate) is_cut: Arc<std::sync::atomic::AtomicBool>,
}

impl Cable {
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cable = Self { port: listener.local_addr().unwrap().port(), sent: Arc::default(), is_cut: Arc::default() };
        let (sent, is_cut) = (Arc::clone(&cable.sent), Arc::clone(&cable.is_cut));
        std::thread::spawn(move || {
            let (launcher, _) = listener.accept().unwrap();
            let agent = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (back, ahead) = (agent.try_clone().unwrap(), launcher.try_clone().unwrap());
            let cut = Arc::clone(&is_cut);
            std::thread::spawn(move || carry(back, ahead, &Mutex::default(), &cut));
            carry(launcher, agent, &sent, &is_cut);
        });
        cable
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, record: &Mutex<Vec<u8>>, is_cut: &std::sync::atomic::AtomicBool) {
    use std::io::{Read, Write};
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if is_cut.load(std::sync::atomic::Ordering::SeqCst) {
            continue;
        }
        record.lock().unwrap().extend(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    if !is_cut.load(std::sync::atomic::Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Write);
    }
}
