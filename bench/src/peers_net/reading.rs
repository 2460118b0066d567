//! The readers: the same loop for every server.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_dataset::{BlockIndex, BlockRange, crc32c};
use larder_origin::{Origin, OriginConfig};
use larder_peers::{Node, PeerCounters, Peers, PeersConfig, ReadRequest};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::certificates::{raw_tls, security};
use super::kind::ServerKind;
use super::raw::connect;
use super::records::{BUCKET, CACHE, RECORDS, SECRET};
use super::serving::ServeConfig;
use larder_epochs::epochs::Epoch;
use larder_epochs::process::own_cpu_seconds;

/// Reads records for the duration `time`, with `readers` concurrent reads. `lanes` is the number of connections to a
/// peer.
pub(super) fn read_for(
    runtime: &Runtime,
    server: &ServeConfig,
    address: SocketAddr,
    readers: u32,
    lanes: Option<usize>,
    time: Duration,
) -> anyhow::Result<Epoch> {
    match server.kind {
        ServerKind::RawTcp | ServerKind::RawSummed | ServerKind::RawTls => read_raw(server, address, readers, time),
        ServerKind::Origin => {
            let env = [("AWS_ACCESS_KEY_ID", "larder"), ("AWS_SECRET_ACCESS_KEY", SECRET)];
            let config = OriginConfig {
                endpoint: Some(format!("http://{address}")),
                env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect(),
                ..OriginConfig::default()
            };
            let origin: Arc<dyn Origin> = larder_origin::open(&format!("s3://{BUCKET}").parse()?, &config)?;
            let len = u64::from(server.record_bytes);
            runtime.block_on(in_tasks(readers, time, move |record| {
                let origin = Arc::clone(&origin);
                async move { Ok(origin.read(record.to_string().as_bytes(), 0..len, None).await?.len()) }
            }))
        }
        ServerKind::Peer | ServerKind::PeerTls | ServerKind::PeerStore | ServerKind::PeerStoreTls => {
            let node = Node { name: "server".to_owned(), address, weight: 1, zone: String::new() };
            let (_members, membership) = watch::channel(Arc::new(vec![node]));
            let security = security(server.kind, &server.folder)?;
            let default = PeersConfig::default();
            let config = PeersConfig { lanes: lanes.unwrap_or(default.lanes), ..default };
            let peers = Peers::new(config, "reader", security, membership, Arc::new(PeerCounters::default()));
            let len = server.record_bytes;
            let stop = CancellationToken::new();
            let running = runtime.spawn(Arc::clone(&peers).run(stop.clone()));
            let epoch = runtime.block_on(in_tasks(readers, time, move |record| {
                let peers = Arc::clone(&peers);
                async move {
                    let range = BlockRange { block: BlockIndex(record), start: 0, len };
                    let request = ReadRequest { cache: CACHE, range, token: None, forwarded: true, cached_only: false };
                    Ok(peers.read("server", &request).await?.len())
                }
            }));
            stop.cancel();
            runtime.block_on(running)?;
            epoch
        }
    }
}

/// The reading loop. `read` takes a record's number and returns its length.
async fn in_tasks<F: Future<Output = anyhow::Result<usize>> + Send + 'static>(
    readers: u32,
    time: Duration,
    read: impl Fn(u32) -> F + Send + Sync + 'static,
) -> anyhow::Result<Epoch> {
    let read = Arc::new(read);
    // The first read opens connections.
    read(0).await?;
    let (started, cpu_before) = (Instant::now(), own_cpu_seconds());
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
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    Ok(Epoch::new(all.0, all.1, seconds, cpu))
}

fn read_raw(server: &ServeConfig, address: SocketAddr, readers: u32, time: Duration) -> anyhow::Result<Epoch> {
    let (record_bytes, summed) = (server.record_bytes, server.kind == ServerKind::RawSummed);
    let tls = server.kind.is_encrypted().then(|| raw_tls(&server.folder)).transpose()?.map(|(_, client)| client);
    let (started, cpu_before) = (Instant::now(), own_cpu_seconds());
    let threads: Vec<_> = (0..readers)
        .map(|reader| {
            let tls = tls.clone();
            std::thread::spawn(move || {
                let mut stream = connect(address, tls.as_ref())?;
                let (mut bytes, mut times) = (vec![0; record_bytes as usize + if summed { 4 } else { 0 }], Vec::new());
                for record in (reader..).map(|number| number % RECORDS) {
                    let began = Instant::now();
                    stream.write_all(&record.to_le_bytes())?;
                    stream.read_exact(&mut bytes)?;
                    let (range, sum) = bytes.split_at(record_bytes as usize);
                    if summed && crc32c(range).to_le_bytes() != sum {
                        return Err(std::io::Error::other("the checksum is wrong"));
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
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    let bytes = times.len() as u64 * u64::from(record_bytes);
    Ok(Epoch::new(times, bytes, seconds, cpu))
}
