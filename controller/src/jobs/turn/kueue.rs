//! A job in a queue of Kueue's: its Workload instead of a turn in Larder's queues.

use larder_api::Phase;
use larder_api::training_job::checked::Queueing;

use super::{Actor, rendered};
use crate::jobs::cluster_view::Scene;
use crate::jobs::kueue::decide::{Situation, abandon, admitted_places, decide};
use crate::jobs::kueue::priority::Classes;
use crate::jobs::kueue::wanted::{Asking, Wanted};
use crate::jobs::kueue::workload::JobWorkload;
use crate::jobs::kueue::{messages, names};
use crate::jobs::plan::{Cluster, Shortage, place};
use crate::jobs::queue::{Lack, Verdict, Waiting};
use larder_kube::key::Key;

impl<'a> Actor<'a> {
    /// Its LocalQueue; `None` if Kueue has nothing to do with it.
    pub(in crate::jobs) fn kueue_queue(&self) -> Option<&'a str> {
        match &self.job?.queueing {
            Queueing::Kueue(queue) => Some(queue),
            Queueing::None | Queueing::Queue(_) => None,
        }
    }

    /// The Workload that has its name, and all that belong to it.
    fn workloads<'s>(&self, scene: &Scene<'s>) -> Vec<&'s JobWorkload> {
        let uid = &self.object.meta.uid;
        let own = Key::new(&self.key.namespace, &names::workload(&self.key.name, uid));
        let owned = scene.kueue.of_jobs.get(uid).into_iter().flatten().filter(|key| **key != own);
        [&own].into_iter().chain(owned).filter_map(|key| scene.kueue.of_job(key)).collect()
    }

    /// Finds out where its pods may be. Without an admission, they may be nowhere.
    pub(super) fn look_at_kueue(&mut self, scene: &Scene<'_>) {
        let (Some(job), Some(profile)) = (self.job.filter(|_| self.kueue_queue().is_some()), &self.memory.profile)
        else {
            return;
        };
        let name = names::workload(&self.key.name, &self.object.meta.uid);
        let workloads = self.workloads(scene);
        let own =
            workloads.iter().find(|workload| workload.meta.key.name == name && workload.is_of(&self.object.meta.uid));
        let places = own.and_then(|own| admitted_places(job, own, &profile.pods, &scene.kueue.flavors));
        self.places = places.filter(|_| scene.kueue.presence.is_there());
    }

    /// Takes what Kueue has decided. `free` is the room that is left for it.
    pub(in crate::jobs) fn hear_kueue(&mut self, scene: &Scene<'_>, free: &mut Cluster<'_>) {
        let (Some(queue), Some(job)) = (self.kueue_queue(), self.job) else { return };
        if !self.can_step() || self.is_undecided() {
            return;
        }
        let version = scene.kueue.version;
        let waits = self.phase() == Phase::Queued;
        if !scene.kueue.presence.is_there() {
            if waits && self.refusal.is_none() {
                let why = messages::absent(queue, scene.kueue.presence.is_unknown());
                self.hear(scene, Verdict::Wait(Waiting { why, ..Waiting::default() }));
            }
            return;
        }
        let workloads = self.workloads(scene);
        if waits && self.refusal.is_some() {
            let own = workloads.into_iter().filter(|workload| workload.is_of(&self.object.meta.uid));
            self.for_kueue = own.filter_map(|workload| abandon(workload, version)).collect();
            return;
        }
        let pods = self.memory.profile.as_ref().map_or(&[][..], |profile| &profile.pods);
        let wanted = || {
            let kind = self.kind.ok_or_else(|| format!("there is no JobType {}", job.kind))?;
            let asking = Asking {
                rendered: rendered(self.object, job, kind),
                queue,
                labels: &self.object.labels,
                annotations: &self.object.annotations,
                pods,
                classes: &classes(scene),
            };
            Wanted::of(&asking, version)
        };
        let decision = decide(&Situation {
            now: scene.now,
            version,
            name: &self.key.name,
            uid: &self.object.meta.uid,
            job,
            queue,
            wanted: &wanted,
            pods,
            state: &self.memory.record.state,
            observed: &self.observed,
            workloads,
            flavors: &scene.kueue.flavors,
        });
        self.for_kueue = decision.writes;
        let state = &self.memory.record.state;
        if state.phase == Phase::Queued || state.holds_room() {
            let verdict = self.with_nodes(scene, free, decision.verdict);
            self.hear(scene, verdict);
        }
    }

    /// A verdict of Kueue's with nodes, of which it knows nothing. Without room on them there is no start and no growth.
    fn with_nodes(&self, scene: &Scene<'_>, free: &mut Cluster<'_>, verdict: Verdict) -> Verdict {
        let state = &self.memory.record.state;
        match verdict {
            Verdict::Start { granted, .. } => {
                let waits =
                    |lacks: Lack, why: String| Verdict::Wait(Waiting { lacks, why, warm: true, ..Waiting::default() });
                if let Some(why) = &self.shortage {
                    let lacks = Lack::Namespace;
                    return Verdict::Wait(Waiting { lacks, why: why.clone(), ..Waiting::default() });
                }
                if let Some(until) = state.not_before.filter(|until| *until > scene.now) {
                    return waits(Lack::Pause, messages::held_back(until));
                }
                let pods: Vec<Vec<u32>> = granted.iter().map(|pods| (0..*pods).collect()).collect();
                match self.find(scene, free, &pods) {
                    Ok(nodes) => Verdict::Start { granted, nodes },
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
                if more.iter().any(|pods| !pods.is_empty()) && self.find(scene, free, &more).is_err() {
                    running.may_grow_to.iter_mut().zip(now).for_each(|(most, now)| *most = now.min(*most));
                }
                Verdict::Run(running)
            }
            verdict => verdict,
        }
    }

    /// Nodes for these pods, by role and index, which are taken.
    fn find(&self, scene: &Scene<'_>, free: &mut Cluster<'_>, pods: &[Vec<u32>]) -> Result<Vec<Vec<String>>, Shortage> {
        let Some(gang) = self.gang(scene, free, pods).filter(|_| self.is_planned()) else { return Ok(Vec::new()) };
        let placement = place(free, &gang)?;
        let mut found = Vec::new();
        for (nodes, role) in placement.roles.iter().zip(&gang.roles) {
            nodes.iter().for_each(|node| free.take(*node, &role.requests, 1));
            found.push(nodes.iter().map(|node| free.name(*node).to_owned()).collect());
        }
        Ok(found)
    }
}

/// The classes that priorities are of.
fn classes(scene: &Scene<'_>) -> Classes {
    let classes = &scene.jobs.classes;
    Classes {
        workloads: scene.kueue.classes.iter().map(|class| (class.meta.key.name.clone(), class.value)).collect(),
        pods: classes.iter().map(|class| (class.meta.key.name.clone(), class.value)).collect(),
        default: classes.iter().find(|class| class.is_default).map(|class| class.meta.key.name.clone()),
    }
}
