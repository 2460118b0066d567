//! The cost of a read from another node, beside raw TCP with records of the same size and beside a read from the
//! origin.
//!
//! Each server is a separate process, so that its CPU time is separate. Server and reader are on this machine and talk
//! over loopback. The raw server receives a record's number in four bytes and sends that record, from the same kind of
//! memory as a peer. In one row neither end inspects the bytes. In another row both ends compute the checksum of every
//! byte, as peers do; this row bounds every protocol with checksums. Raw TLS is the same server over the library, the
//! version and the ciphers that peers use; it bounds the encrypted rows.
//!
//! The cast: `kind` names the servers; `serving` is the process that serves `records`; `reading` is the loop that reads
//! them; `raw` has the connections of the raw rows; `certificates` are for TLS; `outcome` has the figures and their
//! table.
//!
//! Invariant: the same loop reads from every server, with the same number of concurrent reads.

mod certificates;
mod kind;
mod outcome;
mod raw;
mod reading;
mod records;
mod serving;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use crate::side_by_side::Progress;
pub(crate) use certificates::write_certificates;
pub use kind::ServerKind;
use larder_epochs::process::Usage;
pub use outcome::{PeersNetOutcome, PeersNetRow};
use reading::read_for;
pub use serving::{ServeConfig, serve};

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct PeersNetConfig {
    /// The servers to measure.
    pub kinds: Vec<ServerKind>,
    /// Record sizes, 1 byte to 4 MiB.
    pub record_bytes: Vec<u32>,
    /// Numbers of concurrent reads.
    pub readers: Vec<u32>,
    /// The number of connections to a peer; `None`: as in larderd.
    pub lanes: Option<usize>,
    /// The duration of each measurement.
    pub time: Duration,
    /// Number of rounds. Each round measures every kind once.
    pub rounds: u32,
    /// A folder on the disk to measure, for the store.
    pub folder: PathBuf,
    /// `larder-bench` itself, which serves as `larder-bench peers-net --serve`.
    pub serve: PathBuf,
}

/// Measures each kind of server with each record size and number of readers.
pub fn run(config: &PeersNetConfig, progress: &dyn Progress) -> anyhow::Result<PeersNetOutcome> {
    let servers = config.record_bytes.len() * config.kinds.len() * config.readers.len();
    progress.steps(servers as u64 * u64::from(config.rounds));
    let folder = tempfile::tempdir_in(&config.folder).context("create a directory (--folder)")?;
    write_certificates(folder.path())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let mut rows = Vec::new();
    for round in 1..=config.rounds {
        for &record_bytes in &config.record_bytes {
            for &kind in &config.kinds {
                progress.doing(&format!("round {round}: {}", kind.name()));
                let serve = ServeConfig { kind, record_bytes, folder: folder.path().to_owned() };
                let server = Process::start(&config.serve, &serve)?;
                for &readers in &config.readers {
                    let cpu = || Usage::of(&[server.child.id()]).cpu_seconds;
                    let before = cpu();
                    let epoch = read_for(&runtime, &serve, server.address, readers, config.lanes, config.time)?;
                    let gb = epoch.bytes as f64 / 1e9;
                    let row = PeersNetRow {
                        kind,
                        record_bytes,
                        readers,
                        round,
                        server_cpu_seconds_per_gb: (cpu() - before) / gb,
                        reader_cpu_seconds_per_gb: epoch.cpu_seconds / gb,
                        epoch,
                    };
                    progress.measured(&format!(
                        "round {round} {:18} {record_bytes:>8} B {readers:>3} readers {:>7.0} MB/s",
                        kind.name(),
                        row.epoch.mb_per_second
                    ));
                    rows.push(row);
                }
            }
        }
    }
    Ok(PeersNetOutcome { rows })
}

/// A serving process. It ends when its standard input is closed.
struct Process {
    child: std::process::Child,
    address: SocketAddr,
}

impl Process {
    fn start(program: &Path, serve: &ServeConfig) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["peers-net", "--serve", &serde_json::to_string(serve)?]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start the server")?;
        let mut line = String::new();
        let said = child.stdout.take().context("open the server's output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line)
            .context("read the server's address")?;
        let address =
            line.trim().parse().with_context(|| format!("the server printed {line:?} instead of its address"))?;
        Ok(Self { child, address })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
