//! The flags of `larder explain`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use larder_api::names::DatasetKey;
use larder_dataset::size::parse_duration;

use super::cluster::{ClusterArgs, NamespaceArgs, ObjectName};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  larder explain /data/train                    why a job waits for this mount, or that it does not
  larder explain /data/train --batch-files 256 --batch-compute 250ms
  larder explain --json | jq -r '.[].sentence'  all mounts on this machine
  larder explain dataset team-a/imagenet
  larder explain job team-a/resnet
  larder explain job resnet --context training --json | jq -r .sentence
  larder explain pod team-a/notebook

The sentence about a mount has numbers, the cause, since when, and what to do. Larder counts in passes: \
a pass is as many requested bytes as the dataset has, whoever reads them.")]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) what: Option<Explained>,
    #[command(flatten)]
    pub(crate) mount: ExplainMountArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainMountArgs {
    /// A mount point. Default: one sentence for each mount on this machine.
    pub(crate) dir: Option<PathBuf>,
    /// Files in a batch of the job. With --batch-compute, the facts include the utilisation of the accelerators.
    #[arg(long, value_name = "FILES", requires = "batch_compute", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_files: Option<u32>,
    /// Time in which the job computes a batch, such as 250ms.
    #[arg(long, value_name = "TIME", requires = "batch_files", value_parser = parse_duration)]
    pub(crate) batch_compute: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Explained {
    /// Explain in one sentence why a Dataset is ready or not, what happens next and what to do.
    Dataset(ExplainDatasetArgs),
    /// Explain in one sentence what a TrainingJob is waiting for, how it runs or how it ended, and what to do.
    Job(ExplainJobArgs),
    /// Explain in one sentence why a pod was placed on its node or is waiting, and list the score of each node.
    Pod(ExplainPodArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain dataset team-a/imagenet
  larder explain dataset team-a/imagenet --context training --json | jq -r .sentence

Only the Dataset is read. Required permission: `get` on datasets.larder.dev.")]
pub(crate) struct ExplainDatasetArgs {
    /// The Dataset.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) dataset: DatasetKey,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain job resnet
  larder explain job team-a/resnet --context training --json | jq -r .sentence

Required permission: `get` on trainingjobs.larder.dev. With permission to `list` TrainingJobs in all \
namespaces, queues.larder.dev and priorityclasses.scheduling.k8s.io, the explanation also says which \
resources the queue is short of, which jobs are ahead and which one is due to end next.")]
pub(crate) struct ExplainJobArgs {
    /// The TrainingJob, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB")]
    pub(crate) job: ObjectName,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain pod team-a/notebook
  larder explain pod notebook -n team-a --all
  larder explain pod team-a/notebook --extender http://10.0.0.5:9468
  larder explain pod team-a/notebook --json | jq -r .sentence

SCORE is 0 to 10, and the columns after it show its parts in tenths; `-` means that a part does not \
apply. DATA is the share of the data that the node has cached. WARMING also counts data that is being \
fetched to it. SHARED is the share of the data held by caches in its zone. ZONE and RACK are the \
share of the pod's group that runs there. WHOLE says whether the node keeps its devices free for \
training jobs that are waiting for them. The scheduler also weighs criteria of its own.

The sentences after it say why the pod waits for its mounts, or that it does not.

The extender keeps its most recent decisions in memory. They are fetched from its pods in \
larder-system. Required permissions: `list` on pods and `get` and `create` on pods/portforward in \
larder-system, and `get` on the pod itself; for its mounts `get` and `create` on pods/exec in \
larder-system. With `get` on the pod's owners and `list` on workloads.kueue.x-k8s.io, the output also \
names the job that the pod belongs to, of any kind, and what the job waits for in a queue of Kueue. \
`larder-scheduler-ext replay` accepts the output of --json.")]
pub(crate) struct ExplainPodArgs {
    /// The pod, NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub(crate) pod: ObjectName,
    /// The extender to ask, for example one used by the cluster's default scheduler. Default: the extenders in
    /// larder-system.
    #[arg(long, value_name = "http://HOST:PORT")]
    pub(crate) extender: Option<ExtenderUrl>,
    /// Show all nodes instead of the best 20.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The address of an extender, which listens without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtenderUrl {
    /// `HOST:PORT`.
    pub(crate) authority: String,
}

impl fmt::Display for ExtenderUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

impl FromStr for ExtenderUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let authority = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        let is_it = |authority: &&str| {
            let (host, port) = authority.rsplit_once(':').unwrap_or_default();
            !host.is_empty() && host.bytes().all(is_part) && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        match authority.filter(is_it) {
            Some(authority) => Ok(Self { authority: authority.to_owned() }),
            None => Err("not the address of an extender: use http://HOST:PORT"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extender_address_needs_a_host_and_a_port() {
        let parse = |text: &str| text.parse::<ExtenderUrl>().map(|url| url.to_string());
        for good in ["http://127.0.0.1:9468", "http://[::1]:9468", "http://extender.example:80"] {
            assert_eq!(parse(good).as_deref(), Ok(good));
            assert_eq!(parse(&format!("{good}/")).as_deref(), Ok(good));
        }
        for bad in
            ["127.0.0.1:9468", "https://a:1", "http://a", "http://:1", "http://a:0", "http://u@a:1", "http://a:1/b"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
