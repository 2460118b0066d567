//! The flags of `larder explain`.

use std::fmt;
use std::str::FromStr;

use clap::{Args, Subcommand};
use larder_api::names::DatasetKey;

use super::cluster::{ClusterArgs, NamespaceArgs, ObjectName};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain dataset team-a/imagenet
  larder explain job team-a/resnet
  larder explain job resnet --context training --json | jq -r .sentence
  larder explain pod team-a/notebook")]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) what: Explained,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Explained {
    /// Say in one sentence why a Dataset is ready or not, what happens next, and what to do.
    Dataset(ExplainDatasetArgs),
    /// Say in one sentence what a TrainingJob waits for, how it runs or how it ended, and what to do.
    Job(ExplainJobArgs),
    /// Say in one sentence why a pod went to its node or waits, and how good each node is for it.
    Pod(ExplainPodArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain dataset team-a/imagenet
  larder explain dataset team-a/imagenet --context training --json | jq -r .sentence

It reads the Dataset and nothing else, with the rights of the kubeconfig (`get` on datasets.larder.dev).")]
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

It reads the TrainingJob (`get` on trainingjobs.larder.dev). With the rights to `list` the
TrainingJobs of all namespaces, queues.larder.dev and priorityclasses.scheduling.k8s.io, it also
says what the queue lacks, which jobs are before it and which one ends next.")]
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

SCORE is 0 to 10. The columns after it are the tenths behind it, `-` where a reason does not
count: DATA is cached there; WARMING, with what is being fetched there; SHARED, the part of what
nodes share that is in its zone; ZONE and RACK, the part of the pod's group
that runs there; WHOLE, whether devices that training jobs wait for stay together. The scheduler
has other reasons beside these.

The extender knows its last decisions. It is asked in its pods in larder-system, which needs the
rights `list` on pods and `get` and `create` on pods/portforward there, and `get` on the pod itself.
`larder-scheduler-ext replay` takes what --json prints.")]
pub(crate) struct ExplainPodArgs {
    /// The pod, NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub(crate) pod: ObjectName,
    /// The extender to ask, such as one that the cluster's own scheduler asks. Default: those of larder-system.
    #[arg(long, value_name = "http://HOST:PORT")]
    pub(crate) extender: Option<ExtenderUrl>,
    /// Show all nodes, and not just the 20 best.
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

/// Where an extender listens, without TLS.
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
            None => Err("is not where an extender listens: write http://HOST:PORT"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extender_is_named_by_host_and_port() {
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
