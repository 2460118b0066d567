//! The end of a job's turn: the data that it requests, and all that is written for it.

use std::collections::BTreeMap;

use larder_api::Phase;

use super::decide::Decided;
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::machine::Action;
use crate::jobs::queue::Waiting;
use crate::jobs::writes::{self, Inputs, Output};
use crate::time::{Earliest, Seconds};
use crate::warm_request::{Requester, WarmRequest};
use crate::write::Write;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use larder_kube::key::Key;
use larder_kube::pod::node_affinity::Places;

/// A job says what it waits for if its dry run has no answer after this time.
const ANSWER_SECONDS: i64 = 2;

/// What a turn leaves behind.
pub(in crate::jobs) struct Written {
    pub(in crate::jobs) key: Key,
    pub(in crate::jobs) writes: Vec<Write>,
    /// When time alone may change something.
    pub(in crate::jobs) again: Earliest,
}

impl Decided<'_> {
    /// Requests that its data is warmed on the nodes where its pods are or will be, or, if the job comes next, where they might be.
    pub(in crate::jobs) fn request_data(&self, requests: &mut BTreeMap<Key, Vec<WarmRequest>>) {
        let job = &self.job;
        let state = &job.job_state.record.state;
        let datasets = job.datasets();
        if datasets.is_empty() {
            return;
        }
        let by = || Requester::Job(job.key.clone());
        let comes_next = job.job_state.waiting.as_ref().is_some_and(|waiting| waiting.warm);
        let mut found = Vec::new();
        if state.holds_room() {
            let nodes: Vec<String> = job.nodes().into_iter().collect();
            let pods = nodes.len();
            let named = NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(nodes),
            };
            let term = NodeSelectorTerm { match_fields: Some(vec![named]), ..NodeSelectorTerm::default() };
            let any = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
            let places = Places { terms: vec![term], tolerations: vec![any], ..Places::default() };
            found.push(WarmRequest { by: by(), since: state.since, pods, places });
        } else if state.phase == Phase::Queued && comes_next && job.eligibility.refusal().is_none() {
            found.extend(job.roles().iter().map(|role| WarmRequest {
                by: by(),
                since: Seconds(job.object.meta.created),
                pods: role.wanted as usize,
                places: role.places.clone(),
            }));
        }
        if found.is_empty() {
            return;
        }
        for dataset in datasets {
            requests.entry(dataset).or_default().extend(found.iter().cloned());
        }
    }

    /// Collects all that is to be written. `waiting` is how many jobs are queued, `draw` makes the key of a launcher.
    pub(in crate::jobs) fn write(self, view: &ClusterView<'_>, waiting: usize, draw: &dyn Fn() -> String) -> Written {
        let mut again = Earliest::default();
        let key = self.job.key.clone();
        let writes =
            if self.job.job_state.is_idle() { self.writes(view, waiting, draw, &mut again) } else { Vec::new() };
        Written { key, writes, again }
    }

    fn writes(
        self,
        view: &ClusterView<'_>,
        waiting: usize,
        draw: &dyn Fn() -> String,
        again: &mut Earliest,
    ) -> Vec<Write> {
        let Self { job, actions, verdict, for_kueue } = self;
        let next = actions.iter().find_map(|action| match action {
            Action::Again(at) => Some(*at),
            _ => None,
        });
        again.extend(next);
        if job.is_undecided() {
            let since = *job.job_state.undecided_since.get_or_insert(view.now);
            if view.now < since + ANSWER_SECONDS {
                again.note(since + ANSWER_SECONDS);
                return Vec::new();
            }
            let spec_hash = job.job_state.profile.as_ref().map(|profile| &profile.spec_hash);
            let unanswered = spec_hash.and_then(|spec_hash| view.jobs.unanswered.get(spec_hash));
            job.job_state.waiting = Some(Waiting { why: undecided(unanswered), ..Waiting::default() });
        } else {
            job.job_state.undecided_since = None;
        }
        if job.job_state.holds_back(view.now) {
            again.note(job.job_state.retry_at);
            return Vec::new();
        }
        let inputs = Inputs {
            view,
            object: job.object,
            rendered: job.rendered(),
            eligibility: &job.eligibility,
            pods: &job.pods,
            observed: &job.observed,
            actions: &actions,
            verdict: verdict.as_ref(),
            planner: job.planner(),
            places: job.places(),
            for_kueue: &for_kueue,
            waiting,
            draw,
        };
        let Output { writes, pending, again: later, unrendered } = writes::of(&inputs, job.job_state);
        again.extend(later.at());
        // Pods of an ended job use quota until they have ended too, or their node is lost.
        let is_over = job.phase().is_terminal() && !job.runs(view);
        job.job_state.unrendered = unrendered;
        if writes.is_empty() && later.at().is_none() && is_over {
            job.job_state.sleeps_until = next.unwrap_or(Seconds::NEVER);
        }
        if !writes.is_empty() {
            job.job_state.pending = Some(pending);
        }
        writes
    }
}

/// Why it is not known yet whether a job may wait for its turn.
fn undecided(unanswered: Option<&String>) -> String {
    let words = unanswered.map(|words| format!(": {words}")).unwrap_or_default();
    format!("the API server has not answered yet whether it accepts the job's pods{words}")
}
