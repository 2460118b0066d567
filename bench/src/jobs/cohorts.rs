//! Kueue's own scenario (test/performance/scheduler of v0.14.0): 30 queues in 5 cohorts, 15,000 jobs of three sizes.
//!
//! Kueue runs it without pods and allows 351 s of wall time. Here each job is a pod that kwok runs, and each system
//! gets the same creation times, sizes, running times and priorities.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::pods::Pods;
use super::turn::{Ground, System, Turn, Wish};
use super::work::{Priority, Work};
use crate::kubernetes::objects::NAMESPACE;
use larder_epochs::figures::{Latencies, machine_load};
use larder_epochs::table::figures_table;

const COHORTS: u32 = 5;
const QUEUES: u32 = 6;
/// The nominal CPUs of each queue, and its borrowing limit.
const NOMINAL: u32 = 20;
const BORROW: u32 = 100;

/// The timeout of a turn.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// The jobs of one size in each queue.
struct Class {
    name: &'static str,
    count: u32,
    every: Duration,
    runs_for: Duration,
    priority: Priority,
    cpus: u32,
}

const fn class(name: &'static str, count: u32, ms: [u64; 2], priority: Priority, cpus: u32) -> Class {
    let [every, runs_for] = [Duration::from_millis(ms[0]), Duration::from_millis(ms[1])];
    Class { name, count, every, runs_for, priority, cpus }
}

const CLASSES: [Class; 3] = [
    class("small", 350, [100, 200], Priority::Low, 1),
    class("medium", 100, [500, 500], Priority::Middle, 5),
    class("large", 50, [1200, 1000], Priority::High, 20),
];

/// The waiting times of the jobs of one size.
#[derive(Clone, Debug, Serialize)]
pub struct ClassWait {
    /// `small`, `medium` or `large`.
    pub class: &'static str,
    /// The mean, in seconds.
    pub mean: f64,
    /// Seconds from the creation of each job until its pod was bound.
    pub wait: Latencies,
}

/// One turn of a system.
#[derive(Clone, Debug, Serialize)]
pub struct CohortsRow {
    pub system: System,
    /// The machine's one-minute load average before the turn.
    pub load: f64,
    /// Number of jobs.
    pub jobs: usize,
    /// Seconds from the first creation until the last pod ended.
    pub wall_seconds: f64,
    /// Seconds from the first creation to the last. On a fast enough machine it is 60 s at scale 1.
    pub created_seconds: f64,
    /// One entry per size.
    pub waits: Vec<ClassWait>,
    /// The fraction of all quota that bound pods used during `wall_seconds`.
    pub quota_use: f64,
}

impl fmt::Display for CohortsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system, jobs, wall_seconds, quota_use, .. } = self;
        write!(f, "{}: {jobs} jobs in {wall_seconds:.1} s, quota use {:.0} %", system.name(), quota_use * 100.0)
    }
}

fn queue(cohort: u32, queue: u32) -> String {
    format!("{NAMESPACE}-{cohort}-{queue}")
}

fn queues() -> Vec<(u32, u32)> {
    (0..COHORTS).flat_map(|cohort| (0..QUEUES).map(move |queue| (cohort, queue))).collect()
}

/// The jobs in the order of their creation: this fraction of each queue and size, but at least one job of each.
fn works(scale: f64) -> Vec<Work> {
    let mut works = Vec::new();
    for (cohort, nth) in queues() {
        for class in &CLASSES {
            let count = ((f64::from(class.count) * scale).round() as u32).max(1);
            works.extend((0..count).map(|at| Work {
                cpus: class.cpus,
                priority: Some(class.priority),
                runs_for: Some(class.runs_for),
                due: class.every * at,
                ..Work::new(format!("{}-{cohort}-{nth}-{at}", class.name), 1, &queue(cohort, nth))
            }));
        }
    }
    works.sort_by_key(|work| work.due);
    works
}

/// Measures one turn of a system.
pub(super) async fn measure(ground: Ground<'_>, system: System, scale: f64) -> anyhow::Result<CohortsRow> {
    let wish = |(cohort, nth)| Wish {
        name: queue(cohort, nth),
        cohort: Some(format!("{NAMESPACE}-{cohort}")),
        quota: [("cpu", (NOMINAL, BORROW))].into(),
    };
    let wishes: Vec<Wish> = queues().into_iter().map(wish).collect();
    let mut turn = Turn::begin(ground, system, &wishes).await?;
    let row = turn_of(&mut turn, system, &works(scale)).await;
    let ended = turn.end().await;
    let row = row?;
    ended?;
    Ok(row)
}

async fn turn_of(turn: &mut Turn<'_>, system: System, works: &[Work]) -> anyhow::Result<CohortsRow> {
    let load = machine_load()[0];
    let started = Instant::now();
    let sent = turn.submit(works).await?;
    let created_seconds = started.elapsed().as_secs_f64();
    turn.until("all jobs have ended", LONGEST, |pods| pods.ended() >= works.len()).await?;
    let pods = turn.observer.pods();
    let last = pods.all().filter_map(|pod| pod.ended).max().context("no pod has ended")?;
    let placed = pods.placed(|_| Some(1));
    let wait = |work: &Work| Some(placed.get(&work.name)?.saturating_duration_since(*sent.get(&work.name)?));
    let of = |class: &Class| {
        let times: Vec<Duration> = works.iter().filter(|work| work.cpus == class.cpus).filter_map(wait).collect();
        let mean = times.iter().map(Duration::as_secs_f64).sum::<f64>() / times.len().max(1) as f64;
        ClassWait { class: class.name, mean, wait: Latencies::of(times.into_iter()) }
    };
    let wall = last.saturating_duration_since(started);
    Ok(CohortsRow {
        system,
        load,
        jobs: works.len(),
        wall_seconds: wall.as_secs_f64(),
        created_seconds,
        waits: CLASSES.iter().map(of).collect(),
        quota_use: cpu_seconds(&pods, works) / (f64::from(COHORTS * QUEUES * NOMINAL) * wall.as_secs_f64()),
    })
}

/// The CPU-seconds that the pods used, from binding to end.
fn cpu_seconds(pods: &Pods, works: &[Work]) -> f64 {
    let cpus: std::collections::HashMap<&str, u32> = works.iter().map(|work| (work.name.as_str(), work.cpus)).collect();
    let of = |pod: &super::pods::PodTimes| {
        let time = pod.ended.or(pod.gone)?.saturating_duration_since(pod.bound?);
        Some(time.as_secs_f64() * f64::from(*cpus.get(pod.work.as_str())?))
    };
    pods.all().filter_map(of).sum()
}

/// The row of each turn.
pub(super) fn table(rows: &[CohortsRow]) -> String {
    let jobs = rows.first().map_or(0, |row| row.jobs);
    let mut text =
        format!("Kueue's benchmark: {jobs} jobs of three sizes in 30 queues of 5 cohorts, one system after another\n");
    let head = ["system", "wall s", "created s", "quota used %", "small s", "medium s", "large s", "load"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let numbers = [row.wall_seconds, row.created_seconds, row.quota_use * 100.0].map(|value| format!("{value:.1}"));
        let waits = row.waits.iter().map(|class| format!("{:.1} (p99 {:.1})", class.mean, class.wait.p99));
        let cells = [row.system.name().to_owned()].into_iter().chain(numbers).chain(waits);
        table.push(cells.chain([format!("{:.1}", row.load)]).collect());
    }
    text += &figures_table(&table);
    text + "small, medium, large: mean time from creation to binding\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_match_kueues_benchmark() {
        let all = works(1.0);
        assert_eq!(all.len(), 15_000);
        let last = all.last().unwrap();
        assert_eq!((last.cpus, last.due), (20, Duration::from_millis(49 * 1200)));
        let cpus: u32 = all.iter().map(|work| work.cpus).sum();
        assert_eq!(cpus, 30 * (350 + 500 + 1000));
        assert_eq!(works(0.1).len(), 1_500);
        assert_eq!(works(0.001).len(), 90, "one of each");
    }

    #[test]
    fn each_system_has_a_row() {
        let waits = CLASSES.iter().map(|class| ClassWait { class: class.name, mean: 2.0, wait: Latencies::default() });
        let row = CohortsRow {
            system: System::Kueue,
            load: 3.0,
            jobs: 90,
            wall_seconds: 10.0,
            created_seconds: 6.0,
            waits: waits.collect(),
            quota_use: 0.587,
        };
        let table = table(&[row]);
        let line = table.lines().find(|line| line.starts_with("kueue")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[2..].join(" "), "10.0 6.0 58.7 2.0 (p99 0.0) 2.0 (p99 0.0) 2.0 (p99 0.0) 3.0");
    }
}
