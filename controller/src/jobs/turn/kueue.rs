//! A job in a queue of Kueue: its Workload decides instead of Larder's queues.

use larder_api::Phase;
use larder_api::training_job::checked::CheckedJob;

use super::decide::Placed;
use super::{JobInRound, Mode, kueue_queue};
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::kueue::decide::{self, Situation};
use crate::jobs::kueue::priority::Classes;
use crate::jobs::kueue::wanted::{Asking, NoWorkload, Wanted};
use crate::jobs::kueue::{messages, names};
use crate::jobs::objects::JobObject;
use crate::jobs::plan::{Cluster, Shortage, place};
use crate::jobs::profile::Profile;
use crate::jobs::queue::{Lack, Verdict, Waiting};
use crate::jobs::render::Place;
use crate::kueue::workload::JobWorkload;
use crate::write::Write;
use larder_kube::key::Key;

/// What Kueue's objects decide about a job.
#[derive(Default)]
pub(super) struct KueueAnswer {
    pub(super) verdict: Option<Verdict>,
    /// Writes to the job's Workload.
    pub(super) writes: Vec<Write>,
}

/// The Workload that has the name for this job, and all Workloads that belong to the job.
fn workloads<'s>(view: &ClusterView<'s>, object: &JobObject) -> Vec<&'s JobWorkload> {
    let own = Key::new(&object.meta.key.namespace, &object.workload());
    let owned = view.kueue.of_jobs.get(&object.meta.uid).into_iter().flatten().filter(|key| **key != own);
    [&own].into_iter().chain(owned).filter_map(|key| view.kueue.of_job(key)).collect()
}

/// Where the pods of a job in a queue of Kueue may run; `None` without an admission.
pub(super) fn admitted_places(
    view: &ClusterView<'_>,
    object: &JobObject,
    job: &CheckedJob,
    profile: &Profile,
) -> Option<Vec<Place>> {
    let (name, workloads) = (object.workload(), workloads(view, object));
    let places =
        decide::admitted_places((&name, &object.meta.uid), job, &workloads, &profile.pods, &view.kueue.flavors);
    places.filter(|_| view.kueue.presence.is_there())
}

impl Placed<'_> {
    /// Kueue's decision about the job, and the writes that Kueue waits for; empty if the job is not in one of its
    /// queues. Nodes for a start or growth are taken from `free`, the room that Larder's queues have left.
    pub(super) fn kueue_answer(&self, view: &ClusterView<'_>, free: &mut Cluster<'_>) -> KueueAnswer {
        let in_round = self.job();
        let Mode::Steps(job) = in_round.mode else { return KueueAnswer::default() };
        let Some(queue) = kueue_queue(job).filter(|_| !in_round.is_undecided()) else { return KueueAnswer::default() };
        let version = view.kueue.version;
        let waits = in_round.phase() == Phase::Queued;
        let is_refused = in_round.eligibility.refusal().is_some();
        if !view.kueue.presence.is_there() {
            let verdict = (waits && !is_refused).then(|| {
                let why = messages::absent(queue, view.kueue.presence.is_unknown());
                Verdict::Wait(Waiting { why, ..Waiting::default() })
            });
            return KueueAnswer { verdict, writes: Vec::new() };
        }
        let workloads = workloads(view, in_round.object);
        if waits && is_refused {
            let own = workloads.into_iter().filter(|workload| workload.is_of(&in_round.object.meta.uid));
            let writes = own.filter_map(|workload| decide::abandon(workload, version)).collect();
            return KueueAnswer { verdict: None, writes };
        }
        let pods = in_round.job_state.profile.as_ref().map_or(&[][..], |profile| &profile.pods);
        let wanted = |replaces: Option<&JobWorkload>| {
            let asking = Asking {
                rendered: in_round.rendered().ok_or_else(|| NoWorkload::NoType(job.kind.clone()))?,
                queue,
                labels: &in_round.object.labels,
                annotations: &in_round.object.annotations,
                pods,
                classes: &Classes::of(&view.kueue.classes, &view.jobs.classes),
                replaces,
            };
            Wanted::of(&asking, version)
        };
        let (state, job_state) = (in_round.state(), &*in_round.job_state);
        let decision = decide::decide(&Situation {
            now: view.now,
            version,
            name: &in_round.key().name,
            uid: &in_round.object.meta.uid,
            job,
            queue,
            workload: &in_round.object.workload(),
            is_prebuilt: in_round.object.prebuilt().is_some(),
            said: job_state.status.waiting_for.as_deref().map(|said| (said, job_state.said_since)),
            wanted: &wanted,
            elastic: names::is_elastic(&in_round.object.annotations),
            pods,
            state,
            observed: &in_round.observed,
            workloads,
            flavors: &view.kueue.flavors,
        });
        let counts = state.phase == Phase::Queued || state.holds_room();
        let verdict = counts.then(|| in_round.with_nodes(view, free, decision.verdict));
        KueueAnswer { verdict, writes: decision.writes }
    }
}

impl JobInRound<'_> {
    /// Adds nodes to a verdict of Kueue, which does not choose them. Without room on nodes, the job neither starts nor
    /// grows.
    fn with_nodes(&self, view: &ClusterView<'_>, free: &mut Cluster<'_>, verdict: Verdict) -> Verdict {
        let state = self.state();
        match verdict {
            Verdict::Start { granted, .. } => {
                let waits =
                    |lacks: Lack, why: String| Verdict::Wait(Waiting { lacks, why, warm: true, ..Waiting::default() });
                if let Some(why) = self.eligibility.shortage() {
                    let lacks = Lack::Namespace;
                    return Verdict::Wait(Waiting { lacks, why: why.clone(), ..Waiting::default() });
                }
                if let Some(until) = state.not_before.filter(|until| *until > view.now) {
                    return waits(Lack::Pause, messages::held_back(until));
                }
                let pods: Vec<Vec<u32>> = granted.iter().map(|pods| (0..*pods).collect()).collect();
                match self.find(view, free, &pods) {
                    Ok(nodes) => Verdict::Start { granted, nodes, flavors: Vec::new() },
                    Err(shortage) => {
                        let lacks = if shortage.is_for_ever() { Lack::Cluster } else { Lack::Nodes };
                        waits(lacks, messages::no_nodes(&shortage))
                    }
                }
            }
            Verdict::Run(mut running) => {
                let now = state.granted();
                let more: Vec<Vec<u32>> =
                    now.iter().zip(&running.may_grow_to).map(|(now, most)| (*now..*most).collect()).collect();
                if more.iter().any(|pods| !pods.is_empty()) && self.find(view, free, &more).is_err() {
                    running.may_grow_to.iter_mut().zip(now).for_each(|(most, now)| *most = now.min(*most));
                }
                Verdict::Run(running)
            }
            verdict => verdict,
        }
    }

    /// Finds nodes for these pods, by role and index, and takes them.
    fn find(
        &self,
        view: &ClusterView<'_>,
        free: &mut Cluster<'_>,
        pods: &[Vec<u32>],
    ) -> Result<Vec<Vec<String>>, Shortage> {
        let Some(gang) = self.gang(view, free, pods).filter(|_| self.is_planned()) else { return Ok(Vec::new()) };
        let placement = place(free, &gang)?;
        let mut found = Vec::new();
        for (nodes, role) in placement.roles.iter().zip(&gang.roles) {
            nodes.iter().for_each(|node| free.take(*node, &role.requests, 1));
            found.push(nodes.iter().map(|node| free.name(*node).to_owned()).collect());
        }
        Ok(found)
    }
}
