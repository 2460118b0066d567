//! The flags of `larder-bench jobs`.

use clap::Args;
use larder_bench::jobs::Scenario;

use super::shared::{ClusterArgs, OnlyArgs, OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench jobs
  larder-bench jobs --nodes 100 --jobs 50 --gangs 5 --loaded-gangs 8 --scale 0.01 --rounds 1
  larder-bench jobs --only throughput --json jobs.json
  larder-bench jobs --only plan                        needs no cluster

The benchmark needs a cluster of its own: Kubernetes 1.36, Larder's definitions, and kwok, which
makes the fake nodes ready and runs their pods. As root, in Larder's repository (with Go, of which
Kubernetes, kwok, Kueue and coscheduling are built):
  cargo build --release -p larder-bench -p larder-controller
  tests/cluster/cluster.sh install
  tests/cluster/kwok.sh install
  tests/cluster/peers.sh install
  tests/cluster/kwok.sh start /tmp/kwok $$ pods
  tests/cluster/cluster.sh exec /tmp/kwok kubectl apply -k $PWD/deploy/crds
  tests/cluster/kueue.sh start /tmp/kwok jobs
  tests/cluster/peers.sh start /tmp/kwok
  tests/cluster/cluster.sh exec /tmp/kwok $PWD/target/release/larder-bench jobs
  tests/cluster/cluster.sh stop /tmp/kwok
Without one of the two peers it says so, and measures the rest. Commands in the cluster start in
the folder /, so they need absolute paths. The cluster ends with the shell that started it.

larder-controller runs as a process beside the benchmark, and only while it is its turn. A cluster
with nodes, TrainingJobs, Queues or a larder-controller of its own is refused. All objects are in
the namespace larder-bench, or their names begin with larder-bench; they are removed in the end,
after Ctrl-C too.")]
pub(crate) struct JobsArgs {
    #[command(flatten)]
    pub(crate) only: OnlyArgs<Scenario>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    /// Number of fake nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) nodes: u32,
    /// Number of jobs of one pod (throughput).
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=20_000))]
    pub(crate) jobs: u32,
    /// Number of gangs (throughput).
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=2_000))]
    pub(crate) gangs: u32,
    /// Pods of each gang.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) gang_size: u32,
    /// Number of gangs (gangs).
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub(crate) loaded_gangs: u32,
    /// The part of the jobs of Kueue's own scenario (cohorts).
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = part)]
    pub(crate) scale: f64,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A part of a whole, more than nothing.
fn part(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok(part),
        _ => Err("must be more than 0 and at most 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_more_than_nothing_and_at_most_all() {
        assert_eq!([part("0.1"), part("1")], [Ok(0.1), Ok(1.0)]);
        for wrong in ["0", "-1", "1.5", "nan", "much"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
    }
}
