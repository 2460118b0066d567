//! `larder stats`

mod cluster;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use larder_cachenode::Stats;
use larder_daemon_api::mountinfo::larder_mounts;

use crate::args::StatsArgs;
use crate::mount_stats::read;
use crate::output;
use table::table;

pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let dirs: Vec<PathBuf> = match &args.dir {
        Some(dir) => vec![dir.clone()],
        None => larder_mounts().into_iter().map(|mount| mount.path).collect(),
    };
    if dirs.is_empty() {
        bail!("no dataset is mounted: mount one with `larder mount SRC DIR`");
    }
    if args.cluster {
        return cluster::run(&dirs, args.json);
    }
    let mut before: Vec<Option<Stats>> = vec![None; dirs.len()];
    loop {
        let mut failed = false;
        for (dir, before) in dirs.iter().zip(&mut before) {
            match read(dir) {
                Ok(stats) if args.json => {
                    output::json(&serde_json::json!({"mount": dir, "stats": stats}))?;
                }
                Ok(stats) => {
                    output::text(&table(dir, &stats, before.as_ref()))?;
                    *before = Some(stats);
                }
                // One dead mount must not hide the others.
                Err(error) => {
                    failed = true;
                    output::error(&error);
                }
            }
        }
        if !args.watch {
            return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
