//! The flags of `larder cluster`.

use clap::{Args, Subcommand};

use super::cluster::{ClusterArgs, plain_name};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder cluster list
  larder cluster describe west
  larder cluster join west --context west --home hq --allow team-a | kubectl --context hq apply -f -")]
pub(crate) struct ClustersArgs {
    #[command(subcommand)]
    pub(crate) what: ClustersCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClustersCommand {
    /// List the clusters that jobs may run in, with their free room.
    List(ListClustersArgs),
    /// Show one cluster: its room, its queues and the datasets that it holds.
    Describe(DescribeClusterArgs),
    /// Let a home run jobs in a cluster, and print the objects that the home needs for it.
    Join(JoinArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder cluster list
  larder cluster list --json | jq -r '.[] | select(.reachable) | .name'

Required permission: `list` on clusters.larder.dev.")]
pub(crate) struct ListClustersArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder cluster describe here
  larder cluster describe west --json | jq '.datasets'

Required permission: `get` on clusters.larder.dev.")]
pub(crate) struct DescribeClusterArgs {
    /// The Cluster; `here` is the cluster of the kubeconfig itself.
    #[arg(value_name = "NAME", value_parser = plain_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder cluster join west --context west --home hq --allow team-a --allow team-b > west.yaml
  kubectl --context hq apply -f west.yaml

--context chooses the cluster that is to run the jobs. There the command creates an account for the \
home, which may read the Cluster `here`, write its lease into it, and manage TrainingJobs in the \
allowed namespaces and nothing else. Repeat it to allow more namespaces or after the token was \
deleted; to end it: kubectl --context west delete serviceaccount -n larder-system home-hq. \
It prints a Secret with the kubeconfig of that account, the right of the home's controller to read \
it, and a Cluster. Both clusters need the component `clusters`. Required permissions: those of an \
administrator of the cluster.")]
pub(crate) struct JoinArgs {
    /// The name that the cluster gets at the home.
    #[arg(value_name = "NAME", value_parser = plain_name)]
    pub(crate) name: String,
    /// The name of the home, for its account in the cluster: at most 26 characters, and another for each home.
    #[arg(long, value_name = "NAME", value_parser = plain_name)]
    pub(crate) home: String,
    /// A namespace in which the home may run jobs; repeat it for more.
    #[arg(long, value_name = "NAMESPACE", required = true, value_parser = plain_name)]
    pub(crate) allow: Vec<String>,
    /// The URL of the cluster's API server, as the home reaches it. Default: the one in the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}
