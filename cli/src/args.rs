//! Every flag of `larder`, with its help. Values are typed here; nothing below parses text.

pub(crate) mod bench;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use larder_dataset::Placement;
use larder_store::PolicyKind;

use larder_daemon_api::size::{parse_bytes, parse_duration};

/// Keeps GPUs fed: mounts training datasets out of S3, cached on this node, so that every epoch hits.
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Examples:
  larder quickstart                                         see it all work, on made-up data
  larder mount s3://bucket/imagenet /data/train             mount a dataset
  larder mount s3://bucket/imagenet /data --endpoint http://10.0.0.5:9000
  larder stats /data/train --watch                          hit ratio while you train
  larder umount /data/train

Credentials come from the usual AWS_* variables and profile files, GOOGLE_* and AZURE_* variables."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log what happens to standard error (LARDER_LOG=debug for more).
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show that it works: a dataset in an embedded S3, mounted and read for epochs under every policy.
    Quickstart(QuickstartArgs),
    /// List an origin once and write the dataset's manifest.
    Import(ImportArgs),
    /// Copy a dataset of small files into packs of about 64 MiB, with a checksum for each file.
    Pack(PackArgs),
    /// Mount a dataset.
    Mount(MountArgs),
    /// Unmount a dataset.
    Umount(UmountArgs),
    /// Fill the cache of a mount ahead of its readers.
    Warm(WarmArgs),
    /// Check a mount, or a dataset at its origin, against its manifest.
    Verify(VerifyArgs),
    /// Show what mounts are doing.
    Stats(StatsArgs),
    /// Check this machine and say what to change.
    Doctor(DoctorArgs),
    /// Measure.
    Bench(bench::BenchArgs),
    /// Print the text of docs/COMMANDS.md.
    #[command(hide = true)]
    HelpPage,
}

/// The help of every command, as `docs/COMMANDS.md` has it.
pub(crate) fn help_page() -> String {
    use clap::CommandFactory;

    fn section(command: &mut clap::Command, path: &str, page: &mut String) {
        page.push_str(&format!("## {path}\n```\n{}```\n\n", command.render_long_help()));
        for command in
            command.get_subcommands_mut().filter(|command| !command.is_hide_set() && command.get_name() != "help")
        {
            let path = format!("{path} {}", command.get_name());
            section(command, &path, page);
        }
    }
    let mut page =
        String::from("# Commands and flags\n\nMade from `larder --help` and its like; a test keeps it so.\n\n");
    let mut command = Cli::command();
    command.build();
    section(&mut command, "larder", &mut page);
    // Help pads some lines with blanks.
    page.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// How the origin is reached.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Origin")]
pub(crate) struct OriginArgs {
    /// The S3 server, for anything but AWS (Ceph, MinIO): http://host:port.
    #[arg(long, value_name = "URL", env = "LARDER_ENDPOINT", hide_env_values = true)]
    pub(crate) endpoint: Option<String>,
    /// The S3 region.
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// Send no credentials (public buckets).
    #[arg(long)]
    pub(crate) anonymous: bool,
    /// Ask again when an answer has not moved for this long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) attempt_timeout: Duration,
    /// The longest a read may wait for the origin, all attempts together; then ETIMEDOUT.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) read_deadline: Duration,
    /// Requests to the origin at once, at most; fewer while it refuses or slows down.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) origin_concurrency: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder quickstart
  larder quickstart --files 200 --epochs 3                  a quick look
  larder quickstart --keep /tmp/larder --json result.json   keep the data, the plot and the figures")]
pub(crate) struct QuickstartArgs {
    /// Files of the dataset.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub(crate) files: u32,
    /// Mean size of a file; sizes lie between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Epochs for each policy and cache size.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) epochs: u32,
    /// Reader threads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// Seed of files and shuffles.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Keep everything in this folder, instead of a temporary one.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Where to draw the plot.
    #[arg(long, value_name = "FILE.svg", default_value = "quickstart.svg")]
    pub(crate) plot: PathBuf,
    /// Write all figures to this file as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder import s3://bucket/imagenet
  larder import s3://bucket/imagenet --to s3://bucket/imagenet/.larder/manifest    for every node to find
  larder import file:///datasets/coco --to coco.manifest

An import that was stopped, even by kill -9, goes on where it was when started again.")]
pub(crate) struct ImportArgs {
    /// s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder.
    pub(crate) src: String,
    /// Name of the dataset; by default the last part of SRC.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where to write the manifest: a file or a URL. By default where `larder mount SRC` finds it on this machine.
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) to: Option<String>,
    /// Begin anew, whatever an unfinished import has listed already.
    #[arg(long)]
    pub(crate) restart: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder pack s3://bucket/imagenet s3://bucket/imagenet-packed
  larder mount s3://bucket/imagenet-packed /data/train")]
pub(crate) struct PackArgs {
    /// The dataset to pack: a URL or a manifest file.
    pub(crate) src: String,
    /// Where the packs and their manifest go: a URL.
    pub(crate) dst: String,
    /// About this many bytes a pack.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    pub(crate) pack_size: u64,
    /// Begin anew, whatever an unfinished run has packed already.
    #[arg(long)]
    pub(crate) restart: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder mount s3://bucket/imagenet /data/train --cache-size 100GiB
  larder mount imagenet.manifest /data/train --cache-dir /nvme/larder
  larder mount file:///datasets/coco /data/coco --foreground --verbose

The mount goes on in the background until `larder umount DIR`. Its log is in the folder logs of ~/.cache/larder.")]
pub(crate) struct MountArgs {
    /// The dataset: a URL or a manifest file. A URL that was not imported yet is imported on the way.
    pub(crate) src: String,
    /// Where to mount it: an empty folder.
    pub(crate) dir: PathBuf,
    /// Folder of the cache, by default ~/.cache/larder/store. All mounts on one cache are served by one process.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Bytes of the dataset to keep. By default all of it, if the disk then has a fifth of its free space left.
    /// On disk a file takes up to 5 KiB more.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) cache_size: Option<u64>,
    /// What happens once the cache is full. nr, the default: nothing is replaced, so that every epoch hits cache/dataset.
    #[arg(long, value_name = "nr|lru|fifo|random")]
    pub(crate) policy: Option<PolicyKind>,
    /// How the dataset is spread over the nodes that share it: each for itself, each file on one, or on N. Other than
    /// local it needs a larderd with --peers on this cache, and LARDER_PEER_TOKEN if the others have one.
    #[arg(long, value_name = "local|partitioned|replicated:N")]
    pub(crate) placement: Option<Placement>,
    /// Let other users in. Always so for root; else it needs user_allow_other in /etc/fuse.conf.
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Threads that serve the kernel.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Bytes that the kernel reads ahead in a file (as root).
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_bytes)]
    pub(crate) read_ahead: u64,
    /// Stay in the foreground and log to standard error.
    #[arg(long, short)]
    pub(crate) foreground: bool,
    /// Said by a background mount to the command that started it.
    #[arg(long, hide = true)]
    pub(crate) announce: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  larder umount /data/train")]
pub(crate) struct UmountArgs {
    /// Where it is mounted.
    pub(crate) dir: PathBuf,
    /// Take it out of sight even if files are in use; it ends with the last of them.
    #[arg(long)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  larder warm /data/train --wait && python train.py")]
pub(crate) struct WarmArgs {
    /// Where the dataset is mounted.
    pub(crate) dir: PathBuf,
    /// Come back when it is done.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder verify /data/train                     read every file of a mount, compare with the manifest
  larder verify s3://bucket/imagenet            is every object still the one that was imported?
  larder verify s3://bucket/packed --deep       read every byte and check its checksum")]
pub(crate) struct VerifyArgs {
    /// A mount, a URL or a manifest file.
    pub(crate) target: String,
    /// Read every byte at the origin.
    #[arg(long)]
    pub(crate) deep: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder stats                     every mount of this machine
  larder stats /data/train --watch
  larder stats /data/train --json | jq .metrics
  larder stats /data/train --cluster       the nodes that share their caches with this one")]
pub(crate) struct StatsArgs {
    /// One mount; by default all.
    pub(crate) dir: Option<PathBuf>,
    /// Print again every second, with what has changed.
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print JSON, one document a mount.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show what each node of the cluster has of the mounts' datasets.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) cluster: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder doctor                    can `larder mount` work here?
  larder doctor --node             is this a node for the CSI driver? (as root)")]
pub(crate) struct DoctorArgs {
    /// Look at this machine as a Kubernetes node: for larder-csi and larderd, not for `larder mount`.
    #[arg(long)]
    pub(crate) node: bool,
    /// The kubelet's folder.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet", requires = "node")]
    pub(crate) kubelet_dir: PathBuf,
    /// The cache folder to look at; of a node, /var/lib/larder/cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_value_names_its_flag_and_what_is_accepted() {
        let error = Cli::try_parse_from(["larder", "mount", "s3://b/p", "/mnt", "--cache-size", "lots"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("--cache-size") && text.contains("100GiB"), "{text}");
        let error = Cli::try_parse_from(["larder", "mount", "s3://b/p", "/mnt", "--policy", "mru"]).unwrap_err();
        assert!(error.to_string().contains("--policy"), "{error}");
    }
}
