//! How soon a pod that waits for its data is bound after a node has the data.
//!
//! Each pod waits for its own dataset, of which one node has a tenth. Some time after the scheduler has found no node,
//! that node reports the whole dataset and gets the label that the controller would set.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use larder_kube::Api;
use serde::Serialize;

use super::data::Data;
use super::scheduler::{Programs, Scheduler, Setting};
use crate::jobs::cluster::{clear, create_one};
use crate::jobs::pods::Observer;
use crate::jobs::turn::Ground;
use crate::kubernetes::objects::{self, NAMESPACE};
use larder_epochs::figures::{Goal, Latencies, machine_load};
use larder_epochs::table::figures_table;

/// How long the pods wait after the scheduler has found no node, in turn. kube-scheduler's backoff grows from 1 to 10 s
/// with each failed attempt.
const RESTS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(6), Duration::from_secs(12)];
/// The goal: seconds from the report to the bind (p99).
const GOAL_SECONDS: f64 = 5.0;
/// The timeout of a step.
const LONGEST: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(20);

/// One pod that waited.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WakeRow {
    /// How long it waited after the scheduler had found no node.
    pub rest_seconds: f64,
    /// The machine's one-minute load average before the measurement.
    pub load: f64,
    /// Seconds from the report of the node's cache to the bind.
    pub bound_seconds: f64,
}

impl fmt::Display for WakeRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {:.0} s of waiting: bound {:.2} s after the report", self.rest_seconds, self.bound_seconds)
    }
}

/// Wakes `wakes` pods, one after another.
pub(super) async fn measure(
    ground: Ground<'_>,
    programs: &Programs,
    wakes: u8,
    mut said: impl FnMut(WakeRow),
) -> anyhow::Result<()> {
    let all: Vec<Data> = (0..wakes).map(|nth| Data::new(format!("late-{nth:03}"), 100 + nth)).collect();
    for (nth, data) in (0..).zip(&all) {
        data.make(ground.client).await?;
        data.hold(ground.client, &objects::node(nth), 10).await?;
    }
    let setting = Setting { percent: Some(100), extended: true };
    let mut scheduler = Scheduler::start(ground.places, programs, setting, ground.stop).await?;
    for ((nth, data), rest) in (0..).zip(&all).zip(RESTS.into_iter().cycle()) {
        said(wake(ground, &mut scheduler, data, nth, rest).await?);
    }
    scheduler.stop();
    clear(ground.client).await
}

async fn wake(
    ground: Ground<'_>,
    scheduler: &mut Scheduler,
    data: &Data,
    nth: u32,
    rest: Duration,
) -> anyhow::Result<WakeRow> {
    let load = machine_load()[0];
    let observer = Observer::start(ground.client);
    let api: Api<Pod> = Api::namespaced(ground.client.clone(), NAMESPACE);
    let work = data.name.clone();
    create_one(&api, data.waiting_pod(work.clone())).await?;
    await_refusal(ground, &api, &format!("{work}-0")).await?;
    scheduler.until(ground.stop, &observer, "nothing", LONGEST, resting(rest)).await?;
    let node = objects::node(nth);
    let reported = Instant::now();
    data.hold(ground.client, &node, 100).await?;
    let is_bound = |seen: &crate::jobs::pods::Pods| seen.of(&work).any(|pod| pod.bound.is_some());
    scheduler.until(ground.stop, &observer, "the pod is bound", LONGEST, is_bound).await?;
    let seen = observer.pods();
    let pod = seen.of(&work).find(|pod| pod.bound.is_some()).context("the pod was not bound")?;
    if pod.node.as_ref() != Some(&node) {
        bail!("{work} is on {} instead of {node}, which has its data", pod.node.as_deref().unwrap_or_default());
    }
    let bound = pod.bound.context("the pod was not bound")?;
    let bound_seconds = bound.saturating_duration_since(reported).as_secs_f64();
    Ok(WakeRow { rest_seconds: rest.as_secs_f64(), load, bound_seconds })
}

/// A condition that becomes true when the time is over.
fn resting(rest: Duration) -> impl Fn(&crate::jobs::pods::Pods) -> bool {
    let started = Instant::now();
    move |_| started.elapsed() >= rest
}

/// Waits until the scheduler reports that it found no node for the pod.
async fn await_refusal(ground: Ground<'_>, api: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        ground.stop.check()?;
        let pod = api.get(name).await.with_context(|| format!("get {name}"))?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable")) {
            return Ok(());
        }
        if pod.spec.is_some_and(|spec| spec.node_name.is_some()) {
            bail!("{name} was bound before its data was cached: check that the scheduler calls the extender");
        }
        if started.elapsed() > LONGEST {
            bail!("{name} was not marked unschedulable within {} s", LONGEST.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn times<'a>(rows: impl Iterator<Item = &'a WakeRow>) -> Latencies {
    Latencies::of(rows.map(|row| Duration::from_secs_f64(row.bound_seconds)))
}

pub(super) fn goals(rows: &[WakeRow]) -> Vec<Goal> {
    if rows.is_empty() {
        return Vec::new();
    }
    let Latencies { p50, p99, max, .. } = times(rows.iter());
    vec![Goal {
        figure: "from the report of the data to the binding of a waiting pod, s, p99".to_owned(),
        measured: format!("{p99:.2} (p50 {p50:.2}, longest {max:.2})"),
        goal: format!("<= {GOAL_SECONDS}"),
        is_met: p99 <= GOAL_SECONDS,
    }]
}

/// One row for each waiting time.
pub(super) fn table(rows: &[WakeRow]) -> String {
    let text = "From the label of a node, set when its cache reports the data, to the binding of the waiting pod\n";
    let head = ["waited before s", "pods", "p50 s", "p99 s", "longest s", "load"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for rest in RESTS {
        let mine: Vec<&WakeRow> = rows.iter().filter(|row| row.rest_seconds == rest.as_secs_f64()).collect();
        let Some(last) = mine.last() else { continue };
        let Latencies { count, p50, p99, max } = times(mine.iter().copied());
        let seconds = [p50, p99, max].map(|seconds| format!("{seconds:.2}"));
        let first = [rest.as_secs().to_string(), count.to_string()];
        table.push([&first[..], &seconds, &[format!("{:.1}", last.load)]].concat());
    }
    text.to_owned() + &figures_table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_compared_with_the_goal_and_each_waiting_time_has_a_row() {
        let row = |rest_seconds, bound_seconds| WakeRow { rest_seconds, load: 1.0, bound_seconds };
        let rows = [row(1.0, 5.1), row(3.0, 0.2), row(1.0, 0.1)];
        let missed = &goals(&rows)[0];
        assert_eq!((missed.measured.as_str(), missed.is_met), ("5.10 (p50 0.20, longest 5.10)", false));
        assert!(goals(&rows[1..])[0].is_met && goals(&[]).is_empty());
        let table = table(&rows);
        let lines: Vec<Vec<&str>> = table.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [["1", "2", "5.10", "5.10", "5.10", "1.0"], ["3", "1", "0.20", "0.20", "0.20", "1.0"]]);
    }

    #[test]
    fn a_waiting_time_ends_on_time() {
        let none = crate::jobs::pods::Pods::default();
        assert!(resting(Duration::ZERO)(&none) && !resting(Duration::from_secs(60))(&none));
    }
}
