//! `larder-agent`: starts processes in other pods of a job, without ssh, and lists the files that a pod is to read.
//!
//! An init container installs it into the pods of a job. `/larder/agent serve` accepts connections. Under the names
//! `/larder/rsh` and `/larder/ssh` it is the command by which mpirun and similar launchers start a process on a host.
//!
//! ```text
//!  mpirun ── rsh HOST COMMAND ── TLS 1.3, keys of the job alone ──► agent serve ── session ── /bin/sh -c COMMAND
//! ```
//! `serve` accepts connections and starts a session process for each of them, which serves one peer and one command.
//! The two ends of a connection exchange frames (`frame.rs`). Each of the three streams has its own flow-control window
//! (`stream.rs`), so an unread stream delays neither signals, nor keep-alives, nor the other streams.
//!
//! Invariants: a peer without the job's key does not get past the handshake. Every wait for a peer has a timeout. A
//! command outlives neither its connection nor its session.

mod arguments;
mod connect;
mod frame;
mod install;
mod key;
mod processes;
mod readiness;
mod resolver;
mod rsh;
mod serve;
mod session;
mod settings;
mod signals;
mod split;
mod stream;
mod wait;
mod wire;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use settings::Settings;

/// The exit status of Larder's own failures, as with ssh.
const FAILED: u8 = 255;
/// The exit status of invalid usage.
const MISUSED: u8 = 2;

const USAGE: &str = "\
usage: larder-agent install FOLDER      copies itself to FOLDER/agent, FOLDER/rsh and FOLDER/ssh
       larder-agent serve               runs the commands of launchers that have the key of the job
       larder-agent wait HOSTS_FILE     waits until the agent of every host in the file answers (one host per line)
       larder-agent split FOLDER INDEX COUNT FILE
                                        lists every COUNTth file of a dataset, from number INDEX on, in FILE
       rsh [FLAGS] HOST COMMAND...      runs a command on a host; ssh is the same

LARDER_AGENT_PORT             the port of all agents of a job
LARDER_AGENT_KEY              the path of the file with the key of the job
LARDER_AGENT_ADDRESS          serve: the address to listen on (all)
LARDER_AGENT_SILENCE_SECONDS  after how long without a sign of life a peer counts as lost (30)
LARDER_AGENT_CONNECT_SECONDS  rsh: how long it tries to reach a host (30)
LARDER_AGENT_WAIT_SECONDS     wait: how long it waits for all hosts (1800)";

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let name = Path::new(&name).file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    if name == "rsh" || name == "ssh" {
        return run_elsewhere(&name, words);
    }
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let (first, rest) = words.split_first().map_or((None, &[][..]), |(first, rest)| (first.to_str(), rest));
    let done = |()| ExitCode::SUCCESS;
    let result = match (first, rest) {
        (Some("install"), [folder]) => install::install(Path::new(folder)).map(done).map_err(Failure::from),
        (Some("wait"), [hosts]) => with_settings(|it| wait::wait(it, Path::new(hosts))).map(done),
        (Some("split"), [from, index, count, to]) => split_by(from, index, count, to).map(done),
        (Some("serve"), []) => with_settings(serve::serve).map(ExitCode::from),
        // Only `serve` calls this, with the connection as standard input.
        (Some("session"), []) => with_settings(session::serve).map(done),
        (Some("--help" | "help"), []) => Ok(say(USAGE)),
        (Some("--version"), []) => Ok(say(concat!("larder-agent ", env!("CARGO_PKG_VERSION")))),
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::from(MISUSED))
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("larder-agent: {error}");
        ExitCode::FAILURE
    })
}

fn split_by(from: &OsStr, index: &OsStr, count: &OsStr, to: &OsStr) -> Result<(), Failure> {
    let number = |word: &OsStr| {
        let number = word.to_str().and_then(|text| text.parse::<u64>().ok());
        number.ok_or_else(|| format!("`{}` is not a number", word.display()))
    };
    Ok(split::split(Path::new(from), number(index)?, number(count)?, Path::new(to))?)
}

fn run_elsewhere(name: &str, words: Vec<OsString>) -> ExitCode {
    let result = arguments::parse(words).map_err(|error| error.to_string()).and_then(|target| {
        with_settings(|settings| rsh::run(settings, &target)).map_err(|error| format!("{}: {error}", target.host))
    });
    result.map_or_else(
        |error| {
            eprintln!("{name}: {error}");
            ExitCode::from(FAILED)
        },
        ExitCode::from,
    )
}

type Failure = Box<dyn std::error::Error>;

fn with_settings<T, E: Into<Failure>>(run: impl FnOnce(&Settings) -> Result<T, E>) -> Result<T, Failure> {
    run(&Settings::read()?).map_err(Into::into)
}

#[expect(clippy::print_stdout, reason = "the answer to --help and --version")]
fn say(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}
