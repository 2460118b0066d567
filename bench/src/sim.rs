//! Simulates caching policies over shuffled epochs: which part of the reads would have been hits, for any cache size and
//! number of nodes, in seconds and without a disk.
//!
//! The cast: `files` makes sizes up; `replay` runs the store's own policy code ([`larder_store::PolicyKind::build`]) over
//! the orders of [`crate::order`], which are those that the readers of `larder quickstart` follow; `belady` is the policy
//! that knows the plan; `bits` are the sets they need.
//!
//! Invariant: what is simulated is what a mount with one reader does, block for block. It knows nothing of time: several
//! readers at once see the same shares, not the same files.
//!
//! With one node and 6.25 / 31.25 / 62.5 % of the data cached, NR hits just that; so does Bélády, as `belady` explains;
//! LRU hits `c + (1 - c) ln(1 - c)` of a cache of share c: 0.2 / 5.5 / 25.7 %.

mod belady;
mod bits;
mod files;
mod replay;

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use larder_store::PolicyKind;
use serde::Serialize;

use crate::plot::{Line, Plot};
use files::Files;
pub use files::Sizes;
pub use replay::EpochHits;
use replay::{Cell, replay};

/// With at most this many files the cells run in parallel; beyond, one at a time, so that memory stays bounded.
const PARALLEL_FILES: u32 = 10_000_000;

/// A policy that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimPolicy {
    /// One of the store's.
    Store(PolicyKind),
    /// What is used soonest stays, by the plan of this epoch and the next.
    Belady,
}

impl SimPolicy {
    /// All of them, in the order in which they are shown.
    pub fn all() -> impl Iterator<Item = Self> {
        PolicyKind::ALL.into_iter().map(Self::Store).chain([Self::Belady])
    }
}

impl std::fmt::Display for SimPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(kind) => kind.fmt(f),
            Self::Belady => f.pad("belady"),
        }
    }
}

impl FromStr for SimPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::all()
            .find(|policy| policy.to_string() == name)
            .ok_or_else(|| format!("no such policy: {name:?} (one of nr, lru, fifo, random, belady)"))
    }
}

/// How large a node's cache is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// A share of the dataset, 1 being all of it.
    Share(f64),
    /// Bytes.
    Bytes(u64),
}

impl CacheSize {
    /// Bytes of a cache for a dataset of so many, as a reservation is made of a share.
    pub fn bytes(self, dataset_bytes: u64) -> u64 {
        match self {
            Self::Share(share) => (dataset_bytes as f64 * share).ceil() as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Which node's cache holds what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Each node caches what it reads: a share of each epoch's shuffle, dealt out anew.
    Local,
    /// Each block has one owner, whose cache all nodes read it through.
    Partitioned,
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Files of the dataset.
    pub files: u32,
    /// Their sizes.
    pub sizes: Sizes,
    /// Cache sizes, of each node.
    pub caches: Vec<CacheSize>,
    /// Epochs; at least 2.
    pub epochs: u32,
    /// Numbers of nodes.
    pub nodes: Vec<u32>,
    /// Which node's cache holds what.
    pub placement: Placement,
    /// The policies.
    pub policies: Vec<SimPolicy>,
    /// Seed of sizes, shuffles and the random policy.
    pub seed: u64,
}

/// What one policy with one cache size and number of nodes came to.
#[derive(Clone, Debug, Serialize)]
pub struct SimCell {
    /// The policy.
    pub policy: String,
    /// Nodes that read.
    pub nodes: u32,
    /// Bytes of each node's cache.
    pub cache_bytes: u64,
    /// The same as a share of the dataset.
    pub cache_share: f64,
    /// Each epoch.
    pub epochs: Vec<EpochHits>,
    /// Mean of the epochs after the first, by bytes.
    pub steady_bytes: f64,
    /// Mean of the epochs after the first, by files.
    pub steady_files: f64,
}

/// What the simulation found.
#[derive(Clone, Debug, Serialize)]
pub struct SimOutcome {
    /// Files of the dataset.
    pub files: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Their blocks.
    pub blocks: u32,
    /// Which node's cache held what.
    pub placement: Placement,
    /// The seed.
    pub seed: u64,
    /// The most memory that the simulation took at once, by calculation.
    pub memory_bytes: u64,
    /// Every policy with every cache size and number of nodes, nodes first, then sizes.
    pub cells: Vec<SimCell>,
}

/// Simulates all of it; `bar` counts files read. Errors: nothing to simulate, or a dataset of too many blocks.
pub fn run(config: &SimConfig, bar: &ProgressBar) -> anyhow::Result<SimOutcome> {
    ensure!(config.epochs >= 2, "one epoch fills the cache: at least 2 are needed (--epochs)");
    let files = Files::new(config.files, config.sizes, config.seed)?;
    ensure!(files.bytes > 0, "files of no bytes need no cache (--mean-size)");
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

impl SimCell {
    fn new(cell: &Cell, epochs: Vec<EpochHits>, dataset_bytes: u64) -> Self {
        let steady = |figure: fn(&EpochHits) -> f64| {
            let after = &epochs[1..];
            after.iter().map(figure).sum::<f64>() / after.len() as f64
        };
        Self {
            policy: cell.policy.to_string(),
            nodes: cell.nodes,
            cache_bytes: cell.capacity_bytes,
            cache_share: cell.capacity_bytes as f64 / dataset_bytes as f64,
            steady_bytes: steady(|epoch| epoch.hit_ratio_bytes),
            steady_files: steady(|epoch| epoch.hit_ratio_files),
            epochs,
        }
    }
}

/// "1 node", "4 nodes".
fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl SimOutcome {
    /// Cells of one number of nodes and cache size, in the order in which they were asked for.
    fn groups(&self) -> impl Iterator<Item = &[SimCell]> {
        self.cells.chunk_by(|a, b| (a.nodes, a.cache_bytes) == (b.nodes, b.cache_bytes))
    }

    /// Hit ratios, a block of lines for each number of nodes and cache size.
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let placement = match self.placement {
            Placement::Local => "each node caches what it reads",
            Placement::Partitioned => "each block has one owner",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Hit ratio in percent of the bytes, simulated: {} files, {:.1} GB; {placement}",
            self.files,
            self.bytes as f64 / 1e9
        );
        for group in self.groups() {
            let [first, ..] = group else { continue };
            let _ = writeln!(
                text,
                "\n{}, each with a cache of {:.2} % ({:.1} GB)",
                count(first.nodes, "node"),
                first.cache_share * 100.0,
                first.cache_bytes as f64 / 1e9
            );
            let _ = write!(text, "{:<8}", "policy");
            for number in 1..=first.epochs.len() {
                let _ = write!(text, "{:>9}", format!("epoch {number}"));
            }
            let _ = writeln!(text, "{:>16}{:>10}", "after the 1st", "by files");
            for cell in group {
                let _ = write!(text, "{:<8}", cell.policy);
                for epoch in &cell.epochs {
                    let _ = write!(text, "{:>9.2}", epoch.hit_ratio_bytes * 100.0);
                }
                let _ = writeln!(text, "{:>16.2}{:>10.2}", cell.steady_bytes * 100.0, cell.steady_files * 100.0);
            }
        }
        text
    }

    /// Hit ratio over cache size, a line for each policy and number of nodes.
    pub fn plot(&self) -> Plot {
        let mut lines: Vec<Line> = Vec::new();
        let many = self.cells.iter().any(|cell| cell.nodes != self.cells[0].nodes);
        for cell in &self.cells {
            let name =
                if many { format!("{}, {}", cell.policy, count(cell.nodes, "node")) } else { cell.policy.clone() };
            let point = (cell.cache_share * 100.0, cell.steady_bytes * 100.0);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, points: vec![point], is_reference: false }),
            }
        }
        Plot {
            title: format!("Hit ratio of a shuffled epoch, {} files, simulated", self.files),
            x: "cache of a node, % of the dataset".to_owned(),
            y: "hits, % of the bytes".to_owned(),
            lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [f64; 3] = [0.0625, 0.3125, 0.625];

    fn simulate(nodes: u32, placement: Placement, caches: &[f64], sizes: Sizes) -> SimOutcome {
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
    fn one_node_hits_what_theory_says() {
        let outcome = simulate(1, Placement::Local, &SHARES, Sizes::Equal(111_000));
        close(&steady(&outcome, "nr"), &SHARES, 1e-9);
        let lru = SHARES.map(|share| share + (1.0 - share) * (1.0 - share).ln());
        close(&steady(&outcome, "lru"), &lru, 0.004);
    }

    #[test]
    fn sizes_that_differ_change_nr_by_less_than_a_file() {
        let outcome = simulate(1, Placement::Local, &SHARES, Sizes::Mean(111_000));
        close(&steady(&outcome, "nr"), &SHARES, 5e6 / outcome.bytes as f64);
    }

    #[test]
    fn owners_add_up_their_caches_and_nodes_of_their_own_do_not() {
        let shares = [0.0625, 0.2];
        let owned = simulate(4, Placement::Partitioned, &shares, Sizes::Equal(1000));
        close(&steady(&owned, "nr"), &[0.25, 0.8], 0.001);
        let local = simulate(4, Placement::Local, &shares, Sizes::Equal(1000));
        close(&steady(&local, "nr"), &shares, 0.004);
    }

    #[test]
    fn a_plan_gains_where_shards_change_and_nowhere_else() {
        let shares = [0.0625, 0.2];
        for (nodes, placement) in [(1, Placement::Local), (1, Placement::Partitioned), (4, Placement::Partitioned)] {
            let outcome = simulate(nodes, placement, &shares, Sizes::Equal(1000));
            close(&steady(&outcome, "belady"), &steady(&outcome, "nr"), 1e-9);
        }
        let outcome = simulate(4, Placement::Local, &shares, Sizes::Equal(1000));
        let (belady, nr) = (steady(&outcome, "belady"), steady(&outcome, "nr"));
        assert!(belady.iter().zip(&nr).all(|(belady, nr)| *belady > nr + 0.1), "{belady:?} {nr:?}");
    }

    #[test]
    fn a_cache_of_everything_misses_in_the_first_epoch_only() {
        for placement in [Placement::Local, Placement::Partitioned] {
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
            placement: Placement::Local,
            policies: vec![SimPolicy::Store(PolicyKind::Nr), SimPolicy::Belady],
            seed: 3,
        };
        let outcome = run(&config, &ProgressBar::hidden()).unwrap();
        let table = outcome.table();
        assert!(table.contains("1 node, each with a cache of 25.00 % (0.2 GB)"), "{table}");
        assert!(table.contains("2 nodes, each with a cache of 50.00 % (0.5 GB)"), "{table}");
        assert!(table.contains("nr           0.00    25.00           25.00     25.00"), "{table}");
        let names: Vec<String> = outcome.plot().lines.into_iter().map(|line| line.name).collect();
        assert_eq!(names, ["nr, 1 node", "belady, 1 node", "nr, 2 nodes", "belady, 2 nodes"]);
    }

    #[test]
    fn policies_have_names() {
        for policy in SimPolicy::all() {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("mru".parse::<SimPolicy>().unwrap_err().contains("belady"));
    }
}
