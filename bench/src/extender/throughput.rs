//! How many pods a second kube-scheduler binds, with the extender and without it, in turns.
//!
//! All pods are there before kube-scheduler starts, so that neither the one who makes them nor its start is measured: the time
//! is that from the first bind to the last.

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

/// Names that the extender is sent, about.
const NAMES: u32 = 500;
/// The least part of the pods a second without the extender.
const RATIO: f64 = 0.9;
/// The longest that a turn may take.
const LONGEST: Duration = Duration::from_secs(1800);

/// Whom a kube-scheduler asks, and about what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Asks {
    /// Nobody.
    Nobody,
    /// The extender, about pods that read nothing: what asking alone costs.
    AboutNothing,
    /// The extender, about pods that read data.
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

/// A turn of a kube-scheduler.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BindsRow {
    /// The round.
    pub round: u32,
    /// Whom it asked.
    pub asks: Asks,
    /// The machine's load of one minute before.
    pub load: f64,
    /// How many pods.
    pub pods: u32,
    /// From the first bind to the last.
    pub seconds: f64,
    /// Those after the first one, in that time.
    pub pods_a_second: f64,
    /// The part that landed on holders of the data.
    pub on_holders: f64,
}

impl fmt::Display for BindsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} pods/s", self.asks.name(), self.pods_a_second)
    }
}

/// The percentage of nodes of which about 500 names are sent.
pub(super) fn percent(nodes: u32) -> u32 {
    (NAMES * 100).div_ceil(nodes.max(1)).min(100)
}

/// Measures a turn. `holders` have the data.
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

/// The ratio of each round, of those that ask and those that do not.
fn ratios(rows: &[BindsRow], asks: Asks) -> impl Iterator<Item = f64> {
    let with = rows.iter().filter(move |row| row.asks == asks);
    with.filter_map(|with| {
        let without = rows.iter().find(|row| row.asks == Asks::Nobody && row.round == with.round)?;
        Some(with.pods_a_second / without.pods_a_second)
    })
}

pub(super) fn goals(rows: &[BindsRow]) -> Vec<Goal> {
    let Some(Spread { median, min, max }) = Spread::of(ratios(rows, Asks::AboutData)) else { return Vec::new() };
    let asking = Spread::of(ratios(rows, Asks::AboutNothing));
    let asking = asking.map_or_else(String::new, |asking| format!("; requests alone {:.2}", asking.median));
    vec![Goal {
        figure: "pods/s with the extender, relative to pods/s without it, per round".to_owned(),
        measured: format!("{median:.2} ({min:.2}..{max:.2}){asking}"),
        goal: format!(">= {RATIO}"),
        is_met: median >= RATIO,
    }]
}

/// Each turn.
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
        assert_eq!((goals[0].measured.as_str(), goals[0].is_met), ("0.85 (0.80..0.90)", false));
        assert!(super::goals(&rows[..2])[0].is_met);
        assert!(super::goals(&rows[..1]).is_empty());
        let nothing = BindsRow { asks: Asks::AboutNothing, ..row(1, true, 95.0) };
        let measured = &super::goals(&[rows[0], rows[1], nothing])[0].measured;
        assert_eq!(measured, "0.90 (0.90..0.90); requests alone 0.95");
        let table = table(&rows, 1_000);
        assert!(table.starts_with("100 pods on 1000 nodes, percentageOfNodesToScore 50"), "{table}");
    }

    #[test]
    fn requests_name_about_five_hundred_nodes() {
        assert_eq!([1_000, 5_000, 400, 1_024].map(percent), [50, 10, 100, 49]);
    }
}
