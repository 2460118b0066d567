//! Gangs that request 90 % of 100 nodes: how long each gang waits for all its pods, and how many GPUs incomplete gangs
//! hold.
//!
//! The gangs' sizes, running times and creation times come from a fixed seed, so they are the same in each turn. Each
//! pod takes a whole node.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::pods::{PodTimes, Pods};
use super::turn::{Ground, System, Turn, Wish};
use super::work::{Type, Work};
use crate::kubernetes::objects::{GPUS, NAMESPACE, PART};
use larder_epochs::figures::{Latencies, machine_load};
use larder_epochs::table::figures_table;

const SEED: u64 = 3;
const SIZES: [u32; 5] = [2, 4, 8, 16, 32];
/// The running time in seconds: mean, minimum and maximum.
const RUNS_FOR: f64 = 20.0;
const SHORTEST: f64 = 5.0;
const LONGEST_RUN: f64 = 60.0;
/// The fraction of the nodes that the gangs request.
const LOAD: f64 = 0.9;

/// The timeout of a turn.
const LONGEST: Duration = Duration::from_secs(3600);

/// One turn of a system.
#[derive(Clone, Debug, Serialize)]
pub struct GangsRow {
    pub system: System,
    /// The machine's one-minute load average before the turn.
    pub load: f64,
    /// Number of gangs.
    pub gangs: usize,
    /// Seconds from the creation of each gang until its last pod was bound.
    pub bound: Latencies,
    /// GPU-seconds of pods that were bound while other pods of their gang were not.
    pub held_gpu_seconds: f64,
    /// The fraction of all GPUs that complete gangs used until the last gang was created.
    pub used: f64,
}

impl fmt::Display for GangsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system, bound, held_gpu_seconds, .. } = self;
        write!(f, "{}: gangs bound {bound}; {held_gpu_seconds:.0} GPU-seconds wasted", system.name())
    }
}

/// The gangs, in the order of their creation.
fn works(count: u32) -> Vec<Work> {
    let mut random = StdRng::seed_from_u64(SEED);
    let exponential = |random: &mut StdRng, mean: f64| -mean * (1.0 - random.random::<f64>()).ln();
    let mut works: Vec<Work> = (0..count)
        .map(|nth| {
            let pods = SIZES[random.random_range(0..SIZES.len())];
            let runs_for = exponential(&mut random, RUNS_FOR).clamp(SHORTEST, LONGEST_RUN);
            let runs_for = Some(Duration::from_millis((runs_for * 1e3) as u64));
            let name = format!("gang-{nth:04}");
            Work { type_: Type::Pytorch, gpus: GPUS, runs_for, part: Some(0), ..Work::new(name, pods, NAMESPACE) }
        })
        .collect();
    let node_seconds: f64 = works.iter().map(node_seconds).sum();
    let between = node_seconds / (f64::from(count.max(1)) * LOAD * f64::from(PART));
    let mut due = 0.0;
    for work in &mut works {
        work.due = Duration::from_secs_f64(due);
        due += exponential(&mut random, between);
    }
    works
}

fn node_seconds(work: &Work) -> f64 {
    f64::from(work.pods) * work.runs_for.unwrap_or_default().as_secs_f64()
}

/// Measures one turn of a system.
pub(super) async fn measure(ground: Ground<'_>, system: System, gangs: u32) -> anyhow::Result<GangsRow> {
    let queue = Wish::ample([("nvidia.com/gpu", (GPUS * PART * 1000, 0))].into());
    let works = works(gangs);
    let mut turn = Turn::begin(ground, system, &[queue]).await?;
    let row = turn_of(&mut turn, system, &works).await;
    let ended = turn.end().await;
    let row = row?;
    ended?;
    Ok(row)
}

async fn turn_of(turn: &mut Turn<'_>, system: System, works: &[Work]) -> anyhow::Result<GangsRow> {
    let load = machine_load()[0];
    let started = Instant::now();
    let sent = turn.submit(works).await?;
    let created = Instant::now();
    let pods: u32 = works.iter().map(|work| work.pods).sum();
    turn.until("all gangs have ended", LONGEST, |seen| seen.ended() >= pods as usize).await?;
    let seen = turn.observer.pods();
    let sizes: BTreeMap<&str, u32> = works.iter().map(|work| (work.name.as_str(), work.pods)).collect();
    let placed = seen.placed(|work| sizes.get(work).copied());
    let times = placed.iter().filter_map(|(work, at)| Some(at.saturating_duration_since(*sent.get(work)?)));
    let wall = created.duration_since(started).as_secs_f64();
    let used = used_seconds(&seen, &placed, created) / (f64::from(PART) * wall);
    let bound = Latencies::of(times);
    let held_gpu_seconds = held_seconds(&seen, &placed) * f64::from(GPUS);
    Ok(GangsRow { system, load, gangs: works.len(), bound, held_gpu_seconds, used })
}

fn left(pod: &PodTimes) -> Option<Instant> {
    pod.ended.into_iter().chain(pod.gone).min()
}

/// Pod-seconds from the binding of each pod until its gang was complete or the pod was deleted.
fn held_seconds(pods: &Pods, placed: &BTreeMap<String, Instant>) -> f64 {
    let of = |pod: &PodTimes| {
        let whole = placed.get(&pod.work).copied();
        let until = whole.into_iter().chain(left(pod)).min()?;
        Some(until.saturating_duration_since(pod.bound?).as_secs_f64())
    };
    pods.all().filter_map(of).sum()
}

/// Pod-seconds in complete gangs, until `end`.
fn used_seconds(pods: &Pods, placed: &BTreeMap<String, Instant>, end: Instant) -> f64 {
    let of = |pod: &PodTimes| {
        let whole = *placed.get(&pod.work)?;
        Some(left(pod)?.min(end).saturating_duration_since(whole.max(pod.bound?)).as_secs_f64())
    };
    pods.all().filter_map(of).sum()
}

/// The row of each turn.
pub(super) fn table(rows: &[GangsRow]) -> String {
    let gangs = rows.first().map_or(0, |row| row.gangs);
    let text = format!("{gangs} gangs of 2 to 32 pods that request 90 % of {PART} nodes, one system after another\n");
    let head = ["system", "bound p50 s", "p99 s", "longest s", "GPU-s wasted", "nodes used %", "load"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let Latencies { p50, p99, max, .. } = row.bound;
        let seconds = [p50, p99, max].map(|seconds| format!("{seconds:.1}"));
        let rest =
            [format!("{:.0}", row.held_gpu_seconds), format!("{:.0}", row.used * 100.0), format!("{:.1}", row.load)];
        table.push([&[row.system.name().to_owned()][..], &seconds, &rest].concat());
    }
    text + &figures_table(&table) + "wasted: held by pods that are bound while other pods of their gang are not\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gangs_request_nine_tenths_of_the_gpus() {
        let works = works(500);
        let asked: f64 = works.iter().map(node_seconds).sum();
        let time = works.last().unwrap().due.as_secs_f64();
        assert!((0.85..0.95).contains(&(asked / (time * f64::from(PART)))), "{}", asked / time);
        assert_eq!(works, super::works(500), "they are the same in each turn");
        assert!(works.iter().all(|work| work.pods <= PART));
    }

    #[test]
    fn bound_pods_waste_gpus_until_their_gang_is_complete_or_they_end() {
        let start = Instant::now();
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        let pod = |work: &str, bound, ended| {
            let times =
                PodTimes { work: work.to_owned(), index: None, node: None, bound, running: None, ended, gone: None };
            (format!("{work}{bound:?}"), times)
        };
        let pods = Pods::from_iter([
            pod("whole", at(1), at(20)),
            pod("whole", at(4), at(20)),
            pod("part", at(2), at(7)),
            pod("part", None, None),
        ]);
        let placed = pods.placed(|_| Some(2));
        assert_eq!(placed.keys().collect::<Vec<_>>(), ["whole"]);
        assert_eq!(held_seconds(&pods, &placed), 3.0 + 5.0);
        assert_eq!(used_seconds(&pods, &placed, start + Duration::from_secs(10)), 6.0 + 6.0);
    }
}
