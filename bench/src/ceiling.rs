//! The ceiling of S3: the same objects, read and copied without any filesystem by the `object_store` crate, which most
//! Rust programs use for S3.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::task::JoinSet;

use crate::systems::Corpus;
use larder_epochs::epochs::Epoch;
use larder_epochs::process::own_cpu_seconds;
use larder_epochs::tree::MadeFile;

fn client(corpus: &Corpus) -> anyhow::Result<Arc<AmazonS3>> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in corpus.aws_variables() {
        builder = builder.with_config(name.to_ascii_lowercase().parse()?, value);
    }
    let builder = builder.with_endpoint(&corpus.endpoint).with_bucket_name(&corpus.bucket).with_allow_http(true);
    Ok(Arc::new(builder.build()?))
}

/// GETs the first object in ranges of this size, `gets` at a time, in order. Each range counts as a file.
pub(crate) async fn read_ranges(corpus: &Corpus, range_bytes: u64, gets: u32) -> anyhow::Result<Epoch> {
    let store = client(corpus).context("set up object_store")?;
    let file = corpus.files.first().context("a dataset without files")?;
    let key = Path::parse(format!("{}/{}", corpus.prefix, file.path.display()))?;
    let ranges: Vec<Range<u64>> =
        (0..file.size).step_by(range_bytes as usize).map(|at| at..file.size.min(at + range_bytes)).collect();
    let (started, cpu_before) = (Instant::now(), own_cpu_seconds());
    let reads = futures::stream::iter(ranges).map(|range| {
        let (store, key) = (&store, &key);
        async move {
            let began = Instant::now();
            let body = store.get_range(key, range.clone()).await?;
            ensure!(body.len() as u64 == range.end - range.start, "WRONG LENGTH: {key} {range:?}");
            anyhow::Ok(began.elapsed())
        }
    });
    let times: Vec<Duration> = reads.buffer_unordered(gets as usize).try_collect().await?;
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    Ok(Epoch::new(times, file.size, seconds, cpu_seconds))
}

/// GETs the first `files` objects in the order of this seed, `readers` at a time, and checks them.
pub(crate) async fn read_all(corpus: &Corpus, files: u32, readers: u32, seed: u64) -> anyhow::Result<Epoch> {
    let store = client(corpus).context("set up object_store")?;
    let mut order: Vec<MadeFile> = corpus.files.clone();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    order.truncate(files as usize);
    let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));

    let (started, cpu_before) = (Instant::now(), own_cpu_seconds());
    let mut tasks = JoinSet::new();
    for _ in 0..readers {
        let (store, order, next) = (Arc::clone(&store), Arc::clone(&order), Arc::clone(&next));
        let prefix = corpus.prefix.clone();
        tasks.spawn(async move {
            let (mut times, mut bytes) = (Vec::new(), 0);
            while let Some(file) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let key = Path::parse(format!("{prefix}/{}", file.path.display()))?;
                let began = Instant::now();
                let body = store.get(&key).await?.bytes().await?;
                if body.len() as u64 != file.size || larder_dataset::crc32c(&body) != file.crc32c {
                    bail!("WRONG BYTES: {key}");
                }
                times.push(began.elapsed());
                bytes += file.size;
            }
            Ok((times, bytes))
        });
    }
    let (mut times, mut bytes) = (Vec::new(), 0);
    while let Some(task) = tasks.join_next().await {
        let (took, read) = task.context("a task of the client failed")??;
        times.extend(took);
        bytes += read;
    }
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    Ok(Epoch::new(times, bytes, seconds, cpu_seconds))
}

/// Copies all objects to the server and the prefix of `to`, `copies` at a time, without checks. Returns the seconds
/// that this took.
pub(crate) async fn copy_all(corpus: &Corpus, to: &Corpus, copies: u32) -> anyhow::Result<f64> {
    let (source, mirror) = (client(corpus).context("set up object_store")?, client(to).context("set up object_store")?);
    let files: Vec<String> = corpus.files.iter().map(|file| file.path.display().to_string()).collect();
    let (files, next) = (Arc::new(files), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..copies {
        let (source, mirror) = (Arc::clone(&source), Arc::clone(&mirror));
        let (files, next) = (Arc::clone(&files), Arc::clone(&next));
        let (from_prefix, to_prefix) = (corpus.prefix.clone(), to.prefix.clone());
        tasks.spawn(async move {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let body = source.get(&Path::parse(format!("{from_prefix}/{file}"))?).await?.bytes().await?;
                mirror.put(&Path::parse(format!("{to_prefix}/{file}"))?, body.into()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a task of the client failed")??;
    }
    Ok(started.elapsed().as_secs_f64())
}
