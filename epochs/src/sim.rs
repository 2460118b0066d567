//! Simulates caching policies over shuffled epochs: the share of reads that would have been hits, for any cache size
//! and number of nodes, in seconds and without a disk.
//!
//! The cast: `config` has the settings; `files` generates sizes; `replay` runs the store's own policy code
//! ([`larder_store::build_policy`]) over the orders of [`crate::order`], which the readers of `larder quickstart`
//! follow too; `belady` is the policy that knows the order; `bits` has the sets that both need; `outcome` shows the
//! result.
//!
//! Invariant: the simulation does what a mount with one reader does, block for block. It has no notion of time: several
//! concurrent readers hit the same shares, though not the same files.
//!
//! With one node and 6.25 / 31.25 / 62.5 % of the data cached, NR hits exactly that share; so does Bélády, for the
//! reason that `belady` gives, and so does `smallest`, in more files. LRU hits `c + (1 - c) ln(1 - c)` with a cache of
//! share c: 0.2 / 5.5 / 25.7 %.

mod belady;
mod bits;
mod config;
mod files;
mod outcome;
mod replay;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;

pub use config::{CacheSize, SimConfig, SimPlacement, SimPolicy};
use files::Files;
pub use files::Sizes;
use outcome::count;
pub use outcome::{SimCell, SimOutcome};
pub use replay::EpochHits;
use replay::{Cell, replay};

/// Up to this many files the cells run in parallel; with more files they run one at a time, so that memory stays
/// bounded.
const PARALLEL_FILES: u32 = 10_000_000;

/// Runs the simulation; `bar` counts the files read. Errors: nothing to simulate, or a dataset with too many blocks.
pub fn run(config: &SimConfig, bar: &ProgressBar) -> anyhow::Result<SimOutcome> {
    ensure!(config.epochs >= 2, "the first epoch only fills the cache: simulate at least 2 (--epochs)");
    let files = Files::new(config.files, config.sizes, config.seed)?;
    ensure!(files.bytes > 0, "files without bytes need no cache: give a larger size (--mean-size)");
    let mut cells = Vec::new();
    for &nodes in &config.nodes {
        for cache in &config.caches {
            for &policy in &config.policies {
                cells.push(Cell {
                    policy,
                    nodes,
                    placement: config.placement,
                    capacity_bytes: cache.bytes(files.bytes),
                    epochs: config.epochs,
                    seed: config.seed,
                });
            }
        }
    }
    if cells.is_empty() {
        bail!("nothing to simulate (--nodes, --cache, --policies)");
    }
    bar.set_length(cells.len() as u64 * u64::from(config.epochs) * u64::from(config.files));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if config.files <= PARALLEL_FILES { processors.min(cells.len()) } else { 1 };
    let found = replay_all(&cells, &files, threads, bar)?;
    let mut memory: Vec<u64> = cells.iter().map(|cell| cell.memory_bytes(&files)).collect();
    memory.sort_unstable();
    Ok(SimOutcome {
        files: files.count,
        bytes: files.bytes,
        blocks: files.blocks,
        placement: config.placement,
        seed: config.seed,
        memory_bytes: memory.iter().rev().take(threads).sum(),
        cells: cells.iter().zip(found).map(|(cell, epochs)| SimCell::new(cell, epochs, files.bytes)).collect(),
    })
}

fn replay_all(cells: &[Cell], files: &Files, threads: usize, bar: &ProgressBar) -> anyhow::Result<Vec<Vec<EpochHits>>> {
    let found: Mutex<Vec<Option<anyhow::Result<Vec<EpochHits>>>>> = Mutex::new(cells.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(at) else { return };
                    bar.set_message(format!("{} on {}", cell.policy, count(cell.nodes, "node")));
                    let epochs = replay(cell, files, &|read| bar.inc(read));
                    found.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(epochs);
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.into_iter().map(|epochs| epochs.context("a simulation ended early")?).collect()
}

#[cfg(test)]
mod tests {
    use larder_dataset::PolicyKind;

    use super::*;

    const SHARES: [f64; 3] = [0.0625, 0.3125, 0.625];

    fn simulate(nodes: u32, placement: SimPlacement, caches: &[f64], sizes: Sizes) -> SimOutcome {
        let config = SimConfig {
            files: 50_000,
            sizes,
            caches: caches.iter().map(|&share| CacheSize::Share(share)).collect(),
            epochs: 5,
            nodes: vec![nodes],
            placement,
            policies: SimPolicy::all().collect(),
            seed: 1,
        };
        run(&config, &ProgressBar::hidden()).unwrap()
    }

    fn steady(outcome: &SimOutcome, policy: &str) -> Vec<f64> {
        outcome.cells.iter().filter(|cell| cell.policy == policy).map(|cell| cell.steady_bytes).collect()
    }

    fn close(found: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= tolerance, "{found} instead of {expected}");
        }
    }

    #[test]
    fn the_hit_ratio_of_one_node_matches_theory() {
        let outcome = simulate(1, SimPlacement::Local, &SHARES, Sizes::Equal(111_000));
        close(&steady(&outcome, "nr"), &SHARES, 1e-9);
        let lru = SHARES.map(|share| share + (1.0 - share) * (1.0 - share).ln());
        close(&steady(&outcome, "lru"), &lru, 0.004);
    }

    #[test]
    fn unequal_sizes_change_the_hit_ratio_of_nr_by_less_than_a_file() {
        let outcome = simulate(1, SimPlacement::Local, &SHARES, Sizes::Mean(111_000));
        close(&steady(&outcome, "nr"), &SHARES, 5e6 / outcome.bytes as f64);
    }

    // SEMANTICS: C1
    #[test]
    fn the_smallest_files_hit_the_same_bytes_in_more_files() {
        for (nodes, placement) in [(1_u32, SimPlacement::Local), (4, SimPlacement::Partitioned)] {
            let shares = SHARES.map(|share| share / f64::from(nodes));
            let outcome = simulate(nodes, placement, &shares, Sizes::Mean(111_000));
            close(&steady(&outcome, "smallest"), &steady(&outcome, "nr"), 0.003);
            close(&steady(&outcome, "smallest"), &SHARES, 0.003);
            let missed = |policy: &str| -> Vec<f64> {
                let cells = outcome.cells.iter().filter(|cell| cell.policy == policy);
                cells.map(|cell| 1.0 - cell.steady_files).collect()
            };
            let (smallest, nr) = (missed("smallest"), missed("nr"));
            close(&nr, &SHARES.map(|share| 1.0 - share), 0.02);
            // GETs an epoch for each file.
            assert!((0.35..=0.42).contains(&smallest[1]), "{smallest:?}");
            assert!(smallest.iter().zip(&nr).all(|(smallest, nr)| smallest < nr), "{smallest:?} {nr:?}");
        }
    }

    #[test]
    fn files_of_one_size_hit_alike_whichever_are_kept() {
        let outcome = simulate(1, SimPlacement::Local, &SHARES, Sizes::Equal(111_000));
        assert_eq!(steady(&outcome, "smallest"), steady(&outcome, "nr"));
    }

    #[test]
    fn partitioned_caches_add_up_and_local_caches_do_not() {
        let shares = [0.0625, 0.2];
        let owned = simulate(4, SimPlacement::Partitioned, &shares, Sizes::Equal(1000));
        close(&steady(&owned, "nr"), &[0.25, 0.8], 0.001);
        let local = simulate(4, SimPlacement::Local, &shares, Sizes::Equal(1000));
        close(&steady(&local, "nr"), &shares, 0.004);
    }

    #[test]
    fn belady_gains_only_where_shards_change() {
        let shares = [0.0625, 0.2];
        for (nodes, placement) in
            [(1, SimPlacement::Local), (1, SimPlacement::Partitioned), (4, SimPlacement::Partitioned)]
        {
            let outcome = simulate(nodes, placement, &shares, Sizes::Equal(1000));
            close(&steady(&outcome, "belady"), &steady(&outcome, "nr"), 1e-9);
        }
        let outcome = simulate(4, SimPlacement::Local, &shares, Sizes::Equal(1000));
        let (belady, nr) = (steady(&outcome, "belady"), steady(&outcome, "nr"));
        assert!(belady.iter().zip(&nr).all(|(belady, nr)| *belady > nr + 0.1), "{belady:?} {nr:?}");
    }

    #[test]
    fn a_cache_of_everything_misses_in_the_first_epoch_only() {
        for placement in [SimPlacement::Local, SimPlacement::Partitioned] {
            let outcome = simulate(1, placement, &[1.0], Sizes::Mean(50_000));
            for cell in &outcome.cells {
                let hits: Vec<f64> = cell.epochs.iter().map(|epoch| epoch.hit_ratio_files).collect();
                assert_eq!(hits, [0.0, 1.0, 1.0, 1.0, 1.0], "{}", cell.policy);
            }
        }
    }

    #[test]
    fn the_table_and_the_plot_name_every_policy_and_size() {
        let config = SimConfig {
            files: 1000,
            sizes: Sizes::Equal(1_000_000),
            caches: vec![CacheSize::Share(0.25), CacheSize::Bytes(500_000_000)],
            epochs: 2,
            nodes: vec![1, 2],
            placement: SimPlacement::Local,
            policies: vec![SimPolicy::Store(PolicyKind::Nr), SimPolicy::Belady],
            seed: 3,
        };
        let outcome = run(&config, &ProgressBar::hidden()).unwrap();
        let table = outcome.table();
        assert!(table.contains("1 node, each with a cache of 25.00 % (238.4 MiB)"), "{table}");
        assert!(table.contains("2 nodes, each with a cache of 50.00 % (476.8 MiB)"), "{table}");
        assert!(table.contains("nr         0.00    25.00          25.00     25.00"), "{table}");
        let names: Vec<String> = outcome.plot().lines.into_iter().map(|line| line.name).collect();
        assert_eq!(names, ["nr, 1 node", "belady, 1 node", "nr, 2 nodes", "belady, 2 nodes"]);
    }
}
