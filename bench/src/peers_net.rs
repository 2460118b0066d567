//! What a read from another node costs, beside raw TCP with records of the same size and beside a read from the origin.
//!
//! Each server is a process of its own, so that its CPU time is known; both are on this machine, over loopback. The raw
//! server writes the record that four bytes ask for, from the same memory as a peer. Nobody looks at what arrives, or, in a
//! row of its own, both ends sum every byte, as peers do: no protocol with checksums is faster than that.
//!
//! Invariant: all are asked by the same loop, as many at a time.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use larder_peers::{Node, PeerCounters, Peers, PeersConfig, Security, Tls, TlsFiles, Want};
use larder_dataset::{BlockIndex, SnapshotId, crc32c};
use larder_origin::{Origin, OriginConfig};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::epochs::Epoch;
use crate::systems::process::Usage;

pub use serving::serve;

mod serving;

/// The dataset that is read.
const SNAPSHOT: SnapshotId = SnapshotId([7; 32]);
/// Records that there are; each is asked for in turn.
const RECORDS: u32 = 64;
/// The bucket and the keys of the origin.
const BUCKET: &str = "bench";
const SECRET: &str = "larder-secret";

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bytes over a socket, a connection and a thread for each reader.
    RawTcp,
    /// The same with a CRC32C of each record, made by one side and checked by the other.
    RawSummed,
    /// A peer that has the blocks in memory, without TLS.
    Peer,
    /// The same with TLS on both sides.
    PeerTls,
    /// A peer that has them in its store, on disk; without TLS.
    PeerStore,
    /// The same with TLS on both sides.
    PeerStoreTls,
    /// An S3 server, by the client that the mount uses.
    Origin,
}

impl Kind {
    /// All there are, in the order of the table.
    pub const ALL: [Self; 7] =
        [Self::RawTcp, Self::RawSummed, Self::Peer, Self::PeerTls, Self::PeerStore, Self::PeerStoreTls, Self::Origin];

    fn name(self) -> &'static str {
        match self {
            Self::RawTcp => "raw TCP",
            Self::RawSummed => "raw TCP, summed",
            Self::Peer => "peer, memory",
            Self::PeerTls => "peer, memory, mTLS",
            Self::PeerStore => "peer, store",
            Self::PeerStoreTls => "peer, store, mTLS",
            Self::Origin => "origin (S3)",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    /// By the name that it has in JSON.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::deserialize(text.into_deserializer()).map_err(|error: serde::de::value::Error| error.to_string())
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct PeersNetConfig {
    /// Who is to serve.
    pub kinds: Vec<Kind>,
    /// Sizes of records, 1 byte to 4 MiB.
    pub record_bytes: Vec<u32>,
    /// Reads at a time.
    pub readers: Vec<u32>,
    /// How long each is measured.
    pub time: Duration,
    /// Rounds; each kind is measured once in each.
    pub rounds: u32,
    /// A folder on the disk that the store is measured on.
    pub folder: PathBuf,
    /// The program that serves when it is told to by [`ServeConfig`] as JSON.
    pub serve: PathBuf,
}

/// What a serving process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServeConfig {
    kind: Kind,
    record_bytes: u32,
    folder: PathBuf,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct PeersNetRow {
    /// Who served.
    pub kind: Kind,
    /// Size of a record.
    pub record_bytes: u32,
    /// Reads at a time.
    pub readers: u32,
    /// Which round.
    pub round: u32,
    /// Records as files.
    pub epoch: Epoch,
    /// Seconds of CPU of the serving process for a GB (10^9 bytes).
    pub server_cpu_seconds_per_gb: f64,
    /// The same of the reading one.
    pub reader_cpu_seconds_per_gb: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct PeersNetOutcome {
    /// One for each kind, size, number of readers and round.
    pub rows: Vec<PeersNetRow>,
}

/// Measures; `said` hears of each row as it is there.
pub fn run(config: &PeersNetConfig, mut said: impl FnMut(&str)) -> anyhow::Result<PeersNetOutcome> {
    let folder = tempfile::tempdir_in(&config.folder).context("make a folder (--folder)")?;
    write_certificates(folder.path())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let mut rows = Vec::new();
    for round in 1..=config.rounds {
        for &record_bytes in &config.record_bytes {
            for &kind in &config.kinds {
                let told = ServeConfig { kind, record_bytes, folder: folder.path().to_owned() };
                let server = Process::start(&config.serve, &told)?;
                for &readers in &config.readers {
                    let cpu = || Usage::of(&[server.child.id()]).cpu_seconds;
                    let before = cpu();
                    let epoch = read_for(&runtime, &told, server.address, readers, config.time)?;
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
                    said(&format!(
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

/// A serving process; it ends when its standard input does.
struct Process {
    child: std::process::Child,
    address: SocketAddr,
}

impl Process {
    fn start(program: &Path, told: &ServeConfig) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["bench", "peers-net", "--serve", &serde_json::to_string(told)?]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start the server")?;
        let mut line = String::new();
        let said = child.stdout.take().context("the server's output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).context("hear the server")?;
        let address = line.trim().parse().with_context(|| format!("the server said {line:?}"))?;
        Ok(Self { child, address })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A CA, and one certificate for both sides.
fn write_certificates(folder: &Path) -> anyhow::Result<()> {
    let ca_key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key)?;
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate()?;
    let names = vec![larder_peers::tls::NODE_DNS_NAME.to_owned()];
    let node = rcgen::CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    for (name, text) in [("ca.pem", ca.pem()), ("node.pem", node.pem()), ("key.pem", key.serialize_pem())] {
        std::fs::write(folder.join(name), text).context("write a certificate")?;
    }
    Ok(())
}

fn security(kind: Kind, folder: &Path) -> anyhow::Result<Security> {
    if !matches!(kind, Kind::PeerTls | Kind::PeerStoreTls) {
        return Ok(Security::Plaintext);
    }
    let [ca, cert, key] = ["ca.pem", "node.pem", "key.pem"].map(|name| folder.join(name));
    Ok(Security::Tls(Tls::load(TlsFiles { ca, cert, key })?))
}

/// Reads records for so long, so many at a time.
fn read_for(
    runtime: &Runtime,
    told: &ServeConfig,
    address: SocketAddr,
    readers: u32,
    time: Duration,
) -> anyhow::Result<Epoch> {
    match told.kind {
        Kind::RawTcp | Kind::RawSummed => {
            read_raw(told.record_bytes, told.kind == Kind::RawSummed, address, readers, time)
        }
        Kind::Origin => {
            let env = [("AWS_ACCESS_KEY_ID", "larder"), ("AWS_SECRET_ACCESS_KEY", SECRET)];
            let config = OriginConfig {
                endpoint: Some(format!("http://{address}")),
                env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect(),
                ..OriginConfig::default()
            };
            let origin: Arc<dyn Origin> = larder_origin::open(&format!("s3://{BUCKET}").parse()?, &config)?;
            let len = u64::from(told.record_bytes);
            runtime.block_on(in_tasks(readers, time, move |record| {
                let origin = Arc::clone(&origin);
                async move { Ok(origin.read(record.to_string().as_bytes(), 0..len, None).await?.len()) }
            }))
        }
        Kind::Peer | Kind::PeerTls | Kind::PeerStore | Kind::PeerStoreTls => {
            let node = Node { name: "server".to_owned(), address, weight: 1, zone: String::new() };
            let (_members, membership) = watch::channel(Arc::new(vec![node]));
            let security = security(told.kind, &told.folder)?;
            let peers =
                Peers::new(PeersConfig::default(), "reader", security, membership, Arc::new(PeerCounters::default()));
            let len = told.record_bytes;
            let stop = CancellationToken::new();
            let running = runtime.spawn(Arc::clone(&peers).run(stop.clone()));
            let epoch = runtime.block_on(in_tasks(readers, time, move |record| {
                let peers = Arc::clone(&peers);
                async move {
                    let want = Want { block: BlockIndex(record), start: 0, len };
                    Ok(peers.read("server", SNAPSHOT, None, want, true).await?.len())
                }
            }));
            stop.cancel();
            runtime.block_on(running)?;
            epoch
        }
    }
}

/// The loop: `read` takes a record's number and gives its length.
async fn in_tasks<F: Future<Output = anyhow::Result<usize>> + Send + 'static>(
    readers: u32,
    time: Duration,
    read: impl Fn(u32) -> F + Send + Sync + 'static,
) -> anyhow::Result<Epoch> {
    let read = Arc::new(read);
    // The first read makes connections.
    read(0).await?;
    let (started, cpu_before) = (Instant::now(), crate::systems::child::own_cpu_seconds());
    let tasks: Vec<_> = (0..readers)
        .map(|reader| {
            let read = Arc::clone(&read);
            tokio::spawn(async move {
                let (mut times, mut bytes) = (Vec::new(), 0);
                for record in (reader..).map(|number| number % RECORDS) {
                    let began = Instant::now();
                    bytes += read(record).await? as u64;
                    times.push(began.elapsed());
                    if started.elapsed() >= time {
                        break;
                    }
                }
                anyhow::Ok((times, bytes))
            })
        })
        .collect();
    let mut all = (Vec::new(), 0);
    for task in tasks {
        let (times, bytes) = task.await??;
        all.0.extend(times);
        all.1 += bytes;
    }
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), crate::systems::child::own_cpu_seconds() - cpu_before);
    Ok(Epoch::new(all.0, all.1, seconds, cpu))
}

fn read_raw(
    record_bytes: u32,
    summed: bool,
    address: SocketAddr,
    readers: u32,
    time: Duration,
) -> anyhow::Result<Epoch> {
    let (started, cpu_before) = (Instant::now(), crate::systems::child::own_cpu_seconds());
    let threads: Vec<_> = (0..readers)
        .map(|reader| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                let (mut bytes, mut times) = (vec![0; record_bytes as usize + if summed { 4 } else { 0 }], Vec::new());
                for record in (reader..).map(|number| number % RECORDS) {
                    let began = Instant::now();
                    stream.write_all(&record.to_le_bytes())?;
                    stream.read_exact(&mut bytes)?;
                    let (range, sum) = bytes.split_at(record_bytes as usize);
                    if summed && crc32c(range).to_le_bytes() != sum {
                        return Err(std::io::Error::other("the sum is wrong"));
                    }
                    times.push(began.elapsed());
                    if started.elapsed() >= time {
                        break;
                    }
                }
                std::io::Result::Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for thread in threads {
        times.extend(thread.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??);
    }
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), crate::systems::child::own_cpu_seconds() - cpu_before);
    let bytes = times.len() as u64 * u64::from(record_bytes);
    Ok(Epoch::new(times, bytes, seconds, cpu))
}

impl PeersNetOutcome {
    fn figures(&self, kind: Kind, record_bytes: u32, readers: u32, figure: impl Fn(&PeersNetRow) -> f64) -> Vec<f64> {
        let wanted = |row: &&PeersNetRow| (row.kind, row.record_bytes, row.readers) == (kind, record_bytes, readers);
        let mut figures: Vec<f64> = self.rows.iter().filter(wanted).map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures
    }

    /// Medians over the rounds, with the least and the most of the throughput, and how it compares with raw TCP.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut cells: Vec<(u32, u32)> = self.rows.iter().map(|row| (row.record_bytes, row.readers)).collect();
        cells.sort_unstable();
        cells.dedup();
        for (record_bytes, readers) in cells {
            let median = |kind, figure: &dyn Fn(&PeersNetRow) -> f64| {
                let figures = self.figures(kind, record_bytes, readers, figure);
                figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{record_bytes} B, {readers} at a time\n{:<20} {:>22} {:>7} {:>9} {:>9} {:>13} {:>13}",
                "", "MB/s", "x TCP", "p50 ms", "p99 ms", "server s/GB", "reader s/GB"
            );
            let raw = median(Kind::RawTcp, &|row| row.epoch.mb_per_second);
            for kind in Kind::ALL {
                let speeds = self.figures(kind, record_bytes, readers, |row| row.epoch.mb_per_second);
                let (Some(least), Some(most)) = (speeds.first(), speeds.last()) else { continue };
                let speed = speeds[speeds.len() / 2];
                let _ = writeln!(
                    text,
                    "{:<20} {:>22} {:>7.2} {:>9.2} {:>9.2} {:>13.3} {:>13.3}",
                    kind.name(),
                    format!("{speed:.0} ({least:.0}..{most:.0})"),
                    speed / raw,
                    median(kind, &|row| row.epoch.p50_ms),
                    median(kind, &|row| row.epoch.p99_ms),
                    median(kind, &|row| row.server_cpu_seconds_per_gb),
                    median(kind, &|row| row.reader_cpu_seconds_per_gb),
                );
            }
            text.push('\n');
        }
        text
    }
}
