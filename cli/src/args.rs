//! Every flag of `larder`, with its help. Values are typed here; no other module parses them.

pub(crate) mod bench;
mod cache;
pub(crate) mod cluster;
mod clusters;
mod example;
mod explain;
mod fstab;
mod inspect;
pub(crate) mod job;
mod mount;
mod origin;
mod publish;
mod queue;
mod quickstart;
mod watch;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use cache::{CacheArgs, CacheCommand, CacheNameArgs, CachePlace};
pub(crate) use clusters::{ClustersArgs, ClustersCommand, DescribeClusterArgs, JoinArgs, ListClustersArgs};
pub(crate) use example::{ExampleArgs, ExampleName};
pub(crate) use explain::{
    ExplainArgs, ExplainDatasetArgs, ExplainJobArgs, ExplainMountArgs, ExplainPodArgs, Explained, ExtenderUrl,
};
pub(crate) use inspect::{DevicesArgs, DoctorArgs, StatsArgs, VerifyArgs, VersionArgs};
pub(crate) use job::JobArgs;
pub(crate) use mount::{MirrorFlag, MountArgs, PlanArgs, RefreshFlag, UmountArgs, WarmArgs};
pub(crate) use origin::OriginArgs;
pub(crate) use publish::{ImportArgs, PackArgs, SyncArgs};
pub(crate) use queue::QueueArgs;
pub(crate) use quickstart::QuickstartArgs;
pub(crate) use watch::{TopArgs, UiArgs};

/// The folder of credentials of `larderd.service`, and of the mounts of fstab.
pub(crate) const ORIGIN_DIR: &str = "/etc/larder/origin";

/// Mounts training datasets from S3 and caches them on this node, so that every epoch hits the cache.
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "\
Examples:
  larder quickstart                                         a demonstration with generated data
  larder mount s3://bucket/imagenet /data/train             mount a dataset
  larder mount s3://bucket/imagenet /data --endpoint http://10.0.0.5:9000
  larder stats /data/train --watch                          hit ratio while you train
  larder umount /data/train

Credentials are read from the AWS_*, GOOGLE_* and AZURE_* variables and from AWS profile files."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log to standard error (LARDER_LOG=debug logs more).
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

impl Cli {
    /// Parses the arguments of this process: those of `larder`, which kubectl starts as its plugin `kubectl-larder`, or
    /// those that mount(8) passes to `mount.larder`. Wrong usage ends the process.
    pub(crate) fn of_process() -> Self {
        let mut args: Vec<OsString> = std::env::args_os().collect();
        if fstab::is_helper(&args) {
            args = fstab::as_command(&args, Some(ORIGIN_DIR).filter(|dir| std::fs::read_dir(dir).is_ok()))
                .unwrap_or_else(|what| Self::command().error(ErrorKind::InvalidValue, what).exit());
        }
        Self::of(&args).unwrap_or_else(|error| error.exit())
    }

    fn of(args: &[OsString]) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        if args.first().is_some_and(|program| Path::new(program).file_stem() == Some(OsStr::new("kubectl-larder"))) {
            command = command.bin_name("kubectl larder");
        }
        let matches = command.try_get_matches_from(args);
        matches.and_then(|matches| Self::from_arg_matches(&matches)).map_err(|error| hinted(error, args))
    }
}

/// Adds how the value of --refresh is written, if it was written as that of other flags is: the value is optional, so
/// it needs a `=`.
fn hinted(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let value = args.windows(2).find_map(|pair| {
        let value = pair[1].to_str().filter(|value| pair[0] == "--refresh" && value.parse::<RefreshFlag>().is_ok());
        value.map(str::to_owned)
    });
    if let (ErrorKind::UnknownArgument, Some(value)) = (error.kind(), value) {
        let hint = format!("write --refresh={value}").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    }
    error
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Demonstrate Larder: mount a dataset from an embedded S3 and read it for several epochs under each policy.
    Quickstart(QuickstartArgs),
    /// List an origin once and write the dataset's manifest.
    Import(ImportArgs),
    /// Copy a dataset of small files into packs of about 64 MiB, with a checksum per block.
    Pack(PackArgs),
    /// Copy a dataset to another bucket, cloud or directory, as a mirror: only what is missing there.
    Sync(SyncArgs),
    /// Mount a dataset.
    Mount(MountArgs),
    /// Unmount a dataset.
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    /// Fill the cache of a mount before it is read.
    Warm(WarmArgs),
    /// Say which files a program is going to read, so that they are fetched ahead of it.
    Plan(PlanArgs),
    /// Compare a mount, or a dataset at its origin, with its manifest.
    Verify(VerifyArgs),
    /// Show the state and the hit ratio of mounts.
    #[command(visible_alias = "status", aliases = ["ls", "list"])]
    Stats(StatsArgs),
    /// Watch all mounts on this machine, or the caches of a cluster, on a screen.
    Top(TopArgs),
    /// Show this machine and a cluster on a page in the browser.
    Ui(UiArgs),
    /// List the datasets in the cache, drop one, or keep its room.
    Cache(CacheArgs),
    /// Check this machine and suggest fixes.
    Doctor(DoctorArgs),
    /// Show the GPUs and HCAs of this node: which pods hold them, and why a device is out of service.
    Devices(DevicesArgs),
    /// Submit, list, follow and cancel the training jobs of a Kubernetes cluster.
    Job(JobArgs),
    /// Show the queues of a Kubernetes cluster: quota, usage and waiting jobs.
    Queue(QueueArgs),
    /// Show the clusters that jobs may run in, and let a home run jobs in one.
    Cluster(ClustersArgs),
    /// Explain why a job waits for a mount, why a Dataset or job is not ready, or why a pod was placed on its node.
    Explain(ExplainArgs),
    /// Print manifests to start from, filled with your bucket.
    Example(ExampleArgs),
    /// Time epochs over a directory, or simulate them. All other benchmarks are in larder-bench.
    Bench(bench::BenchArgs),
    /// Show the version of this command, of the programs behind this machine's mounts, and of a cluster's programs.
    Version(VersionArgs),
    /// Print the text of docs/COMMANDS.md.
    #[command(hide = true)]
    HelpPage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    /// The command lines of a document that run `larder`, split into words.
    fn commands(text: &str) -> Vec<Vec<&str>> {
        let commands = text.lines().filter_map(|line| {
            let line = line.trim();
            let from = if line.starts_with("larder ") { 0 } else { line.find("| larder ")? + 2 };
            // The command ends before a comment (several spaces or a #), a pipe or a second command.
            let ends = ["  ", " #", " |", " &&", " >"].into_iter();
            let command = ends.fold(&line[from..], |line, end| line.split(end).next().unwrap_or(line));
            Some(command.split(' ').collect::<Vec<_>>())
        });
        commands.collect()
    }

    /// The text of a document, with backslash-continued commands joined into one line.
    fn joined(text: &str) -> String {
        let mut joined = String::new();
        let mut continues = false;
        for line in text.lines() {
            let line = if continues { line.trim_start() } else { line };
            let part = line.strip_suffix('\\');
            continues = part.is_some();
            joined += part.unwrap_or(line);
            joined += if continues { "" } else { "\n" };
        }
        joined
    }

    #[test]
    fn every_command_in_the_documents_is_valid() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut documents = ["README.md", "docs/COMMANDS.md", "docs/DEVICES.md", "docs/MOUNT.md", "docs/START.md"]
            .map(|path| root.join(path))
            .to_vec();
        let pages = std::fs::read_dir(root.join("docs/kubernetes")).unwrap().map(|page| page.unwrap().path());
        documents.extend(pages);
        assert!(documents.len() >= 5 + 7, "{documents:?}");
        let mut seen = 0;
        for document in documents {
            for words in commands(&joined(&std::fs::read_to_string(&document).unwrap())) {
                if words.iter().any(|word| ["SRC", "DIR", "COMMAND", "<COMMAND>", "[OPTIONS]"].contains(word)) {
                    continue;
                }
                if let Err(error) = Cli::try_parse_from(&words)
                    && !matches!(
                        error.kind(),
                        clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion
                    )
                {
                    panic!("{}: {words:?}: {error}", document.display());
                }
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen}");
    }

    #[test]
    fn a_value_of_refresh_without_its_equals_sign_is_answered_with_one() {
        let of = |args: &[&str]| Cli::of(&args.iter().map(OsString::from).collect::<Vec<_>>());
        for args in [
            &["larder", "mount", "s3://b/p", "/mnt", "--refresh", "24h"][..],
            &["larder", "mount", "--refresh", "24h", "s3://b/p", "/mnt"],
        ] {
            let error = of(args).unwrap_err().to_string();
            assert!(error.contains("tip: write --refresh=24h"), "{error}");
            assert!(!error.contains("-- 24h"), "{error}");
        }
        assert!(of(&["larder", "mount", "s3://b/p", "/mnt", "--refresh"]).is_ok());
        let error = of(&["larder", "mount", "s3://b/p", "/mnt", "--refresh", "/other"]).unwrap_err().to_string();
        assert!(!error.contains("write --refresh"), "{error}");
    }

    #[test]
    fn as_a_plugin_of_kubectl_it_has_the_name_by_which_users_call_it() {
        let of = |args: &[&str]| Cli::of(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let error = of(&["/usr/local/bin/kubectl-larder", "job", "top", "--nonsense"]).unwrap_err().to_string();
        assert!(error.contains("Usage: kubectl larder job top"), "{error}");
        let error = of(&["/usr/local/bin/larder", "job", "top", "--nonsense"]).unwrap_err().to_string();
        assert!(error.contains("Usage: larder job top"), "{error}");
        for (verb, same) in [("get", "list"), ("delete x", "cancel x"), ("apply x", "submit x")] {
            let debug = |words: &str| {
                let words: Vec<&str> = ["larder", "job"].into_iter().chain(words.split(' ')).collect();
                format!("{:?}", of(&words).unwrap().command)
            };
            assert_eq!(debug(verb), debug(same));
        }
    }

    #[test]
    fn an_option_of_fstab_that_is_no_flag_is_answered_with_the_nearest() {
        let call = ["mount.larder", "s3://b/x", "/data", "-o", "ro,cache-sise=1GiB"].map(OsString::from);
        let error = Cli::of(&fstab::as_command(&call, None).unwrap()).unwrap_err().to_string();
        assert!(error.contains("--cache-sise") && error.contains("--cache-size"), "{error}");
    }

    #[test]
    fn the_line_of_fstab_in_the_documents_is_valid() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/MOUNT.md");
        let page = std::fs::read_to_string(page).unwrap();
        let line = page.lines().find(|line| line.contains("  larder  ro,")).unwrap();
        let [source, dir, _, options, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        let call = ["mount.larder", source, dir, "-o", options].map(OsString::from);
        let Command::Mount(args) = Cli::of(&fstab::as_command(&call, None).unwrap()).unwrap().command else {
            panic!("{line}")
        };
        assert_eq!((args.src.as_str(), args.dir.as_path()), (source, Path::new(dir)));
        assert!(args.cache_size.is_some());
    }

    #[test]
    fn usual_verbs_are_understood_and_unknown_ones_are_answered_with_the_nearest() {
        for verb in ["ls", "list", "status"] {
            let cli = Cli::try_parse_from(["larder", verb]).unwrap();
            assert!(matches!(cli.command, Command::Stats(_)), "{verb}");
        }
        let cli = Cli::try_parse_from(["larder", "unmount", "/mnt"]).unwrap();
        assert!(matches!(cli.command, Command::Umount(_)));
        for (verb, nearest) in
            [("mout", "mount"), ("unmont", "umount"), ("stat", "stats"), ("verfy", "verify"), ("doktor", "doctor")]
        {
            let error = Cli::try_parse_from(["larder", verb]).unwrap_err().to_string();
            assert!(error.contains("tip: ") && error.contains(&format!("'{nearest}'")), "{error}");
        }
    }

    #[test]
    fn the_error_for_a_wrong_value_names_the_flag_and_the_accepted_values() {
        let error = Cli::try_parse_from(["larder", "mount", "s3://b/p", "/mnt", "--cache-size", "lots"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("--cache-size") && text.contains("100GiB"), "{text}");
        let error = Cli::try_parse_from(["larder", "mount", "s3://b/p", "/mnt", "--policy", "mru"]).unwrap_err();
        assert!(error.to_string().contains("--policy"), "{error}");
    }
}
