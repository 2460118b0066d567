//! The flags of `larder mount`, `umount`, `warm` and `plan`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use larder_cachenode::process::parse_memory_target;
use larder_dataset::Placement;
use larder_dataset::PolicyKind;
use larder_dataset::ownership::{parse_id, parse_mode};
use larder_dataset::size::{parse_bytes, parse_rate};
use larder_dataset::written::is_mirror_name;
use larder_dataset::{InvalidRefresh, Refresh};
use larder_fs::process::Verify;
use larder_origin::OriginUrl;

use super::origin::OriginArgs;

/// The value of `--refresh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefreshFlag {
    pub(crate) when: Refresh,
    /// Whether a listing that cannot be renewed is used with a warning.
    pub(crate) best_effort: bool,
}

impl FromStr for RefreshFlag {
    type Err = InvalidRefresh;

    fn from_str(text: &str) -> Result<Self, InvalidRefresh> {
        match text {
            "best-effort" => Ok(Self { when: Refresh::Always, best_effort: true }),
            text => Ok(Self { when: text.parse()?, best_effort: false }),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder mount s3://bucket/imagenet /data/train --cache-size 100GiB
  larder mount imagenet.manifest /data/train --cache-dir /nvme/larder
  larder mount file:///datasets/coco /data/coco --foreground --verbose
  larder mount s3://bucket/imagenet /data/train --refresh=24h    list again after a day

The mount stays in the background until `larder umount DIR`. Its log is in ~/.cache/larder/logs.")]
pub(crate) struct MountArgs {
    /// The dataset: a URL or a manifest file. A URL that has not been imported yet is imported first.
    pub(crate) src: String,
    /// The mount point: an empty directory.
    pub(crate) dir: PathBuf,
    /// The cache directory. Default: ~/.cache/larder/store. One process serves all mounts that share a cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// List the origin again before mounting: always, or if the last listing is older than this (--refresh=24h; units:
    /// ms, s, m, h, d). Without this flag the existing listing is used, whatever its age. A manifest published
    /// beside the data is only renewed by `larder import --to`: for it, --refresh is an error, and with best-effort a
    /// warning.
    #[arg(
        long,
        value_name = "AGE|always|never|best-effort",
        num_args = 0..=1,
        require_equals = true,
        default_value = "never",
        default_missing_value = "always"
    )]
    pub(crate) refresh: RefreshFlag,
    /// Bytes of the dataset to cache. Default: the whole dataset (with a placement other than local, the part that
    /// this node owns), provided that a fifth of the disk's free space remains. Each file takes up to 5 KiB more on
    /// disk. Units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB. With 0 nothing is cached, and every read goes to the origin.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) cache_size: Option<u64>,
    /// Policy of a cache that is smaller than the dataset. The default, nr, keeps the files that are read first and
    /// replaces nothing, so the hit ratio of every epoch is cache size/dataset size. smallest keeps the smallest files
    /// instead: the same bytes in fewer requests, for programs that read the whole dataset in each epoch.
    #[arg(long, value_name = "nr|smallest|lru|fifo|random")]
    pub(crate) policy: Option<PolicyKind>,
    /// How nodes divide the dataset: each node caches for itself (local), each block has one owner (partitioned), or
    /// each block has N owners (replicated:N). partitioned and replicated require a larderd with --peers on this cache,
    /// and LARDER_PEER_TOKEN if the other nodes set it.
    #[arg(long, value_name = "local|partitioned|replicated:N")]
    pub(crate) placement: Option<Placement>,
    /// Mount over a directory that has files. They are hidden until the unmount.
    #[arg(long)]
    pub(crate) over: bool,
    /// Give other users access. Root's mounts always do; other users need user_allow_other in /etc/fuse.conf.
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// User that owns all files. Default: the user that mounts.
    #[arg(long, value_name = "UID", value_parser = parse_id)]
    pub(crate) uid: Option<u32>,
    /// Group of all files. Default: the group of the user that mounts.
    #[arg(long, value_name = "GID", value_parser = parse_id)]
    pub(crate) gid: Option<u32>,
    /// Permission bits of files, in octal and without write bits. Default: 0444.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) file_mode: Option<u16>,
    /// Permission bits of directories, in octal and without write bits. Default: 0555.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) dir_mode: Option<u16>,
    /// Most threads that serve the kernel's requests at the same time. Default: half of the cores, at least 16 and at
    /// most 64.
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// Bytes that the kernel reads ahead within a file (root only).
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_bytes)]
    pub(crate) read_ahead: u64,
    /// When cached files of more than 8 MiB are compared with their checksums. The kernel can read those that are
    /// wholly cached by itself, at the speed of the disk, but compares nothing (root only, from Linux 6.9 on).
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Verify::Once)]
    pub(crate) verify: Verify,
    /// Maximum bytes per second that all warm-ups of the serving process fetch together, such as 200MiB/s. Default: no
    /// limit. A mount that joins a serving process gets that process's limit.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) warm_rate: Option<u64>,
    /// Memory of the serving process for the data in flight of all of its datasets. Default: half of the memory that
    /// the container or the machine leaves beside 1.5 GiB for the process and its imports; at least 128MiB and at most
    /// 4GiB. A mount that joins a serving process gets that process's memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_target)]
    pub(crate) memory_target: Option<u64>,
    /// Stay in the foreground and log to standard error. Standard output gets two lines once the dataset is mounted.
    #[arg(long, short)]
    pub(crate) foreground: bool,
    /// Print the result as JSON.
    #[arg(long, conflicts_with = "foreground")]
    pub(crate) json: bool,
    /// Report the outcome to the command that started this background process.
    #[arg(long, hide = true)]
    pub(crate) announce: bool,
    /// Read from this mirror too, which `larder sync` made: when SRC fails, or before it with `first`. Settings follow
    /// the URL, each after a comma: name=NAME, endpoint=URL, region=REGION, credentials-dir=DIR, cost=N and first. May
    /// be repeated.
    #[arg(long, value_name = "URL[,SETTING...]", help_heading = "Origin")]
    pub(crate) mirror: Vec<MirrorFlag>,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

/// A value of `--mirror`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MirrorFlag {
    pub(crate) url: String,
    pub(crate) name: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) credentials_dir: Option<PathBuf>,
    pub(crate) cost: u32,
    pub(crate) first: bool,
}

impl fmt::Display for MirrorFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)?;
        for (name, value) in [("name", &self.name), ("endpoint", &self.endpoint), ("region", &self.region)] {
            if let Some(value) = value {
                write!(f, ",{name}={value}")?;
            }
        }
        if let Some(dir) = &self.credentials_dir {
            write!(f, ",credentials-dir={}", dir.display())?;
        }
        if self.cost > 0 {
            write!(f, ",cost={}", self.cost)?;
        }
        f.write_str(if self.first { ",first" } else { "" })
    }
}

impl FromStr for MirrorFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = text.split(',');
        let url = settings.next().unwrap_or_default().to_owned();
        url.parse::<OriginUrl>().map_err(|error| error.to_string())?;
        let mut mirror = Self { url, ..Self::default() };
        for setting in settings {
            let value = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
            match setting.split_once('=') {
                None if setting == "first" => mirror.first = true,
                Some(("name", name)) if is_mirror_name(name) => mirror.name = value(name),
                Some(("name", _)) => {
                    return Err("the name of a mirror has up to 63 lower-case letters, digits and `-`".to_owned());
                }
                Some(("endpoint", endpoint)) => mirror.endpoint = value(endpoint),
                Some(("region", region)) => mirror.region = value(region),
                Some(("credentials-dir", dir)) => mirror.credentials_dir = value(dir).map(PathBuf::from),
                Some(("cost", cost)) => {
                    mirror.cost = cost.parse().map_err(|_| format!("the cost {cost:?} is not a number from 0 on"))?;
                }
                _ => {
                    return Err(format!(
                        "{setting:?} is unknown; known are name=, endpoint=, region=, credentials-dir=, cost= and first"
                    ));
                }
            }
        }
        Ok(mirror)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  larder umount /data/train")]
pub(crate) struct UmountArgs {
    /// The mount point.
    pub(crate) dir: PathBuf,
    /// Detach the mount even if files are in use; it ends when the last file is closed.
    #[arg(long)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder warm /data/train --wait && python train.py
  larder warm /data/train --from first.txt --wait           these files, in this order
  head -1000 order.txt | larder warm /data/train --from -")]
pub(crate) struct WarmArgs {
    /// The mount point of the dataset.
    pub(crate) dir: PathBuf,
    /// Cache the files on this list, in this order; if they do not all fit, the first ones are kept. Each line is a path
    /// below DIR, a directory, or a pattern (* ? [a-z], and ** for any number of directories). Lines that begin with #
    /// are comments. - reads standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Wait until the cache is filled. The exit code is 1 if blocks cannot be fetched, or cannot be stored because the
    /// disk fails or is full. A dataset that is larger than its reservation is not a failure: the output says how many
    /// of its blocks are cached.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder plan /data/train --from order.txt            while a program reads them in this order
  ./print-order | larder plan /data/train --from -

The files are fetched as the program reads, up to 256 MiB ahead of it. The command ends when they
were read. Python programs use the package larder instead.")]
pub(crate) struct PlanArgs {
    /// A directory of the mount.
    pub(crate) dir: PathBuf,
    /// The files, in the order in which they will be read. Each line is a path below DIR. Lines that begin with # are
    /// comments. - reads standard input, from which each line counts as soon as it comes.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_read_as_it_was_written_and_a_wrong_setting_is_named() {
        let text = "s3://b/copy,name=eu,endpoint=http://h:9000,region=r,credentials-dir=/keys,cost=7,first";
        let mirror: MirrorFlag = text.parse().unwrap();
        assert_eq!((mirror.to_string().as_str(), mirror.cost, mirror.first), (text, 7, true));
        assert_eq!("gs://b".parse::<MirrorFlag>().unwrap().to_string(), "gs://b");
        for (text, word) in [
            ("bucket", "URL"),
            ("s3://key:secret@b", "credentials do not belong"),
            ("s3://b,cost=-1", "cost"),
            ("s3://b,name=E.U", "name of a mirror"),
            ("s3://b,zone=z", "known are"),
            ("s3://b,last", "known are"),
        ] {
            let error = text.parse::<MirrorFlag>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
