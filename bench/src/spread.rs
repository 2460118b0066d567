//! One large file, such as a model, that several nodes with a shared cache read at once, beside one node: what the
//! origin sends, and how long the slowest node takes.
//!
//! The cast: [`run`] takes one node and several in turns; `node` is a `larderd` with a mount; `outcome` has the figures
//! and their table.
//!
//! Invariants: every node begins with an empty cache, and every byte is checked. The nodes share this machine's cores,
//! so the figures mean something only where the origin's rate is the limit.

mod node;
mod outcome;

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use larder_dataset::crc32c_append;
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::tree::MadeFile;
use larder_s3_server::{Distance, S3Server};

use crate::peers_net::write_certificates;
use crate::side_by_side::{Progress, Scratch};
use crate::systems::{Corpus, CorpusOptions, Stop, child};
use node::Node;
pub use outcome::{SpreadConfig, SpreadOutcome, SpreadRow};

/// Bytes of one read.
const BUFFER_BYTES: usize = 1 << 20;

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &SpreadConfig, progress: &dyn Progress) -> anyhow::Result<SpreadOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "spread-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let counts = [1, config.nodes];
    progress.steps(counts.len() as u64 * u64::from(config.rounds));
    progress.doing("making the file");
    let options = CorpusOptions {
        sizes: vec![config.size],
        seed: config.seed,
        folder: folder.clone(),
        distance: Distance {
            delay: Duration::from_millis(config.origin_delay_ms),
            bytes_per_second: Some(config.origin_bytes_per_second),
            ..Distance::default()
        },
    };
    let (corpus, server) = Corpus::make(&options, runtime.handle(), &stop, |_, _| {})?;
    write_certificates(&corpus.folder_of("certificates")?)?;
    let mut outcome = SpreadOutcome { config: config.clone(), rows: Vec::new() };
    for round in 0..config.rounds {
        for nodes in counts {
            stop.check()?;
            progress.doing(&format!("{nodes} nodes"));
            let home = corpus.folder_of(&format!("nodes-{nodes}"))?;
            let row = measure(config, &corpus, &server, &home, nodes, round)?;
            progress.measured(&format!("round {}: {row}", round + 1));
            outcome.rows.push(row);
            std::fs::remove_dir_all(&home).with_context(|| format!("remove {}", home.display()))?;
        }
    }
    runtime.block_on(server.shutdown());
    Ok(outcome)
}

/// Reads the file on this many new nodes in `home` at once.
fn measure(
    config: &SpreadConfig,
    corpus: &Corpus,
    server: &S3Server,
    home: &Path,
    nodes: u32,
    round: u32,
) -> anyhow::Result<SpreadRow> {
    let file = corpus.files.first().context("a dataset without files")?;
    // The ports were free a moment ago; a larderd whose port was taken since fails.
    let listeners: Vec<TcpListener> =
        (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().context("find free ports")?;
    let addresses =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>().context("find free ports")?;
    drop(listeners);
    let mut running = Vec::new();
    for number in 0..addresses.len() {
        running.push(Node::start(config, corpus, home, &addresses, number)?);
    }
    let mounts = running.iter().map(|node| node.mount(config, corpus)).collect::<anyhow::Result<Vec<_>>>()?;
    drop_kernel_caches()?;
    server.reset_counters();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let readers: Vec<_> = mounts.iter().map(|mount| scope.spawn(move || read(mount, file, &corpus.stop))).collect();
        // Collected first, so that no reader is left when an error returns.
        let read: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        read.into_iter().try_for_each(|read| read.unwrap_or_else(|_| Err(anyhow::anyhow!("a reader panicked"))))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(SpreadRow { nodes, round, bytes: file.size, seconds, origin_bytes: server.counters().get_bytes })
}

/// Reads the whole file in order, and checks it.
fn read(mount: &Path, file: &MadeFile, stop: &Stop) -> anyhow::Result<()> {
    let path = mount.join(&file.path);
    let mut opened = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let (mut buffer, mut bytes, mut crc) = (vec![0; BUFFER_BYTES], 0, 0);
    loop {
        stop.check()?;
        let read = opened.read(&mut buffer).with_context(|| format!("read {}", path.display()))?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        crc = crc32c_append(crc, &buffer[..read]);
    }
    ensure!((bytes, crc) == (file.size, file.crc32c), "WRONG BYTES: {}", path.display());
    Ok(())
}
