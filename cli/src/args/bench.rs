//! The flags of `larder bench`, one struct a benchmark.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use larder_bench::peers_net::Kind;
use larder_bench::sim::{CacheSize, SimPolicy};
use larder_daemon_api::size::parse_bytes;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Read all files of a folder, in a new order each epoch, and time it.
    Epochs(EpochsArgs),
    /// Measure Larder and every peer filesystem that is installed, side by side, over an embedded S3 (as root).
    Peers(PeersArgs),
    /// Simulate caching policies over shuffled epochs: hit ratios for any size of dataset, cache and cluster.
    Sim(SimArgs),
    /// Walk trees and look files up, through Larder and every peer that is installed (as root).
    Meta(MetaArgs),
    /// Run fio over Larder and every peer that is installed (as root).
    Fio(FioArgs),
    /// Measure reads from another node's cache, beside raw TCP and the origin, over loopback.
    PeersNet(PeersNetArgs),
}

/// What is dropped before each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drop {
    /// Nothing: later epochs come from the kernel's page cache.
    None,
    /// The pages of each file once it is read, so that every epoch comes from the cache disk or the origin.
    Pages,
    /// All the kernel's caches (as root).
    All,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench epochs /data/train --epochs 3 --readers 16
  larder bench epochs /data/train --drop pages --plot epochs.svg --json epochs.json")]
pub(crate) struct EpochsArgs {
    /// A mount, or any other folder to compare with.
    pub(crate) dir: PathBuf,
    /// Epochs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) epochs: u32,
    /// Reader threads.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// What to drop before each epoch.
    #[arg(long, value_enum, default_value_t = Drop::None)]
    pub(crate) drop: Drop,
    /// Read only the first N of each epoch's order.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Read the files that this list names instead of those found in DIR, and check them against it: SIZE CRC32C PATH in
    /// each line.
    #[arg(long, value_name = "FILE")]
    pub(crate) expect: Option<PathBuf>,
    /// Seed of the shuffles.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Where to draw a plot.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench peers                                        about an hour; bench/install-peers gets the peers
  larder bench peers --files 2000 --rounds 1                a quick look
  larder bench peers --only ext4,larder,juicefs --json peers.json --plot peers.svg

All systems serve the same files from the same S3 server, which is part of this process, and are read by the same reader
with 1, 4 and 16 threads: cold, out of the local cache, and once more. Peers are looked for on PATH and in the folder of
bench/install-peers. Nothing is left behind: mounts are seen by this command and its children only.")]
pub(crate) struct PeersArgs {
    /// Files of the dataset.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(16..=10_000_000))]
    pub(crate) files: u32,
    /// Mean size of a file; sizes lie between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Numbers of reader threads. The most of them read all files, the others 4000.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4,16",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) readers: Vec<u32>,
    /// Rounds; in each every system is measured once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Measure only these: ext4, larder, "larder packed", juicefs, "juicefs tuned", mountpoint-s3, rclone, "rclone tuned",
    /// s3fs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// A folder on the disk to measure, for the files and all caches; four times the dataset must fit. By default one in
    /// ~/.cache/larder.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Seed of files and shuffles.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Where to draw a plot.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Write every figure of every round to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Which node's cache holds what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimPlacement {
    /// Each node caches what it reads; each epoch it reads another share of the files.
    Local,
    /// Each block has one owner, whose cache all nodes read it through.
    Partitioned,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench sim                                          the policies, at a million files
  larder bench sim --files 14197122 --cache 200GiB --nodes 1,8 --placement partitioned
  larder bench sim --files 100000000 --policies nr --cache 31.25% --nodes 1
  larder bench sim --equal-sizes --epochs 10 --json sim.json --plot sim.svg

Policies are those of the store, run over the order of each epoch without reading anything; belady knows the order of
this epoch and the next. Up to ten million files all processors are used; beyond that, one, and 4 bytes of memory a file
for nr, 12 for belady, 16 for the others, and for each node after the first 12 more (nr, belady: none).")]
pub(crate) struct SimArgs {
    /// Files of the dataset.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) files: u32,
    /// Mean size of a file; sizes lie between 16 KB and 5 MB, and beyond a million files they repeat.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// All files have the mean size.
    #[arg(long)]
    pub(crate) equal_sizes: bool,
    /// Cache sizes of a node: shares of the dataset, or bytes.
    #[arg(
        long,
        value_name = "SIZE|%",
        value_delimiter = ',',
        default_value = "6.25%,31.25%,62.5%,100%",
        value_parser = parse_cache_size
    )]
    pub(crate) cache: Vec<CacheSize>,
    /// Epochs; the first fills the cache.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(crate) epochs: u32,
    /// Numbers of nodes that read the dataset together.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) nodes: Vec<u32>,
    /// Which node's cache holds what.
    #[arg(long, value_enum, default_value_t = SimPlacement::Local)]
    pub(crate) placement: SimPlacement,
    /// Policies: nr, lru, fifo, random, belady.
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "nr,lru,fifo,random,belady")]
    pub(crate) policies: Vec<SimPolicy>,
    /// Seed of sizes, shuffles and the random policy.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Where to draw a plot.
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
        _ => {
            Err("a share is more than 0 % and at most 100 %, such as 31.25%; or give bytes, such as 100GiB".to_owned())
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench meta                                         some 20 minutes with all peers
  larder bench meta --only ext4,larder --rounds 1           a quick look
  larder bench meta --files 0 --synthetic 10000000          only a made-up manifest of ten million files
  larder bench meta --synthetic 0 --json meta.json

Files are of 1 KiB, 200 in a folder. Each system is walked by names (find), each file looked up once in a random order by
one thread, walked again with a look at each file (ls -l), all after the kernel's caches were dropped; then each file is
looked up once more by 16 threads. Made-up manifests are mounted by larder alone; a million files take 200 MB of memory to
make.")]
pub(crate) struct MetaArgs {
    /// Files; 0 measures made-up manifests only.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub(crate) files: u32,
    /// Files of made-up manifests; 0 is none.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1000000,10000000",
        value_parser = clap::value_parser!(u32).range(0..=100_000_000)
    )]
    pub(crate) synthetic: Vec<u32>,
    /// Rounds; in each every system is measured once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Measure only these: ext4, larder, "larder packed", juicefs, "juicefs tuned", mountpoint-s3, rclone, "rclone tuned",
    /// s3fs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// A folder on the disk to measure. By default one in ~/.cache/larder.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Seed of files and orders.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Write every figure of every round to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench fio                                          bench/install-peers gets fio and the peers
  larder bench fio --only ext4,larder --rounds 1 --size 256MiB --files 1000
  larder bench fio --files 0 --json fio.json                the large file only

The jobs are those of bench/fio: one large file read in pieces of 1 MiB, and at random offsets in pieces of 4 KiB and
128 KiB; then many small files in random order. Cold is a new mount with an empty cache, warm has everything in it; the
kernel's caches are dropped before each run, and no offset is read twice.")]
pub(crate) struct FioArgs {
    /// Size of the large file.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_large_size)]
    pub(crate) size: u64,
    /// Small files, of 111 KB in the mean; 0 is none.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) files: u32,
    /// The longest that one run may read, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,
    /// Rounds; in each every system is measured once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Measure only these: ext4, larder, "larder packed", juicefs, "juicefs tuned", mountpoint-s3, rclone, "rclone tuned",
    /// s3fs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// A folder on the disk to measure. By default one in ~/.cache/larder.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Seed of files, offsets and orders.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Write every figure of every round to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench peers-net
  larder bench peers-net --record-size 111KB --readers 1,16,64 --seconds 10 --json net.json
  larder bench peers-net --only raw-tcp,peer --record-size 4MiB

Every server is a process of its own on this machine. Raw TCP is a connection and a thread for
each reader; nobody looks at the bytes, or both ends sum them, as peers do.")]
pub(crate) struct PeersNetArgs {
    /// Sizes of what is read at once, up to 4MiB.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "111KB,1MiB,4MiB", value_parser = parse_record_size)]
    pub(crate) record_size: Vec<u32>,
    /// Reads at a time.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) readers: Vec<u32>,
    /// How long each is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    /// Rounds; in each every server is measured once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// A folder on the disk that a peer's store is on. By default one in ~/.cache/larder.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Write every figure of every round to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Measure only these: raw-tcp, raw-summed, peer, peer-tls, peer-store, peer-store-tls, origin. Without raw-tcp there is
    /// nothing to compare with.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) only: Vec<Kind>,
    /// Said to a process that serves.
    #[arg(long, hide = true)]
    pub(crate) serve: Option<String>,
}

/// Bytes of a record, at most those of a block.
fn parse_record_size(text: &str) -> Result<u32, String> {
    match parse_bytes(text)? {
        bytes if (1..=4 << 20).contains(&bytes) => Ok(bytes as u32),
        _ => Err("1 byte to 4MiB".to_owned()),
    }
}

/// Bytes of a file that is cut into quarters of whole pieces.
fn parse_large_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 4 << 20 => Ok(bytes),
        _ => Err("at least 4MiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_are_shares_or_bytes() {
        assert_eq!(parse_cache_size("31.25%"), Ok(CacheSize::Share(0.3125)));
        assert_eq!(parse_cache_size("100 %"), Ok(CacheSize::Share(1.0)));
        assert_eq!(parse_cache_size("2MiB"), Ok(CacheSize::Bytes(2 << 20)));
        for wrong in ["0%", "-5%", "101%", "NaN%", "%", "", "x", "5 percent"] {
            parse_cache_size(wrong).unwrap_err();
        }
    }

    fn peers(args: &[&str]) -> Result<PeersArgs, String> {
        use clap::Parser;
        let all = [&["larder", "bench", "peers"], args].concat();
        match crate::args::Cli::try_parse_from(all).map_err(|error| error.to_string())?.command {
            crate::args::Command::Bench(BenchArgs { what: BenchCommand::Peers(args) }) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn lists_of_readers_and_names_are_split_and_checked() {
        let args = peers(&["--readers", "2,8", "--only", "ext4,larder packed", "--mean-size", "1MB"]).unwrap();
        assert_eq!((args.readers, args.mean_size, args.rounds), (vec![2, 8], 1_000_000, 5));
        assert_eq!(args.only, ["ext4", "larder packed"]);
        assert_eq!(peers(&[]).unwrap().readers, [1, 4, 16]);
        for wrong in [["--readers", "0"], ["--files", "3"], ["--rounds", "0"], ["--mean-size", "big"]] {
            assert!(peers(&wrong).unwrap_err().contains(wrong[0]), "{wrong:?}");
        }
    }
}
