//! Jobs that rest: a round counts them as an earlier round has found them, and does not look at them.
//!
//! A job that runs rests if the next round would decide the same about it: its state has not changed, nothing is to be
//! written, and no node of its pods is about to be lost. Until the time of its next step, a change of anything that its
//! decisions depend on wakes it: the job, its sweep, its pods, their nodes and caches, its datasets, its PodGroup and
//! the state of its Workload, or settings, types, queues, PriorityClasses and optional APIs, which wake all jobs
//! ([`Jobs::wake`], [`Jobs::wake_all`]). A round also looks at it if the queues decide anything new about it. A job
//! that has ended rests once its pods have ended, too, or their nodes are lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_api::Phase;

use super::decide::Decided;
use super::{Mode, runs};
use crate::jobs::cluster_view::{ClusterView, Seen};
use crate::jobs::dry_run::DryRuns;
#[cfg(doc)]
use crate::jobs::index::Jobs;
use crate::jobs::job_state::{JobState, Rest};
use crate::jobs::machine::{Action, Stage};
use crate::jobs::objects::JobObject;
use crate::jobs::queue::{Job, Verdict};
use crate::jobs::turn::check::check;
use crate::jobs::turn::decide::Stepped;
use crate::time::Seconds;

/// A job that rests in this round, unless the queues decide anything new about it.
pub(in crate::jobs) struct Resting<'a> {
    pub(in crate::jobs) object: &'a JobObject,
    job_state: &'a mut JobState,
}

impl<'a> Resting<'a> {
    /// `Err`: the job does not rest, or no longer.
    pub(in crate::jobs) fn new(
        view: &ClusterView<'_>,
        object: &'a JobObject,
        job_state: &'a mut JobState,
    ) -> Result<Self, &'a mut JobState> {
        match &job_state.rest {
            Some(rest) if view.now < rest.until && rest.wakes == view.jobs.wakes => Ok(Self { object, job_state }),
            _ => Err(job_state),
        }
    }

    pub(in crate::jobs) fn rest(&self) -> Option<&Rest> {
        self.job_state.rest.as_ref()
    }

    /// The job as queues see it; `None` if it has ended.
    pub(in crate::jobs) fn counted(&self) -> Option<&Arc<Job>> {
        self.rest()?.counted.as_ref()
    }

    /// True if the job also rests with this verdict.
    pub(in crate::jobs) fn rests_with(&self, verdict: Option<&Verdict>) -> bool {
        match (self.counted(), verdict) {
            (Some(job), Some(verdict)) => job.is_unchanged_by(verdict),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Looks at the job after all.
    pub(in crate::jobs) fn wake(
        self,
        view: &ClusterView<'a>,
        dry_runs: &mut DryRuns,
        asked: &mut Vec<String>,
    ) -> Stepped<'a> {
        self.job_state.rest = None;
        check(view, self.object, self.job_state, dry_runs, asked).step(view)
    }
}

impl Decided<'_> {
    /// The [`Rest`] of a job about which nothing is to be written; `None` if the next round must look at it.
    pub(super) fn rest(&self, view: &ClusterView<'_>) -> Option<Rest> {
        let counted = match self.job.phase() {
            // Pods of an ended job use quota until they have ended too, or their node is lost.
            phase if phase.is_terminal() && !runs(view, &self.job.pods) => None,
            Phase::Running if self.is_settled() => {
                let (job, verdict) = (self.job.queue_job(view)?, self.verdict.as_ref()?);
                if !job.is_unchanged_by(verdict) {
                    return None;
                }
                Some(Arc::new(job))
            }
            _ => return None,
        };
        Some(Rest {
            until: self.again().unwrap_or(Seconds::NEVER),
            wakes: view.jobs.wakes,
            counted,
            warm_requests: self.warm_requests(),
        })
    }

    /// True if this round has changed nothing about a job that runs, no node of its pods is about to be lost, and
    /// everything that its decisions depend on wakes it.
    fn is_settled(&self) -> bool {
        let job = &self.job;
        let is_well = |seen: &Seen<'_>| {
            let stays = seen.pod.leaving.is_none() && seen.pod.node.is_some_and(|node| node.lost_at.is_none());
            stays || seen.pod.stage.has_ended()
        };
        let state = job.state();
        matches!(job.mode, Mode::Steps(_))
            && job.typed.is_some()
            && job.kueue_queue().is_none()
            && job.object.home.is_none()
            && job.before.as_ref() == Some(&job.job_state.record)
            && self.actions.iter().all(|action| matches!(action, Action::Again(_)))
            && state.slots().all(|(_, slot)| matches!(slot.stage, Stage::Seen | Stage::Done))
            && job.pods.iter().all(is_well)
            && (job.datasets().is_empty() || self.runs_on_all_nodes())
    }

    /// True if pods run on all nodes whose data counts. A pod that is done is on none, and its node wakes no job.
    fn runs_on_all_nodes(&self) -> bool {
        let running = self.job.pods.iter().filter(|seen| !seen.pod.stage.has_ended());
        let nodes: BTreeSet<&String> = running.map(|seen| &seen.object.node).collect();
        self.job.nodes().iter().all(|node| nodes.contains(node))
    }
}
