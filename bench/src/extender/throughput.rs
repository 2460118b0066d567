//! How many pods per second kube-scheduler binds, with and without the extender, in turns.
//!
//! All pods exist before kube-scheduler starts, and the time runs from the first bind to the last, so that neither the
//! creation of the pods nor the start of kube-scheduler is measured.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use larder_kube::Api;
use serde::Serialize;

use super::data::Data;
use super::scheduler::{Programs, Scheduler, Setting};
use crate::jobs::cluster::{clear, create};
use crate::jobs::pods::Observer;
use crate::jobs::turn::Ground;
use crate::kubernetes::objects::NAMESPACE;
use larder_epochs::figures::{Goal, Spread, machine_load};
use larder_epochs::table::figures_table;

/// About as many names as kube-scheduler sends to the extender.
const NAMES: u32 = 500;
/// The goals: pods per second with the extender, relative to pods per second without it, for pods with data and for
/// pods without.
const WITH_DATA: f64 = 0.7;
const WITHOUT_DATA: f64 = 0.98;
/// The timeout of a turn.
const LONGEST: Duration = Duration::from_secs(1800);

/// Whether kube-scheduler has the extender, and for which pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Asks {
    /// kube-scheduler alone.
    Nobody,
    /// It has the extender, and does not call it, because the pods have no data.
    AboutNothing,
    /// It calls the extender for pods with data.
    AboutData,
}

impl Asks {
    pub(super) const ALL: [Self; 3] = [Self::Nobody, Self::AboutNothing, Self::AboutData];

    const fn name(self) -> &'static str {
        match self {
            Self::Nobody => "kube-scheduler alone",
            Self::AboutNothing => "with the extender, pods without data",
            Self::AboutData => "with the extender",
        }
    }
}

/// One turn of kube-scheduler.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BindsRow {
    pub round: u32,
    /// Whether it had the extender, and for which pods.
    pub asks: Asks,
    /// The machine's one-minute load average before the turn.
    pub load: f64,
    /// Number of pods.
    pub pods: u32,
    /// Seconds from the first bind to the last.
    pub seconds: f64,
    /// Pods per second: all pods but the first, divided by `seconds`.
    pub pods_a_second: f64,
    /// The fraction of the pods that landed on holders of the data.
    pub on_holders: f64,
}

impl fmt::Display for BindsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} pods/s", self.asks.name(), self.pods_a_second)
    }
}

/// The `percentageOfNodesToScore` at which kube-scheduler sends about [`NAMES`] names.
pub(super) fn percent(nodes: u32) -> u32 {
    (NAMES * 100).div_ceil(nodes.max(1)).min(100)
}

/// Measures one turn. The nodes `holders` have the data.
pub(super) async fn measure(
    ground: Ground<'_>,
    programs: &Programs,
    asks: Asks,
    (round, nodes, pods): (u32, u32, u32),
    (data, holders): (&Data, &[String]),
) -> anyhow::Result<BindsRow> {
    let load = machine_load()[0];
    let observer = Observer::start(ground.client);
    let pod = |nth| {
        let name = format!("pod-{nth:05}");
        (Duration::ZERO, if asks == Asks::AboutData { data.pod(name) } else { Data::foreign_pod(name) })
    };
    let all = (0..pods).map(pod).collect();
    create(&Api::<Pod>::namespaced(ground.client.clone(), NAMESPACE), all).await?;
    let setting = Setting { percent: Some(percent(nodes)), extended: asks != Asks::Nobody };
    let mut scheduler = Scheduler::start(ground.places, programs, setting, ground.stop).await?;
    let bound =
        scheduler.until(ground.stop, &observer, "all pods are bound", LONGEST, |seen| seen.bound() >= pods as usize);
    bound.await?;
    let (times, on_holders) = {
        let seen = observer.pods();
        let mut times: Vec<Instant> = seen.all().filter_map(|pod| pod.bound).collect();
        times.sort();
        let there = seen.all().filter(|pod| pod.node.as_ref().is_some_and(|node| holders.contains(node))).count();
        (times, there as f64 / f64::from(pods))
    };
    scheduler.stop();
    clear(ground.client).await?;
    let (first, last) = times.first().zip(times.last()).context("no pod was bound")?;
    let seconds = last.duration_since(*first).as_secs_f64();
    let pods_a_second = f64::from(pods.saturating_sub(1)) / seconds.max(1e-3);
    Ok(BindsRow { round, asks, load, pods, seconds, pods_a_second, on_holders })
}

/// The ratio of each round between `asks` and kube-scheduler alone.
fn ratios(rows: &[BindsRow], asks: Asks) -> impl Iterator<Item = f64> {
    let with = rows.iter().filter(move |row| row.asks == asks);
    with.filter_map(|with| {
        let without = rows.iter().find(|row| row.asks == Asks::Nobody && row.round == with.round)?;
        Some(with.pods_a_second / without.pods_a_second)
    })
}

pub(super) fn goals(rows: &[BindsRow]) -> Vec<Goal> {
    let goal = |(asks, pods, least): (Asks, &str, f64)| {
        let Spread { median, min, max } = Spread::of(ratios(rows, asks))?;
        Some(Goal {
            figure: format!("pods/s with the extender, relative to pods/s without it, {pods}"),
            measured: format!("{median:.2} ({min:.2}..{max:.2})"),
            goal: format!(">= {least}"),
            is_met: median >= least,
        })
    };
    let goals =
        [(Asks::AboutData, "pods with data", WITH_DATA), (Asks::AboutNothing, "pods without data", WITHOUT_DATA)];
    goals.into_iter().filter_map(goal).collect()
}

/// The row of each turn.
pub(super) fn table(rows: &[BindsRow], nodes: u32) -> String {
    let pods = rows.first().map_or(0, |row| row.pods);
    let text =
        format!("{pods} pods on {nodes} nodes, percentageOfNodesToScore {}, one after another\n", percent(nodes));
    let head = ["", "round", "pods/s", "first to last bind s", "on holders %", "load"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        table.push(vec![
            row.asks.name().to_owned(),
            row.round.to_string(),
            format!("{:.0}", row.pods_a_second),
            format!("{:.2}", row.seconds),
            format!("{:.1}", row.on_holders * 100.0),
            format!("{:.1}", row.load),
        ]);
    }
    text + &figures_table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(round: u32, extended: bool, pods_a_second: f64) -> BindsRow {
        let asks = if extended { Asks::AboutData } else { Asks::Nobody };
        BindsRow { round, asks, load: 1.0, pods: 100, seconds: 1.0, pods_a_second, on_holders: 0.5 }
    }

    #[test]
    fn variants_are_compared_within_a_round() {
        let rows =
            [row(1, false, 100.0), row(1, true, 90.0), row(2, true, 40.0), row(2, false, 50.0), row(3, true, 1.0)];
        let goals = goals(&rows);
        assert_eq!((goals.len(), goals[0].measured.as_str(), goals[0].is_met), (1, "0.85 (0.80..0.90)", true));
        assert!(!super::goals(&[rows[0], row(1, true, 69.0)])[0].is_met);
        assert!(super::goals(&rows[..1]).is_empty());
        let nothing = |rate| BindsRow { asks: Asks::AboutNothing, ..row(1, true, rate) };
        let without = |rate| super::goals(&[rows[0], rows[1], nothing(rate)]).remove(1);
        assert_eq!((without(98.0).measured.as_str(), without(98.0).is_met), ("0.98 (0.98..0.98)", true));
        assert!(!without(97.0).is_met);
        let table = table(&rows, 1_000);
        assert!(table.starts_with("100 pods on 1000 nodes, percentageOfNodesToScore 50"), "{table}");
    }

    #[test]
    fn requests_name_about_five_hundred_nodes() {
        assert_eq!([1_000, 5_000, 400, 1_024].map(percent), [50, 10, 100, 49]);
    }
}
