//! The end of a job's turn: its warm requests, and all of its writes.

use larder_api::Phase;

use super::decide::Decided;
use super::writes::{self, JobNumbers, Output};
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::queue::Waiting;
use crate::time::{Earliest, Seconds};
use crate::warm_request::{Requester, WarmRequest};
use crate::write::Write;
use larder_kube::key::Key;

/// A job reports that its dry run has no answer after this time.
const ANSWER_SECONDS: i64 = 2;

/// The result of a turn.
pub(in crate::jobs) struct Written {
    pub(in crate::jobs) key: Key,
    pub(in crate::jobs) writes: Vec<Write>,
    /// When the next round is due for this job if nothing changes before.
    pub(in crate::jobs) again: Earliest,
}

impl Decided<'_> {
    /// The requests for warm data, by dataset, on the nodes where the job's pods are or will be. If the job is next in
    /// its queue, on the nodes where they might run.
    pub(in crate::jobs) fn warm_requests(&self) -> Vec<(Key, WarmRequest)> {
        let job = &self.job;
        let state = job.state();
        let datasets = job.datasets();
        if datasets.is_empty() {
            return Vec::new();
        }
        let by = || Requester::Job(job.key().clone());
        let gpus = job.roles().iter().any(|role| role.requests.has_gpus());
        let waiting = job.job_state.waiting.as_ref().filter(|_| state.phase == Phase::Queued);
        let comes_next = waiting.is_some_and(|waiting| waiting.warm);
        let mut found = Vec::new();
        let nodes: Vec<String> = match waiting {
            Some(waiting) => waiting.nodes.clone(),
            None if state.holds_room() => job.nodes().into_iter().collect(),
            None => Vec::new(),
        };
        if !nodes.is_empty() {
            found.push(WarmRequest::on(by(), state.since, nodes, gpus));
        } else if comes_next && job.eligibility.refusal().is_none() {
            found.extend(job.roles().iter().map(|role| WarmRequest {
                by: by(),
                since: Seconds(job.object.meta.created),
                pods: role.wanted as usize,
                places: role.places.clone(),
                gpus,
            }));
        }
        let of = |dataset: Key| found.iter().map(move |request| (dataset.clone(), request.clone()));
        datasets.into_iter().flat_map(of).collect()
    }

    /// Collects all writes. Pods are created as far as there is `room` for them. `draw` generates the key of a
    /// launcher.
    pub(in crate::jobs) fn write(
        self,
        view: &ClusterView<'_>,
        numbers: JobNumbers,
        room: usize,
        draw: &dyn Fn() -> String,
    ) -> Written {
        let mut again = Earliest::default();
        let key = self.job.key().clone();
        let is_idle = self.job.job_state.is_idle();
        let writes = if is_idle { self.writes(view, numbers, room, draw, &mut again) } else { Vec::new() };
        Written { key, writes, again }
    }

    fn writes(
        mut self,
        view: &ClusterView<'_>,
        numbers: JobNumbers,
        room: usize,
        draw: &dyn Fn() -> String,
        again: &mut Earliest,
    ) -> Vec<Write> {
        again.extend(self.again());
        again.extend(self.reconsidered_at(view));
        let held_until = self.await_dry_run(view).or_else(|| self.job.job_state.held_until(view.now));
        if let Some(until) = held_until {
            again.note(until);
            return Vec::new();
        }
        let Output { writes, changes, again: later } = writes::of(&self, view, numbers, room, draw);
        again.extend(later.at());
        self.job.job_state.apply(changes);
        writes
    }

    /// When the queues or Kueue decide about the job again, although nothing has changed: room is looked for if it was
    /// passed over, other jobs may be preempted for it, or it gives its quota back.
    fn reconsidered_at(&self, view: &ClusterView<'_>) -> Option<Seconds> {
        let job = &self.job;
        let waiting =
            job.job_state.waiting.as_ref().filter(|waiting| job.phase() == Phase::Queued && !waiting.claims)?;
        if waiting.is_passed_over {
            return Some(view.now + 1);
        }
        if waiting.nodes.is_empty() {
            let times = [waiting.again_at, job.job_state.record.preempts_after];
            return times.into_iter().flatten().filter(|at| *at > view.now).min();
        }
        Some(job.cold_until(view).unwrap_or(view.now + 1))
    }

    /// If the dry run of the job's pods has had no answer for a while, the job waits for it. Until then, returns when
    /// this is to be reported.
    fn await_dry_run(&mut self, view: &ClusterView<'_>) -> Option<Seconds> {
        let is_undecided = self.job.is_undecided();
        let job_state = &mut *self.job.job_state;
        if !is_undecided {
            job_state.undecided_since = None;
            return None;
        }
        let reported_at = *job_state.undecided_since.get_or_insert(view.now) + ANSWER_SECONDS;
        if view.now < reported_at {
            return Some(reported_at);
        }
        let spec_hash = job_state.profile.as_ref().map(|profile| &profile.spec_hash);
        let unanswered = spec_hash.and_then(|spec_hash| view.jobs.unanswered.get(spec_hash));
        job_state.waiting = Some(Waiting { why: undecided(unanswered), ..Waiting::default() });
        None
    }
}

/// Why it is not known yet whether a job may queue.
fn undecided(unanswered: Option<&String>) -> String {
    let words = unanswered.map(|words| format!(": {words}")).unwrap_or_default();
    format!("the API server has not answered yet whether it accepts the job's pods{words}")
}
