//! The result of a simulation, as a table and a plot.

use larder_dataset::size::show_bytes;
use serde::Serialize;

use super::config::SimPlacement;
use super::replay::{Cell, EpochHits};
use crate::plot::{Line, Plot};
use crate::table::figures_table;

/// The result of one policy with one cache size and number of nodes.
#[derive(Clone, Debug, Serialize)]
pub struct SimCell {
    /// The policy.
    pub policy: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Size of each node's cache.
    pub cache_bytes: u64,
    /// Size of a node's cache as a share of the dataset.
    pub cache_share: f64,
    /// The epochs.
    pub epochs: Vec<EpochHits>,
    /// Mean hit ratio of the epochs after the first, by bytes.
    pub steady_bytes: f64,
    /// Mean hit ratio of the epochs after the first, by files.
    pub steady_files: f64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Serialize)]
pub struct SimOutcome {
    /// Number of files in the dataset.
    pub files: u32,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of blocks of all files.
    pub blocks: u32,
    /// How the dataset was spread over the caches.
    pub placement: SimPlacement,
    /// The seed.
    pub seed: u64,
    /// The calculated peak of the simulation's memory.
    pub memory_bytes: u64,
    /// One cell per number of nodes, cache size and policy, sorted in this order.
    pub cells: Vec<SimCell>,
}

impl SimCell {
    pub(super) fn new(cell: &Cell, epochs: Vec<EpochHits>, dataset_bytes: u64) -> Self {
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
pub(super) fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl SimOutcome {
    /// The cells, grouped by number of nodes and cache size, in the order of the settings.
    fn groups(&self) -> impl Iterator<Item = &[SimCell]> {
        self.cells.chunk_by(|a, b| (a.nodes, a.cache_bytes) == (b.nodes, b.cache_bytes))
    }

    /// Hit ratios: a block of lines for each number of nodes and cache size.
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let placement = match self.placement {
            SimPlacement::Local => "each node caches what it reads",
            SimPlacement::Partitioned => "each block has one owner",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Hit ratio in percent of the bytes, simulated: {} files, {}; {placement}",
            self.files,
            show_bytes(self.bytes)
        );
        for group in self.groups() {
            let [first, ..] = group else { continue };
            let _ = writeln!(
                text,
                "\n{}, each with a cache of {:.2} % ({})",
                count(first.nodes, "node"),
                first.cache_share * 100.0,
                show_bytes(first.cache_bytes)
            );
            let epochs = (1..=first.epochs.len()).map(|number| format!("epoch {number}"));
            let head = std::iter::once("policy".to_owned()).chain(epochs);
            let mut rows = vec![head.chain(["after the 1st", "by files"].map(str::to_owned)).collect::<Vec<_>>()];
            for cell in group {
                let ratios = cell.epochs.iter().map(|epoch| epoch.hit_ratio_bytes);
                let ratios = ratios.chain([cell.steady_bytes, cell.steady_files]);
                let percents = ratios.map(|ratio| format!("{:.2}", ratio * 100.0));
                rows.push(std::iter::once(cell.policy.clone()).chain(percents).collect());
            }
            text += &figures_table(&rows);
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
