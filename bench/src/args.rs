//! The flags of `larder-bench`, one file per benchmark.

mod controller;
mod devices;
mod extender;
mod far_origin;
mod fio;
mod import;
mod jobs;
mod loader;
mod memory;
mod meta;
mod mlperf;
mod outage;
mod peers;
mod peers_net;
mod plan;
mod restart;
mod shared;
mod spread;
mod sync;

use clap::{Parser, Subcommand};

pub(crate) use controller::ControllerArgs;
pub(crate) use devices::DevicesArgs;
pub(crate) use extender::ExtenderArgs;
pub(crate) use far_origin::FarOriginArgs;
pub(crate) use fio::FioArgs;
pub(crate) use import::ImportsArgs;
pub(crate) use jobs::JobsArgs;
pub(crate) use loader::LoaderArgs;
pub(crate) use memory::MemoryArgs;
pub(crate) use meta::MetaArgs;
pub(crate) use mlperf::MlperfArgs;
pub(crate) use outage::OutageArgs;
pub(crate) use peers::PeersArgs;
pub(crate) use peers_net::PeersNetArgs;
pub(crate) use plan::PlanArgs;
pub(crate) use restart::RestartArgs;
pub(crate) use shared::{NodeArgs, OutputArgs};
pub(crate) use spread::SpreadArgs;
pub(crate) use sync::SyncArgs;

/// Benchmarks of Larder's components and of comparable filesystems.
#[derive(Debug, Parser)]
#[command(name = "larder-bench", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare Larder with every installed peer filesystem over an embedded S3 (needs root).
    Peers(PeersArgs),
    /// Compare directory walks and file lookups of Larder and every installed peer (needs root).
    Meta(MetaArgs),
    /// Run fio over Larder and every installed peer (needs root).
    Fio(FioArgs),
    /// Run PyTorch's DataLoader over Larder and every installed peer (needs root).
    Loader(LoaderArgs),
    /// Run MLPerf Storage's training workloads over Larder and every installed peer (needs root).
    Mlperf(MlperfArgs),
    /// Import generated objects and a directory: keys/s, memory, disk, and mounting the manifest (needs root).
    Import(ImportsArgs),
    /// Compare reads from another node's cache with raw TCP and with the origin, over loopback.
    PeersNet(PeersNetArgs),
    /// Read one large file on several nodes at once: bytes from the origin, and the time beside one node (needs root).
    Spread(SpreadArgs),
    /// Compare a cold epoch and a warm-up behind a distant S3 server with object_store (needs root).
    FarOrigin(FarOriginArgs),
    /// Read with plans and without, behind a distant S3 server: speed, stalls, GETs, CPU (needs root).
    Plan(PlanArgs),
    /// Compare copies of a dataset to another S3 server with object_store and rclone.
    Sync(SyncArgs),
    /// Measure cached reads while the origin does not answer and many other reads hang (needs root).
    Outage(OutageArgs),
    /// Restart larderd under many mounts: time to the first cached read and to the last mount (needs root).
    Restart(RestartArgs),
    /// Measure larderd's memory while many datasets are read cold at once (needs root).
    Memory(MemoryArgs),
    /// Measure larder-controller on fake nodes: time to ready, API writes, memory, CPU, labels, restarts.
    Controller(ControllerArgs),
    /// Measure training jobs on fake nodes and compare with Kueue: jobs/min, API writes, preemption, planning.
    Jobs(JobsArgs),
    /// Measure the scheduler extender: response times, pods/s with and without it, placement, wake-up times.
    Extender(ExtenderArgs),
    /// Measure larder-devices on a fake machine and compare with another plugin: allocation, memory, CPU (needs root).
    Devices(DevicesArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn peers(args: &[&str]) -> Result<PeersArgs, String> {
        let all = [&["larder-bench", "peers"], args].concat();
        match Cli::try_parse_from(all).map_err(|error| error.to_string())?.command {
            Command::Peers(args) => Ok(args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_file_is_at_most_as_large_as_the_benchmark_of_a_node_reads_at_once() {
        let parse = |benchmark, size| Cli::try_parse_from(["larder-bench", benchmark, "--file-size", size]);
        for (benchmark, most, more) in
            [("restart", "1MiB", "1048577"), ("outage", "1MiB", "1048577"), ("memory", "4MiB", "4194305")]
        {
            parse(benchmark, most).unwrap();
            for wrong in [more, "0"] {
                let error = parse(benchmark, wrong).unwrap_err().to_string();
                assert!(error.contains("--file-size") && error.contains(most), "{benchmark} {wrong}: {error}");
            }
        }
    }

    #[test]
    fn lists_of_readers_and_names_are_split_and_checked() {
        let args = peers(&["--readers", "2,8", "--only", "ext4,larder packed", "--mean-size", "1MB"]).unwrap();
        assert_eq!((args.readers, args.mean_size, args.systems.rounds.rounds), (vec![2, 8], 1_000_000, 5));
        assert_eq!(args.systems.only, ["ext4", "larder packed"]);
        assert_eq!(peers(&[]).unwrap().readers, [1, 4, 16]);
        for wrong in [["--readers", "0"], ["--files", "3"], ["--rounds", "0"], ["--mean-size", "big"]] {
            assert!(peers(&wrong).unwrap_err().contains(wrong[0]), "{wrong:?}");
        }
    }
}
