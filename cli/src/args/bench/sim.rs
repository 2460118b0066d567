//! The flags of `larder bench sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use larder_dataset::size::parse_bytes;
use larder_epochs::sim::{CacheSize, SimPolicy};

/// How the dataset is distributed over the nodes' caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementFlag {
    /// Each node caches the files that it reads, a different share of the dataset each epoch.
    Local,
    /// Each block has one owner, and all nodes read it through the owner's cache.
    Partitioned,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench sim                                          all policies, with a million files
  larder bench sim --files 14197122 --cache 200GiB --nodes 1,8 --placement partitioned
  larder bench sim --files 100000000 --policies nr --cache 31.25% --nodes 1
  larder bench sim --equal-sizes --epochs 10 --json sim.json --plot sim.svg

The simulation runs the store's policies over the order of each epoch and reads no data. belady is \
the optimum: it knows the order of this epoch and the next. Up to ten million files the simulation \
uses all processors. Above that it uses one processor and, per file, 4 bytes of memory for nr, 12 \
for belady and 16 for the other policies; each further node adds 12 bytes (none for nr and belady).")]
pub(crate) struct SimArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) files: u32,
    /// Mean file size. Sizes are between 16 KB and 5 MB, and repeat after a million files.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Use the mean size for every file.
    #[arg(long)]
    pub(crate) equal_sizes: bool,
    /// Cache sizes of a node, as percentages of the dataset or in bytes.
    #[arg(
        long,
        value_name = "SIZE|%",
        value_delimiter = ',',
        default_value = "6.25%,31.25%,62.5%,100%",
        value_parser = parse_cache_size
    )]
    pub(crate) cache: Vec<CacheSize>,
    /// Number of epochs; the first one fills the cache.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(crate) epochs: u32,
    /// Numbers of nodes that share the work of each epoch.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) nodes: Vec<u32>,
    /// How the dataset is distributed over the nodes' caches.
    #[arg(long, value_enum, default_value_t = PlacementFlag::Local)]
    pub(crate) placement: PlacementFlag,
    /// Policies: nr, smallest, lru, fifo, random, belady.
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "nr,smallest,lru,fifo,random,belady")]
    pub(crate) policies: Vec<SimPolicy>,
    /// Seed of the file sizes, the shuffles and the random policy.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A share ("31.25%", more than 0, at most 100 %) or bytes ("100GiB").
fn parse_cache_size(text: &str) -> Result<CacheSize, String> {
    let Some(percent) = text.strip_suffix('%') else { return parse_bytes(text).map(CacheSize::Bytes) };
    match percent.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(CacheSize::Share(percent / 100.0)),
        _ => Err("give a share above 0 % and up to 100 %, such as 31.25%, or bytes, such as 100GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_are_percentages_or_bytes() {
        assert_eq!(parse_cache_size("31.25%"), Ok(CacheSize::Share(0.3125)));
        assert_eq!(parse_cache_size("100 %"), Ok(CacheSize::Share(1.0)));
        assert_eq!(parse_cache_size("2MiB"), Ok(CacheSize::Bytes(2 << 20)));
        for wrong in ["0%", "-5%", "101%", "NaN%", "%", "", "x", "5 percent"] {
            parse_cache_size(wrong).unwrap_err();
        }
    }
}
