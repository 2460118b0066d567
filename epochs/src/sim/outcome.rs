//! The result of a simulation, as a table and a plot.

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
    /// Bytes of each node's cache.
    pub cache_bytes: u64,
    /// The cache of a node as a share of the dataset.
    pub cache_share: f64,
    /// The epochs.
    pub epochs: Vec<EpochHits>,
    /// Mean of the epochs after the first, by bytes.
    pub steady_bytes: f64,
    /// Mean of the epochs after the first, by files.
    pub steady_files: f64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Serialize)]
pub struct SimOutcome {
    /// Files of the dataset.
    pub files: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Their blocks.
    pub blocks: u32,
    /// How the dataset was spread over the caches.
    pub placement: SimPlacement,
    /// The seed.
    pub seed: u64,
    /// The largest amount of memory that the simulation used at once, by calculation.
    pub memory_bytes: u64,
    /// Every policy with every cache size and number of nodes, nodes first, then sizes.
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
