//! 50 of 100: a production job preempts half of an elastic experiment's pods and no other pods.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context;
use larder_api::TrainingJob;
use larder_kube::Api;
use larder_kube::api::DeleteParams;
use serde::Serialize;

use super::pods::Pods;
use super::turn::{Ground, System, Turn, Wish};
use super::work::{Priority, Type, Work};
use crate::kubernetes::objects::{GPUS, NAMESPACE};
use larder_epochs::figures::{Goal, Spread, machine_load};

const EXPERIMENT: &str = "experiment";
const PRODUCTION: &str = "production";
/// Pods of the experiment, and pods that the production job preempts. Each takes a whole node of the first part.
const ALL: u32 = 100;
const TAKEN: u32 = 50;

/// The termination time of each deleted pod.
const GRACE: Duration = Duration::from_secs(5);
/// The goal: seconds until the production job is bound, in addition to `GRACE`.
const BEYOND: f64 = 5.0;

/// The timeout of a step.
const LONGEST: Duration = Duration::from_secs(300);

/// One preemption.
#[derive(Clone, Debug, Serialize)]
pub struct PreemptRow {
    /// The machine's one-minute load average before the turn.
    pub load: f64,
    /// The termination time of a deleted pod.
    pub grace_seconds: f64,
    /// Seconds from the creation of the production job until its last pod was bound.
    pub bound_seconds: f64,
    /// Seconds from the deletion of the production job until all pods of the experiment were bound again.
    pub regrown_seconds: f64,
    /// The indexes of the experiment's preempted pods.
    pub taken: BTreeSet<u32>,
}

impl PreemptRow {
    fn takes_the_upper_half(&self) -> bool {
        self.taken == (ALL - TAKEN..ALL).collect()
    }
}

impl fmt::Display for PreemptRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bound_seconds, regrown_seconds, taken, .. } = self;
        write!(
            f,
            "{} taken, bound after {bound_seconds:.1} s, back to full size after {regrown_seconds:.1} s",
            taken.len()
        )
    }
}

fn works() -> [Work; 2] {
    let work = |name: &str, pods, min, type_, priority| Work {
        type_,
        min,
        cpus: 1,
        gpus: GPUS,
        priority: Some(priority),
        grace: Some(GRACE),
        part: Some(0),
        ..Work::new(name.to_owned(), pods, NAMESPACE)
    };
    [
        work(EXPERIMENT, ALL, TAKEN, Type::PytorchElastic, Priority::Low),
        work(PRODUCTION, TAKEN, TAKEN, Type::Pytorch, Priority::High),
    ]
}

/// The number of a job's pods that are bound and not being deleted.
fn alive(pods: &Pods, work: &str) -> usize {
    pods.of(work).filter(|pod| pod.running.is_some() && pod.ended.is_none() && pod.gone.is_none()).count()
}

/// Measures one preemption.
pub(super) async fn measure(ground: Ground<'_>) -> anyhow::Result<PreemptRow> {
    let queue = Wish::ample([("nvidia.com/gpu", (GPUS * ALL, 0))].into());
    let mut turn = Turn::begin(ground, System::Larder, &[queue]).await?;
    let row = turn_of(ground, &mut turn).await;
    let ended = turn.end().await;
    let row = row?;
    ended?;
    Ok(row)
}

async fn turn_of(ground: Ground<'_>, turn: &mut Turn<'_>) -> anyhow::Result<PreemptRow> {
    let load = machine_load()[0];
    let [experiment, production] = works();
    turn.submit(&[experiment]).await?;
    let all = ALL as usize;
    turn.until("the experiment runs", LONGEST, |pods| alive(pods, EXPERIMENT) == all).await?;
    let jobs: Api<TrainingJob> = Api::namespaced(ground.client.clone(), NAMESPACE);
    let sent = turn.submit(&[production]).await?;
    let sent = sent.values().next().copied().context("nothing was sent")?;
    let taken = TAKEN as usize;
    turn.until("the production job runs", LONGEST, |pods| alive(pods, PRODUCTION) == taken).await?;
    let (bound, left) = {
        let pods = turn.observer.pods();
        let bound = pods.of(PRODUCTION).filter_map(|pod| pod.bound).max().context("nothing was bound")?;
        let left = pods.of(EXPERIMENT).filter(|pod| pod.gone.is_some()).filter_map(|pod| pod.index).collect();
        (bound, left)
    };
    let deleted = Instant::now();
    jobs.delete(PRODUCTION, &DeleteParams::background()).await.context("delete the production job")?;
    turn.until("the experiment is back to its full size", LONGEST, |pods| alive(pods, EXPERIMENT) == all).await?;
    let last = turn.observer.pods().of(EXPERIMENT).filter_map(|pod| pod.bound).max().context("nothing was bound")?;
    Ok(PreemptRow {
        load,
        grace_seconds: GRACE.as_secs_f64(),
        bound_seconds: bound.duration_since(sent).as_secs_f64(),
        regrown_seconds: last.saturating_duration_since(deleted).as_secs_f64(),
        taken: left,
    })
}

pub(super) fn goals(rows: &[PreemptRow]) -> Vec<Goal> {
    let Some(Spread { median, min, max }) = Spread::of(rows.iter().map(|row| row.bound_seconds)) else {
        return Vec::new();
    };
    let most = GRACE.as_secs_f64() + BEYOND;
    let right = rows.iter().filter(|row| row.takes_the_upper_half()).count();
    let regrown = Spread::of(rows.iter().map(|row| row.regrown_seconds)).map_or(0.0, |regrown| regrown.median);
    let goal = |figure: &str, measured, goal, is_met| Goal { figure: figure.to_owned(), measured, goal, is_met };
    vec![
        goal(
            "50 of 100: creation to last bind, s",
            format!("{median:.1} ({min:.1}..{max:.1})"),
            format!("<= {most} (grace {})", GRACE.as_secs()),
            max <= most,
        ),
        goal(
            "  preempted workers 50 to 99 only",
            format!("{right} of {}", rows.len()),
            rows.len().to_string(),
            right == rows.len(),
        ),
        goal("  back to full size after, s", format!("{regrown:.1}"), "shown".to_owned(), true),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_half_must_be_preempted_in_time() {
        let row = |bound_seconds, taken: std::ops::Range<u32>| PreemptRow {
            load: 1.0,
            grace_seconds: 5.0,
            bound_seconds,
            regrown_seconds: 61.0,
            taken: taken.collect(),
        };
        let met = |rows: &[PreemptRow]| goals(rows).iter().map(|goal| goal.is_met).collect::<Vec<_>>();
        assert_eq!(met(&[row(9.0, 50..100), row(10.0, 50..100)]), [true, true, true]);
        assert_eq!(met(&[row(9.0, 50..100), row(10.1, 49..100)]), [false, false, true]);
        assert!(goals(&[]).is_empty());
    }

    #[test]
    fn the_two_jobs_fill_the_nodes() {
        let [experiment, production] = works();
        assert_eq!((experiment.pods, experiment.gpus), (crate::kubernetes::objects::PART, GPUS));
        assert_eq!((production.pods, experiment.min), (50, 50));
    }
}
