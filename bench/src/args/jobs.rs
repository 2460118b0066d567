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
  larder-bench jobs --only plan                        without a cluster

The benchmark needs its own cluster: Kubernetes 1.36, Larder's CRDs, and kwok, which marks the fake
nodes ready and simulates their pods. As root, in Larder's repository (building Kubernetes, kwok,
Kueue and coscheduling requires Go):
  cargo build --release -p larder-bench -p larder-controller
  tests/cluster/cluster.sh install
  tests/cluster/kwok.sh install
  tests/cluster/peers.sh install
  tests/cluster/kwok.sh start /tmp/kwok $$ pods
  tests/cluster/cluster.sh exec /tmp/kwok kubectl apply -k $PWD/deploy/crds
  tests/cluster/cluster.sh exec /tmp/kwok kubectl wait --for=condition=Established crd --all
  tests/cluster/kueue.sh start /tmp/kwok jobs
  tests/cluster/peers.sh start /tmp/kwok
  tests/cluster/cluster.sh exec /tmp/kwok $PWD/target/release/larder-bench jobs
  tests/cluster/cluster.sh stop /tmp/kwok
A missing Kueue or coscheduling is reported, and the rest is measured. `cluster.sh exec` runs
commands in /, so paths must be absolute. The cluster stops with the shell that started it.

larder-controller runs as a separate process, and only while it is measured. A cluster that already
has nodes, TrainingJobs, Queues or a larder-controller is refused. All objects are in the namespace
larder-bench or have names that begin with larder-bench; they are removed at the end, even after
Ctrl-C.")]
pub(crate) struct JobsArgs {
    #[command(flatten)]
    pub(crate) only: OnlyArgs<Scenario>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    /// Number of fake nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) nodes: u32,
    /// Number of single-pod jobs (throughput).
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=20_000))]
    pub(crate) jobs: u32,
    /// Number of gangs (throughput).
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=2_000))]
    pub(crate) gangs: u32,
    /// Number of pods per gang.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) gang_size: u32,
    /// Number of gangs (gangs).
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub(crate) loaded_gangs: u32,
    /// Fraction of the jobs of Kueue's benchmark to run (cohorts).
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = fraction)]
    pub(crate) scale: f64,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Parses a fraction above 0.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(fraction),
        _ => Err("must be more than 0 and at most 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_above_0_and_at_most_1() {
        assert_eq!([fraction("0.1"), fraction("1")], [Ok(0.1), Ok(1.0)]);
        for wrong in ["0", "-1", "1.5", "nan", "much"] {
            assert!(fraction(wrong).is_err(), "{wrong}");
        }
    }
}
