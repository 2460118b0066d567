//! The measurements of a run, and the table.

use serde::Serialize;

use super::choices::ChoiceRow;
use super::config::DevicesConfig;
use super::daemon::{DaemonRow, LARDER, Shape};
use super::hook::HookRow;
use super::mellanox;
use crate::side_by_side::LeftOut;
use larder_epochs::figures::{Goal, Latencies, Spread, goals_table};
use larder_epochs::table::figures_table;

/// The goals: a choice, an allocation and a response to the runtime (p99, milliseconds), memory, and CPU while idle.
const CHOICE_MS: f64 = 1.0;
const ALLOCATE_MS: f64 = 2.0;
const NRI_MS: f64 = 2.0;
const RSS_MIB: f64 = 20.0;
const IDLE_PERCENT: f64 = 0.1;

/// The measurements of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DevicesOutcome {
    pub config: DevicesConfig,
    /// The machine's load averages over 1, 5 and 15 minutes, before the run.
    pub load: [f64; 3],
    /// The same after the run.
    pub load_after: [f64; 3],
    /// The rows of the choices, within this process.
    pub choices: Vec<ChoiceRow>,
    /// The rows of the hook.
    pub hooks: Vec<HookRow>,
    /// The rows of the processes.
    pub daemons: Vec<DaemonRow>,
    /// The peer with the reason why it did not run; empty if it ran.
    pub left_out: Vec<LeftOut>,
}

impl DevicesOutcome {
    /// The tables that the benchmark prints: the figures with their goals, the calls, and the processes.
    pub fn table(&self) -> String {
        let DevicesConfig { calls, idle_seconds, rounds } = self.config;
        let mut text = format!("larder-devices on a fake machine, {rounds} rounds\n\n");
        text += &goals_table(&self.goals());
        text += &format!("\n{}\n{}", self.calls(), self.processes());
        text += &format!("\n{calls} calls of each kind, one after the other; idle for {idle_seconds} s.\n");
        for LeftOut { name, why } in &self.left_out {
            text += &format!("WITHOUT {name}: {why}\n");
        }
        text + &format!("Machine load: {:.1} before, {:.1} after.\n", self.load[0], self.load_after[0])
    }

    fn goals(&self) -> Vec<Goal> {
        let all_ours = || self.daemons.iter().filter(|row| row.system == LARDER);
        let ours = || all_ours().filter(|row| row.shape == Shape::GpusAndHcas);
        let p99s = |kind: &str| -> Vec<f64> {
            let calls = all_ours().flat_map(|row| &row.calls).filter(|row| row.call.starts_with(kind));
            calls.map(|row| row.times.p99 * 1e3).collect()
        };
        [
            ("8 of 16 GPUs chosen, p99, ms", self.choices.iter().map(|row| row.times.p99 * 1e3).collect(), CHOICE_MS),
            ("allocated over the socket, p99, ms", p99s("allocate"), ALLOCATE_MS),
            ("a container created, asked by NRI, p99, ms", p99s("NRI"), NRI_MS),
            ("resident memory, MiB", ours().map(DaemonRow::rss_mib).collect(), RSS_MIB),
            ("idle, % of a core", ours().map(DaemonRow::idle_percent).collect(), IDLE_PERCENT),
        ]
        .into_iter()
        .filter_map(|(figure, values, goal): (&str, Vec<f64>, f64)| {
            let Spread { median, min, max } = Spread::of(values)?;
            Some(Goal {
                figure: figure.to_owned(),
                measured: format!("{median:.3} ({min:.3}..{max:.3})"),
                goal: format!("<= {goal}"),
                is_met: median <= goal,
            })
        })
        .collect()
    }

    fn calls(&self) -> String {
        let row = |what: String, round: u32, times: &Latencies| {
            let times = [times.p50, times.p99, times.max].map(|seconds| format!("{:.3}", seconds * 1e3));
            [vec![what, round.to_string()], times.to_vec()].concat()
        };
        let head = ["milliseconds", "round", "p50", "p99", "longest"].map(str::to_owned).to_vec();
        let choices = self.choices.iter().map(|choice| {
            row(format!("in process: prefer 8 of 16 GPUs, {}", choice.links.name()), choice.round, &choice.times)
        });
        let hooks = self.hooks.iter().map(|hook| row("the hook, a process".to_owned(), hook.round, &hook.times));
        let calls = self.daemons.iter().flat_map(|daemon| {
            let what = |call| format!("{}: {call}, of {}", daemon.system, daemon.shape.name());
            daemon.calls.iter().map(move |call| row(what(call.call), daemon.round, &call.times))
        });
        figures_table(&[vec![head], choices.collect(), calls.collect(), hooks.collect()].concat())
    }

    fn processes(&self) -> String {
        let head = ["process", "round", "ready s", "RSS MiB", "peak MiB", "idle %", "RSS x peer", "load"];
        let head = head.map(str::to_owned).to_vec();
        let rows = self.daemons.iter().map(|daemon| {
            let peer = self
                .daemons
                .iter()
                .find(|peer| peer.system == mellanox::NAME && peer.shape == daemon.shape && peer.round == daemon.round);
            let ratio = peer.map_or(String::new(), |peer| format!("{:.2}", daemon.rss_mib() / peer.rss_mib()));
            vec![
                format!("{}, {}", daemon.system, daemon.shape.name()),
                daemon.round.to_string(),
                format!("{:.2}", daemon.ready_seconds),
                format!("{:.1}", daemon.rss_mib()),
                format!("{:.1}", daemon.usage.peak_rss_bytes as f64 / f64::from(1 << 20)),
                format!("{:.3}", daemon.idle_percent()),
                ratio,
                format!("{:.1}", daemon.load),
            ]
        });
        figures_table(&[vec![head], rows.collect()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::CallRow;
    use larder_epochs::process::Usage;

    fn daemon(system: &'static str, rss_mib: u64) -> DaemonRow {
        DaemonRow {
            round: 1,
            system,
            shape: Shape::ConfigList,
            ready_seconds: 0.5,
            calls: vec![CallRow { call: "allocate an HCA", times: Latencies::of([].into_iter()) }],
            usage: Usage { cpu_seconds: 1.0, rss_bytes: rss_mib << 20, peak_rss_bytes: rss_mib << 20 },
            idle_cpu_seconds: 0.03,
            idle_seconds: 60.0,
            load: 0.5,
        }
    }

    #[test]
    fn the_table_compares_with_the_peer_of_the_same_round_and_names_missing_peers() {
        let daemons = vec![daemon(LARDER, 12), daemon(mellanox::NAME, 48)];
        let mut outcome = DevicesOutcome { daemons, ..DevicesOutcome::default() };
        let table = outcome.table();
        assert!(table.contains("larder-devices, 16 resources x 256 IDs") && table.contains("0.25"), "{table}");
        assert!(table.contains("0.050") && !table.contains("WITHOUT"), "{table}");
        outcome.daemons.pop();
        outcome.left_out.push(LeftOut { name: mellanox::NAME.to_owned(), why: "it is not here".to_owned() });
        let table = outcome.table();
        assert!(table.contains("WITHOUT k8s-rdma-shared-dev-plugin: it is not here"), "{table}");
        assert!(!table.contains("0.25"), "{table}");
    }

    #[test]
    fn an_unmet_goal_is_marked_missed() {
        let mut ours = DaemonRow { shape: Shape::GpusAndHcas, ..daemon(LARDER, 21) };
        let row = |of: &DaemonRow| DevicesOutcome { daemons: vec![of.clone()], ..DevicesOutcome::default() }.table();
        assert!(row(&ours).contains("21.000 (21.000..21.000)") && row(&ours).contains("MISSED"), "{}", row(&ours));
        ours.usage.rss_bytes = 19 << 20;
        assert!(!row(&ours).contains("MISSED"), "{}", row(&ours));
    }
}
