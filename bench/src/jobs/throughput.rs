//! How many jobs per minute have all their pods bound, and how many API writes that takes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::api_writes;
use super::turn::{Ground, System, Turn, Wish};
use super::work::Work;
use crate::controller::WriteRow;
use crate::kubernetes::objects::NAMESPACE;
use larder_epochs::figures::{Goal, Latencies, Spread, machine_load};
use larder_epochs::process::Usage;
use larder_epochs::table::figures_table;

/// The timeout of a turn.
const LONGEST: Duration = Duration::from_secs(1800);

/// The verb of pods that are created as a dry run. There is one for each role of a job, so they count per job, not per
/// pod.
const TRIED: &str = "try";

/// The goals: jobs per minute, the fraction of the rate of pods that are created directly, the ratio to Kueue, writes
/// per job, and writes per pod.
const JOBS_A_MINUTE: f64 = 2500.0;
const FRACTION: f64 = 0.8;
const RATIO: f64 = 2.0;
const WRITES_A_JOB: f64 = 4.0;
const WRITES_A_POD: f64 = 1.0;

/// The jobs of this scenario.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sizes {
    /// Number of jobs of one pod.
    pub jobs: u32,
    /// Number of jobs of several pods.
    pub gangs: u32,
    /// Number of pods of each gang.
    pub gang_size: u32,
}

impl Sizes {
    fn all(&self) -> u32 {
        self.jobs + self.gangs
    }

    /// Number of pods of all jobs.
    pub fn pods(&self) -> u32 {
        self.jobs + self.gangs * self.gang_size
    }

    /// All jobs, with the gangs spread evenly among the jobs of one pod.
    fn works(&self) -> Vec<Work> {
        let gangs_before = |nth: u32| u64::from(nth) * u64::from(self.gangs) / u64::from(self.all().max(1));
        let work = |nth| {
            let is_gang = gangs_before(nth + 1) > gangs_before(nth);
            let (name, pods) = if is_gang { ("gang", self.gang_size) } else { ("job", 1) };
            Work::new(format!("{name}-{nth:05}"), pods, NAMESPACE)
        };
        (0..self.all()).map(work).collect()
    }
}

/// One turn of a system.
#[derive(Clone, Debug, Serialize)]
pub struct ThroughputRow {
    pub system: System,
    /// The machine's one-minute load average before the turn.
    pub load: f64,
    /// Seconds that the creation of the jobs took.
    pub created_seconds: f64,
    /// Seconds from the first creation until the last pod was bound.
    pub bound_seconds: f64,
    /// Seconds from the creation of each job until its last pod was bound.
    pub bound: Latencies,
    /// Jobs divided by `bound_seconds`, per minute.
    pub jobs_a_minute: f64,
    /// Pods divided by `bound_seconds`, per minute.
    pub pods_a_minute: f64,
    /// API writes of all clients until the last pod was bound.
    pub api_writes: u64,
    /// CPU time of larder-controller until the last pod was bound; `None` for other systems.
    pub controller_cpu_seconds: Option<f64>,
    /// Writes of larder-controller until all pods ran and it was idle.
    pub writes: Vec<WriteRow>,
    /// Failed writes of larder-controller.
    pub write_errors: u64,
}

impl fmt::Display for ThroughputRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system, bound_seconds, jobs_a_minute, .. } = self;
        write!(f, "{}: all bound in {bound_seconds:.1} s, {jobs_a_minute:.0} jobs/min", system.name())
    }
}

/// Measures one turn of a system.
pub(super) async fn measure(ground: Ground<'_>, system: System, sizes: Sizes) -> anyhow::Result<ThroughputRow> {
    let works = sizes.works();
    let queue = Wish::ample([("cpu", (sizes.pods() * 2, 0))].into());
    let mut turn = Turn::begin(ground, system, &[queue]).await?;
    let row = turn_of(ground, &mut turn, system, sizes, &works).await;
    let ended = turn.end().await;
    let row = row?;
    ended?;
    Ok(row)
}

async fn turn_of(
    ground: Ground<'_>,
    turn: &mut Turn<'_>,
    system: System,
    sizes: Sizes,
    works: &[Work],
) -> anyhow::Result<ThroughputRow> {
    let load = machine_load()[0];
    let id: Vec<u32> = turn.controller.iter().map(|controller| controller.id()).collect();
    let (writes, usage) = (api_writes::count(ground.client).await?, Usage::of(&id));
    let figures = match &mut turn.controller {
        Some(controller) => controller.figures().await?.writes(),
        None => BTreeMap::new(),
    };
    let started = Instant::now();
    let sent = turn.submit(works).await?;
    let created_seconds = started.elapsed().as_secs_f64();
    let pods = sizes.pods() as usize;
    turn.until("all pods are bound", LONGEST, |seen| seen.bound() >= pods).await?;
    let api_writes = api_writes::count(ground.client).await? - writes;
    let cpu = Usage::of(&id).cpu_seconds - usage.cpu_seconds;

    let wanted: BTreeMap<&str, u32> = works.iter().map(|work| (work.name.as_str(), work.pods)).collect();
    let placed = turn.observer.pods().placed(|work| wanted.get(work).copied());
    let last = placed.values().max().copied().context("no job was placed")?;
    let bound_seconds = last.duration_since(started).as_secs_f64();
    let times = placed.iter().filter_map(|(work, at)| Some(at.saturating_duration_since(*sent.get(work)?)));
    let mut row = ThroughputRow {
        system,
        load,
        created_seconds,
        bound_seconds,
        bound: Latencies::of(times),
        jobs_a_minute: f64::from(sizes.all()) * 60.0 / bound_seconds,
        pods_a_minute: f64::from(sizes.pods()) * 60.0 / bound_seconds,
        api_writes,
        controller_cpu_seconds: turn.controller.is_some().then_some(cpu),
        writes: Vec::new(),
        write_errors: 0,
    };
    if turn.controller.is_some() {
        let running = |seen: &super::pods::Pods| seen.all().filter(|pod| pod.running.is_some()).count() >= pods;
        turn.until(
            "all pods are running: check that kwok simulates pods (kwok.sh start DIR OWNER pods)",
            LONGEST,
            running,
        )
        .await?;
        rest(turn, &figures, &mut row).await?;
    }
    Ok(row)
}

/// Waits until the controller is idle, and adds its writes since `before` to the row.
async fn rest(
    turn: &mut Turn<'_>,
    before: &BTreeMap<(String, String), u64>,
    row: &mut ThroughputRow,
) -> anyhow::Result<()> {
    let Some(figures) = turn.rest().await? else { return Ok(()) };
    row.write_errors = figures.get("write_errors_total");
    let grown = figures.writes().into_iter().map(|((resource, verb), count)| {
        let before = before.get(&(resource.clone(), verb.clone())).copied().unwrap_or_default();
        WriteRow { resource, verb, count: count - before }
    });
    row.writes = grown.filter(|row| row.count > 0).collect();
    Ok(())
}

/// The writes of a row: those for pods, then all others.
fn split(row: &ThroughputRow) -> (u64, u64) {
    let is_a_pods = |row: &&WriteRow| row.resource == "pods" && row.verb != TRIED;
    let (pods, others): (Vec<_>, Vec<_>) = row.writes.iter().partition(is_a_pods);
    let count = |rows: Vec<&WriteRow>| rows.iter().map(|row| row.count).sum();
    (count(pods), count(others))
}

fn rates(rows: &[ThroughputRow], system: System) -> Option<Spread> {
    Spread::of(rows.iter().filter(|row| row.system == system).map(|row| row.jobs_a_minute))
}

pub(super) fn goals(rows: &[ThroughputRow], sizes: Sizes) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut add = |figure: &str, measured: String, goal: String, is_met| {
        goals.push(Goal { figure: figure.to_owned(), measured, goal, is_met });
    };
    let Some(ours) = rates(rows, System::Larder) else { return goals };
    let shown = format!("{:.0} ({:.0}..{:.0})", ours.median, ours.min, ours.max);
    add("jobs/min to the last bind", shown, format!(">= {JOBS_A_MINUTE}"), ours.median >= JOBS_A_MINUTE);
    if let Some(floor) = rates(rows, System::Direct) {
        let part = ours.median / floor.median;
        add("  fraction of the API server's rate", format!("{part:.2}"), format!(">= {FRACTION}"), part >= FRACTION);
    }
    if let Some(kueue) = rates(rows, System::Kueue) {
        let ratio = ours.median / kueue.median;
        add("  beside Kueue", format!("{ratio:.2} x"), format!(">= {RATIO} x"), ratio >= RATIO);
    }
    let (mut pods, mut others): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(|row| row.system == System::Larder) {
        let (of_pods, of_others) = split(row);
        pods.push(of_pods as f64 / f64::from(sizes.pods().max(1)));
        others.push(of_others as f64 / f64::from(sizes.all().max(1)));
    }
    for (figure, writes, most) in [("writes per job", others, WRITES_A_JOB), ("writes per pod", pods, WRITES_A_POD)] {
        let most_seen = writes.into_iter().fold(0.0, f64::max);
        add(figure, format!("{most_seen:.2}"), format!("<= {most}"), most_seen <= most);
    }
    goals
}

/// The row of each turn, then Larder's writes in its last turn.
pub(super) fn table(rows: &[ThroughputRow], sizes: Sizes) -> String {
    let Sizes { jobs, gangs, gang_size } = sizes;
    let mut text = format!("{jobs} jobs of 1 pod and {gangs} gangs of {gang_size}, one system after another\n");
    let head =
        ["system", "created s", "bound s", "jobs/min", "pods/min", "job p50 s", "p99 s", "writes per pod", "load"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let writes = row.api_writes as f64 / f64::from(sizes.pods().max(1));
        let numbers = [
            format!("{:.1}", row.created_seconds),
            format!("{:.1}", row.bound_seconds),
            format!("{:.0}", row.jobs_a_minute),
            format!("{:.0}", row.pods_a_minute),
            format!("{:.1}", row.bound.p50),
            format!("{:.1}", row.bound.p99),
            format!("{writes:.1}"),
            format!("{:.1}", row.load),
        ];
        table.push([vec![row.system.name().to_owned()], numbers.to_vec()].concat());
    }
    text += &figures_table(&table);
    text += "writes per pod: by all clients, including the scheduler, kwok and Kubernetes' controllers, until the last bind\n";
    let Some(ours) = rows.iter().rev().find(|row| row.system == System::Larder) else { return text };
    text += "\nWrites of larder-controller until it was idle, excluding the Lease\n";
    let mut table = vec![["resource", "verb", "all", "a job", "a pod"].map(str::to_owned).to_vec()];
    for WriteRow { resource, verb, count } in &ours.writes {
        let each = |of: u32| format!("{:.2}", *count as f64 / f64::from(of.max(1)));
        table.push(vec![resource.clone(), verb.clone(), count.to_string(), each(sizes.all()), each(sizes.pods())]);
    }
    text += &figures_table(&table);
    text += &format!(
        "{} failed; {:.1} s of CPU until the last bind\n",
        ours.write_errors,
        ours.controller_cpu_seconds.unwrap_or_default()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { jobs: 20, gangs: 2, gang_size: 5 };

    fn row(system: System, jobs_a_minute: f64) -> ThroughputRow {
        let write = |resource: &str, count| WriteRow { resource: resource.into(), verb: "create".into(), count };
        let writes = if system == System::Larder { vec![write("pods", 30), write("services", 2)] } else { vec![] };
        ThroughputRow {
            system,
            load: 1.0,
            created_seconds: 1.0,
            bound_seconds: 2.0,
            bound: Latencies::default(),
            jobs_a_minute,
            pods_a_minute: 100.0,
            api_writes: 300,
            controller_cpu_seconds: None,
            writes,
            write_errors: 0,
        }
    }

    #[test]
    fn gangs_are_spread_among_the_jobs() {
        let works = SIZES.works();
        let gangs: Vec<usize> = (0..works.len()).filter(|nth| works[*nth].pods == 5).collect();
        assert_eq!((works.len(), gangs), (22, vec![10, 21]));
        assert_eq!(works.iter().map(|work| work.pods).sum::<u32>(), SIZES.pods());
        assert_eq!(works.iter().map(|work| &work.name).collect::<std::collections::BTreeSet<_>>().len(), 22);
    }

    #[test]
    fn the_ratio_is_of_medians() {
        let rows = [(System::Larder, 100.0), (System::Kueue, 40.0), (System::Larder, 3000.0), (System::Larder, 80.0)];
        let goals = goals(&rows.map(|(system, rate)| row(system, rate)), SIZES);
        let shown: Vec<_> =
            goals.iter().map(|goal| (goal.figure.trim(), goal.measured.as_str(), goal.is_met)).collect();
        assert_eq!(
            shown,
            [
                ("jobs/min to the last bind", "100 (80..3000)", false),
                ("beside Kueue", "2.50 x", true),
                ("writes per job", "0.09", true),
                ("writes per pod", "1.00", true),
            ]
        );
    }

    #[test]
    fn writes_are_shown_per_job_and_per_pod() {
        let table = table(&[row(System::Direct, 50.0), row(System::Larder, 100.0)], SIZES);
        let line = |start: &str| {
            let line = table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {table}"));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("pods created"), "pods created directly 1.0 2.0 50 100 0.0 0.0 10.0 1.0");
        assert_eq!(line("services"), "services create 2 0.09 0.07");
    }

    #[test]
    fn dry_run_pods_count_as_writes_per_job() {
        let mut row = row(System::Larder, 1.0);
        row.writes.push(WriteRow { resource: "pods".to_owned(), verb: TRIED.to_owned(), count: 5 });
        assert_eq!(split(&row), (30, 7));
    }
}
