//! The settings of a run, its measurements, their goals, and the table.

use std::fmt;

use serde::Serialize;

pub use larder_epochs::figures::Latencies;
use larder_epochs::figures::{Goal, Spread, goals_table};
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ControllerConfig {
    /// Number of fake nodes.
    pub nodes: u32,
    /// Number of Datasets.
    pub datasets: u32,
    /// Number of nodes that hold each Dataset (`spec.nodes.count`).
    pub count: u32,
    /// Number of controller restarts.
    pub restarts: u32,
    /// How long the idle controller is measured.
    pub rest_seconds: u64,
}

/// The controller's writes with one verb to one resource.
#[derive(Clone, Debug, Serialize)]
pub struct WriteRow {
    /// The resource as in the API's paths, including `/status`.
    pub resource: String,
    /// `create`, `patch` or `delete`.
    pub verb: String,
    /// Number of writes.
    pub count: u64,
}

/// The idle controller.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rest {
    /// The duration of the measurement.
    pub seconds: f64,
    /// Writes, excluding the Lease.
    pub writes: u64,
    /// Fraction of a core.
    pub cpu: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// One restart.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Restart {
    /// Seconds from the start of the process to its first decision about a Dataset.
    pub first_seconds: f64,
    /// Seconds from the start of the process until it has made one decision per Dataset.
    pub all_seconds: f64,
    /// Writes after the restart. Nothing has changed, so a perfect controller makes none.
    pub writes: u64,
    /// Peak resident memory.
    pub peak_rss_bytes: u64,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first_seconds, all_seconds, writes, .. } = self;
        write!(f, "restart: first decision after {first_seconds:.2} s, all after {all_seconds:.2} s, {writes} writes")
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ControllerOutcome {
    pub config: ControllerConfig,
    /// The machine's load averages over 1, 5 and 15 minutes, before the run.
    pub load: [f64; 3],
    /// The same after the run.
    pub load_after: [f64; 3],
    /// Seconds that the creation of the Datasets took.
    pub created_seconds: f64,
    /// Seconds from the first creation until all Datasets were ready.
    pub ready_seconds: f64,
    /// Seconds from the creation of each Dataset until it was ready.
    pub ready: Latencies,
    /// The controller's CPU time until it was idle.
    pub cpu_seconds: f64,
    /// The controller's decisions until it was idle.
    pub decisions: u64,
    /// The controller's failed writes.
    pub write_errors: u64,
    /// The controller's peak resident memory until it was idle.
    pub peak_rss_bytes: u64,
    /// The controller's writes until it was idle.
    pub writes: Vec<WriteRow>,
    /// Writes by the fake platform.
    pub platform_writes: u64,
    /// Errors of the benchmark's own watches. Events that arrived during an error were recorded late.
    pub watch_errors: Vec<String>,
    /// Seconds from the last byte on a node to the node's label.
    pub fill_to_label: Latencies,
    /// Seconds from the deletion of a Dataset to the removal of its label from each node.
    pub delete_to_unlabelled: Latencies,
    /// Seconds from the deletion of a Dataset to its disappearance from the API.
    pub delete_to_gone: Latencies,
    /// The idle controller.
    pub rest: Rest,
    pub restarts: Vec<Restart>,
}

impl ControllerOutcome {
    fn all_writes(&self) -> u64 {
        self.writes.iter().map(|row| row.count).sum()
    }

    fn goals(&self) -> Vec<Goal> {
        let ControllerConfig { datasets, count, .. } = self.config;
        let most = |value: f64, most: f64| (format!("<= {most}"), value <= most);
        let mut goals = Vec::new();
        let mut add = |figure: &str, measured, (goal, is_met)| {
            goals.push(Goal { figure: figure.to_owned(), measured, goal, is_met });
        };
        add("all Ready, s", format!("{:.1}", self.ready_seconds), most(self.ready_seconds, 300.0));
        let a_dataset = self.all_writes() as f64 / f64::from(datasets.max(1));
        add("writes a dataset", format!("{a_dataset:.1}"), most(a_dataset, 10.0 + 3.0 * f64::from(count)));
        add("writes at rest", self.rest.writes.to_string(), most(self.rest.writes as f64, 0.0));
        let peak = self.restarts.iter().map(|restart| restart.peak_rss_bytes).max().unwrap_or_default();
        let peak = peak.max(self.peak_rss_bytes) as f64 / f64::from(1 << 20);
        add("memory at its peak, MiB", format!("{peak:.0}"), most(peak, 150.0));
        let cpu = self.rest.cpu * 100.0;
        add("CPU at rest, % of a core", format!("{cpu:.2}"), most(cpu, 2.0));
        for (figure, times) in [
            ("fill to label, s, p99", &self.fill_to_label),
            ("delete to label gone, s, p99", &self.delete_to_unlabelled),
        ] {
            let Latencies { p50, p99, max, .. } = times;
            add(figure, format!("{p99:.1} (p50 {p50:.1}, longest {max:.1})"), most(*p99, 15.0));
        }
        if let Some(first) = Spread::of(self.restarts.iter().map(|restart| restart.first_seconds)) {
            let Spread { median, min, max } = first;
            add("restart to first reconcile, s", format!("{median:.2} ({min:.2}..{max:.2})"), most(max, 5.0));
        }
        goals
    }

    /// The table that the benchmark prints: the figures with their goals, then the writes.
    pub fn table(&self) -> String {
        let ControllerConfig { nodes, datasets, count, rest_seconds, .. } = self.config;
        let mut text = format!(
            "{datasets} Datasets on {count} of {nodes} fake nodes each; imports, warming pods and larderds are \
             simulated\n\n"
        );
        text += &goals_table(&self.goals());

        text += "\nWrites to the API until the controller was idle, excluding the Lease\n";
        let holders = f64::from(datasets) * f64::from(count);
        let mut table =
            vec![["resource", "verb", "all", "a dataset", "a node that holds it"].map(str::to_owned).to_vec()];
        let mut add = |resource: &str, verb: &str, all: u64| {
            let each = |of: f64| format!("{:.2}", all as f64 / of.max(1.0));
            let row = [resource.to_owned(), verb.to_owned(), all.to_string(), each(datasets.into()), each(holders)];
            table.push(row.to_vec());
        };
        for row in &self.writes {
            add(&row.resource, &row.verb, row.count);
        }
        add("all", "", self.all_writes());
        text += &figures_table(&table);

        let seconds = |restart: fn(&Restart) -> f64| Spread::of(self.restarts.iter().map(restart));
        let all = seconds(|restart| restart.all_seconds).map_or_else(String::new, |all| {
            format!("; all reconciled after {:.2} ({:.2}..{:.2}) s", all.median, all.min, all.max)
        });
        let writes: u64 = self.restarts.iter().map(|restart| restart.writes).sum();
        text += &format!(
            "\nCreated in {:.1} s; each Ready after {}. Until rest: {:.1} s of CPU, {} decisions, {} failed writes; {} \
             writes by the fake platform.\nAt rest for {rest_seconds} s: {:.0} MiB resident. {} restarts: {writes} \
             writes{all}. Deleted to gone: {}.\nMachine load: {:.1} before, {:.1} after.\n",
            self.created_seconds,
            self.ready,
            self.cpu_seconds,
            self.decisions,
            self.write_errors,
            self.platform_writes,
            self.rest.rss_bytes as f64 / f64::from(1 << 20),
            self.restarts.len(),
            self.delete_to_gone,
            self.load[0],
            self.load_after[0],
        );
        if let Some(last) = self.watch_errors.last() {
            text += &format!(
                "WARNING: the benchmark's own watches failed {} times, so some times may be too long; the last error: {last}\n",
                self.watch_errors.len()
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outcome() -> ControllerOutcome {
        let seconds = |count: u64| Latencies::of((1..=count).map(Duration::from_secs));
        let row = |resource: &str, verb: &str, count| WriteRow { resource: resource.into(), verb: verb.into(), count };
        let restart = |first_seconds| Restart { first_seconds, all_seconds: 2.0, writes: 0, peak_rss_bytes: 90 << 20 };
        ControllerOutcome {
            config: ControllerConfig { nodes: 20, datasets: 10, count: 2, restarts: 2, rest_seconds: 60 },
            ready_seconds: 301.0,
            writes: vec![row("jobs", "create", 30), row("datasets/status", "patch", 50)],
            fill_to_label: seconds(10),
            delete_to_unlabelled: seconds(100),
            rest: Rest { seconds: 60.0, writes: 0, cpu: 0.0125, rss_bytes: 50 << 20 },
            peak_rss_bytes: 80 << 20,
            restarts: vec![restart(0.5), restart(1.5)],
            ..ControllerOutcome::default()
        }
    }

    #[test]
    fn each_figure_is_shown_with_its_goal() {
        let table = outcome().table();
        let line = |start: &str| {
            let line = table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {table}"));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("all Ready"), "all Ready, s 301.0 <= 300 MISSED");
        assert_eq!(line("writes a dataset"), "writes a dataset 8.0 <= 16 met");
        assert_eq!(line("writes at rest"), "writes at rest 0 <= 0 met");
        assert_eq!(line("memory"), "memory at its peak, MiB 90 <= 150 met");
        assert_eq!(line("CPU at rest"), "CPU at rest, % of a core 1.25 <= 2 met");
        assert_eq!(line("fill to label"), "fill to label, s, p99 10.0 (p50 6.0, longest 10.0) <= 15 met");
        assert_eq!(
            line("delete to label"),
            "delete to label gone, s, p99 100.0 (p50 51.0, longest 100.0) <= 15 MISSED"
        );
        assert_eq!(line("restart to first"), "restart to first reconcile, s 1.00 (0.50..1.50) <= 5 met");
        assert_eq!(line("jobs"), "jobs create 30 3.00 1.50");
        assert_eq!(line("all  "), "all 80 8.00 4.00");
    }
}
