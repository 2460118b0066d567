//! Every flag of `larder`, with its help. Values are typed here; no other module parses them.

pub(crate) mod bench;
pub(crate) mod cluster;
mod explain;
mod inspect;
pub(crate) mod job;
mod mount;
mod origin;
mod publish;
mod queue;
mod quickstart;

use clap::{Parser, Subcommand};

pub(crate) use explain::{ExplainArgs, ExplainDatasetArgs, ExplainJobArgs, ExplainPodArgs, Explained, ExtenderUrl};
pub(crate) use inspect::{DevicesArgs, DoctorArgs, StatsArgs, VerifyArgs};
pub(crate) use job::JobArgs;
pub(crate) use mount::{MountArgs, UmountArgs, WarmArgs};
pub(crate) use origin::OriginArgs;
pub(crate) use publish::{ImportArgs, PackArgs};
pub(crate) use queue::QueueArgs;
pub(crate) use quickstart::QuickstartArgs;

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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Demonstrate Larder: mount a dataset from an embedded S3 and read it for several epochs under each policy.
    Quickstart(QuickstartArgs),
    /// List an origin once and write the dataset's manifest.
    Import(ImportArgs),
    /// Copy a dataset of small files into packs of about 64 MiB, with a checksum per file.
    Pack(PackArgs),
    /// Mount a dataset.
    Mount(MountArgs),
    /// Unmount a dataset.
    Umount(UmountArgs),
    /// Fill the cache of a mount before it is read.
    Warm(WarmArgs),
    /// Compare a mount, or a dataset at its origin, with its manifest.
    Verify(VerifyArgs),
    /// Show the state and the hit ratio of mounts.
    Stats(StatsArgs),
    /// Check this machine and suggest fixes.
    Doctor(DoctorArgs),
    /// Show the GPUs and HCAs of this node: which pods hold them, and why a device is out of service.
    Devices(DevicesArgs),
    /// Submit, list, follow and cancel the training jobs of a Kubernetes cluster.
    Job(JobArgs),
    /// Show the queues of a Kubernetes cluster: quota, usage and waiting jobs.
    Queue(QueueArgs),
    /// Explain why a Dataset or job is not ready, or why a pod was placed on its node.
    Explain(ExplainArgs),
    /// Time epochs over a directory, or simulate them. All other benchmarks are in larder-bench.
    Bench(bench::BenchArgs),
    /// Print the text of docs/COMMANDS.md.
    #[command(hide = true)]
    HelpPage,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    /// The lines of a document that run `larder`, as words.
    fn commands(text: &str) -> Vec<Vec<&str>> {
        let commands = text.lines().filter_map(|line| {
            let line = line.trim();
            let from = if line.starts_with("larder ") { 0 } else { line.find("| larder ")? + 2 };
            // A remark follows after several spaces or a #; a pipe and a second command may follow as well.
            let ends = ["  ", " #", " |", " &&", " >"].into_iter();
            let command = ends.fold(&line[from..], |line, end| line.split(end).next().unwrap_or(line));
            Some(command.split(' ').collect::<Vec<_>>())
        });
        commands.collect()
    }

    /// The text of a document, with each command that a backslash continues on one line.
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
    fn the_error_for_a_wrong_value_names_the_flag_and_the_accepted_values() {
        let error = Cli::try_parse_from(["larder", "mount", "s3://b/p", "/mnt", "--cache-size", "lots"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("--cache-size") && text.contains("100GiB"), "{text}");
        let error = Cli::try_parse_from(["larder", "mount", "s3://b/p", "/mnt", "--policy", "mru"]).unwrap_err();
        assert!(error.to_string().contains("--policy"), "{error}");
    }
}
