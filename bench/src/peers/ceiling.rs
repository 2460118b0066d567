//! The ceiling of S3: the same objects, by Larder's own client, without any filesystem.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use larder_origin::{Env, OriginConfig, OriginUrl};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::task::JoinSet;

use crate::epochs::Epoch;
use crate::systems::Source;
use crate::systems::child::own_cpu_seconds;
use crate::tree::MadeFile;

/// GETs the first `files` objects in the order of this seed, `readers` at a time, and checks them.
pub(super) async fn read_all(source: &Source, files: u32, readers: u32, seed: u64) -> anyhow::Result<Epoch> {
    let url: OriginUrl = format!("s3://{}/{}", source.bucket, source.prefix).parse()?;
    let env: Env = source.aws_variables().into_iter().collect();
    let config = OriginConfig {
        endpoint: Some(source.endpoint.clone()),
        concurrency: readers as usize,
        env,
        ..OriginConfig::default()
    };
    let origin = larder_origin::open(&url, &config)?;
    let mut order: Vec<MadeFile> = source.files.clone();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    order.truncate(files as usize);
    let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));

    let (started, cpu_before) = (Instant::now(), own_cpu_seconds());
    let mut tasks = JoinSet::new();
    for _ in 0..readers {
        let (origin, order, next) = (Arc::clone(&origin), Arc::clone(&order), Arc::clone(&next));
        tasks.spawn(async move {
            let (mut times, mut bytes) = (Vec::new(), 0);
            while let Some(file) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let key = file.path.display().to_string();
                let began = Instant::now();
                let body = origin.read(key.as_bytes(), 0..file.size, None).await?;
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
