//! `larder stats`

mod cluster;
mod history;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use larder_cachenode::Stats;
use larder_daemon_api::mountinfo::larder_mounts;

use crate::args::StatsArgs;
use crate::mount_stats::{PATIENCE, is_foreign, read, read_all};
use crate::output;
use table::{overview, table};

pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    if args.history {
        return history::run(args.json);
    }
    let dirs: Vec<PathBuf> = match &args.dir {
        Some(dir) => vec![dir.clone()],
        None => larder_mounts().into_iter().map(|mount| mount.path).collect(),
    };
    if dirs.is_empty() {
        output::note(format_args!("no dataset is mounted: mount one with `larder mount SRC DIR`"));
        return Ok(ExitCode::SUCCESS);
    }
    if args.dir.is_none() && !args.json && !args.cluster && !args.watch {
        let all: Vec<_> = dirs.iter().map(PathBuf::as_path).zip(read_all(&dirs, PATIENCE)).collect();
        output::text(&overview(&all))?;
        let errors = all.iter().filter_map(|(_, stats)| stats.as_ref().err());
        let dead: Vec<_> = errors.filter(|error| !is_foreign(error)).collect();
        dead.iter().for_each(|error| output::error(error));
        return Ok(if dead.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
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
