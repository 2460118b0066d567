//! The processes that serve records: over a bare socket, as a peer, or as an origin.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockRange, CacheId, PolicyKind, SnapshotId, crc32c};
use larder_peers::{AskedDataset, BlockBytes, Blocks, Buffers, DatasetStats, ReadError, ReadRequest, Server};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_store::{CacheConfig, DatasetCache, Lookup, PartBytes, Reservation, Store, StoreConfig, StoreCounters};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::certificates::{raw_tls, security};
use super::kind::ServerKind;
use super::raw::{RawStream, accept};
use super::records::{BUCKET, CACHE, RECORDS, SECRET, content};

/// The settings of a serving process; JSON on its command line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServeConfig {
    pub(super) kind: ServerKind,
    pub(super) record_bytes: u32,
    pub(super) folder: PathBuf,
}

/// Serves until standard input ends. Prints its address on standard output.
pub fn serve(config: &str) -> anyhow::Result<()> {
    let config: ServeConfig = serde_json::from_str(config).context("parse --serve")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let _in_runtime = runtime.enter();
    let (address, _served): (SocketAddr, Box<dyn std::any::Any>) = match config.kind {
        ServerKind::RawTcp | ServerKind::RawSummed | ServerKind::RawTls => (serve_raw(&config)?, Box::new(())),
        ServerKind::Origin => {
            let server = runtime.block_on(S3Server::start(S3ServerConfig {
                secret_key: SECRET.to_owned(),
                buckets: vec![BUCKET.to_owned()],
                unchecked_gets: true,
                ..S3ServerConfig::default()
            }))?;
            for record in 0..RECORDS {
                server.put(BUCKET, &record.to_string(), content(record, config.record_bytes).to_vec());
            }
            (server.address(), Box::new(server))
        }
        ServerKind::Peer | ServerKind::PeerTls | ServerKind::PeerStore | ServerKind::PeerStoreTls => {
            let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
            let address = listener.local_addr()?;
            let blocks: Arc<dyn Blocks> = match config.kind {
                ServerKind::PeerStore | ServerKind::PeerStoreTls => Arc::new(Stored::fill(&config)?),
                _ => Arc::new(Memory::of(config.record_bytes)),
            };
            let server = Server::new(
                larder_peers::ServerConfig::new("server"),
                security(config.kind, &config.folder)?,
                blocks,
                Arc::default(),
                CancellationToken::new(),
            );
            runtime.spawn(server.serve(listener));
            (address, Box::new(()))
        }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}").and_then(|()| out.flush()).context("print the address")?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

fn serve_raw(config: &ServeConfig) -> anyhow::Result<SocketAddr> {
    let (record_bytes, summed) = (config.record_bytes, config.kind == ServerKind::RawSummed);
    let tls = config.kind.is_encrypted().then(|| raw_tls(&config.folder)).transpose()?.map(|(server, _)| server);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let records: Arc<Vec<Bytes>> = Arc::new((0..RECORDS).map(|record| content(record, record_bytes)).collect());
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let (records, tls) = (Arc::clone(&records), tls.clone());
            std::thread::spawn(move || {
                let Ok(mut stream) = accept(socket, tls.as_ref()) else { return };
                let mut request = [0; 4];
                while stream.read_exact(&mut request).is_ok() {
                    let record = &records[u32::from_le_bytes(request) as usize];
                    let sum = if summed { crc32c(record).to_le_bytes() } else { [0; 4] };
                    let slices = [IoSlice::new(record), IoSlice::new(&sum)];
                    let mut slices = if summed { &slices[..] } else { &slices[..1] }.to_vec();
                    if write_all(&mut *stream, &mut slices).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok(address)
}

fn write_all(stream: &mut dyn RawStream, mut slices: &mut [IoSlice<'_>]) -> std::io::Result<()> {
    while !slices.is_empty() {
        let written = stream.write_vectored(slices)?;
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

/// Whole records with the checksums that a store keeps beside them.
struct Memory(Vec<(Bytes, u32)>);

impl Memory {
    fn of(record_bytes: u32) -> Self {
        let summed = |record| {
            let bytes = content(record, record_bytes);
            let crc = crc32c(&bytes);
            (bytes, crc)
        };
        Self((0..RECORDS).map(summed).collect())
    }
}

#[async_trait::async_trait]
impl Blocks for Memory {
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError> {
        let range = request.range;
        let (bytes, crc) = self.0.get(range.block.0 as usize).ok_or(ReadError::NoSuchRange)?;
        let is_all = range.start == 0 && range.len as usize == bytes.len();
        is_all.then(|| BlockBytes::Whole { bytes: bytes.clone(), crc: *crc }).ok_or(ReadError::NoSuchRange)
    }

    fn stats(&self, _: &[AskedDataset]) -> Vec<DatasetStats> {
        Vec::new()
    }

    fn name(&self, _: CacheId) -> Option<String> {
        None
    }
}

/// Blocks in a store, read the way larderd reads them for its peers.
struct Stored {
    cache: Arc<DatasetCache>,
    buffers: Arc<Buffers>,
    record_bytes: u32,
    _store: Store,
}

impl Stored {
    fn fill(config: &ServeConfig) -> anyhow::Result<Self> {
        let folder = config.folder.join(format!("store-{}", config.record_bytes));
        let store = Store::open(StoreConfig::new(&folder), Arc::new(StoreCounters::default()))?;
        let record_bytes = config.record_bytes;
        let cache = store.dataset(CacheConfig {
            key: SnapshotId(CACHE.0).into(),
            is_known_as_ours: false,
            name: "bench".to_owned(),
            blocks: RECORDS,
            reservation_bytes: u64::from(RECORDS) * u64::from(record_bytes),
            promised: Reservation::exactly(u64::from(RECORDS) * u64::from(record_bytes)),
            policy: PolicyKind::Nr,
            seed: 1,
            block_lens: Arc::new(move |_: BlockIndex| record_bytes),
        })?;
        if !cache.wait_rebuilt(Duration::from_secs(60)) {
            bail!("the store was not ready within 60 s");
        }
        for record in 0..RECORDS {
            if let Some(reservation) = cache.admit(BlockIndex(record), record_bytes) {
                cache.write(reservation, &cache.record(BlockIndex(record), &content(record, record_bytes)))?;
            }
        }
        Ok(Self { cache, buffers: Arc::default(), record_bytes, _store: store })
    }
}

#[async_trait::async_trait]
impl Blocks for Stored {
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError> {
        let (cache, buffers, record_bytes) = (Arc::clone(&self.cache), Arc::clone(&self.buffers), self.record_bytes);
        let BlockRange { block, start, len } = request.range;
        let read = move || match cache.read_into(block, record_bytes, start, len, |len| buffers.take_filled(len)) {
            Lookup::Hit(PartBytes { memory, range, crc }) => {
                Ok(BlockBytes::Whole { bytes: buffers.lend_part(memory, range), crc })
            }
            Lookup::Miss => Err(ReadError::NoSuchRange),
        };
        tokio::task::spawn_blocking(read).await.map_err(ReadError::unavailable)?
    }

    fn stats(&self, _: &[AskedDataset]) -> Vec<DatasetStats> {
        Vec::new()
    }

    fn name(&self, _: CacheId) -> Option<String> {
        None
    }
}
