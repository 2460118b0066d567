//! Builds a [`Case`] from a request and a snapshot.

use std::sync::Arc;
use std::time::Instant;

use super::ledger::Turn;
use super::{Case, NodeCase, PodCase, RoleRoom};
use crate::constraints::has_constraints;
use crate::index::facts::{Name, PodFacts, Seat};
use crate::index::state::Snapshot;
use crate::wire::{PreemptArgs, Refused, Spec, Victims};

/// Everything that the answer to `args` depends on.
pub fn gather(
    args: &PreemptArgs<'_>,
    snapshot: &Snapshot,
    ledger: &mut Turn<'_>,
    now: Instant,
) -> Result<Case, Refused> {
    let Spec { spec, is_whole } = args.pod.spec()?;
    let mut gather = Gather { snapshot, roles: Vec::new() };
    let mut nodes: Vec<NodeCase> = args.nodes.iter().map(|victims| gather.node(victims)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let uid = args.pod.metadata.uid.to_string();
    if uid.is_empty() {
        return Err(Refused("Pod.metadata.uid is missing: it tells whose earlier answer this one replaces".to_owned()));
    }
    let room = |(job, role): &(Name, Name)| {
        let state = snapshot.jobs.get(job);
        RoleRoom {
            name: format!("{job} {role}"),
            live: state.map_or(0, |state| state.live(role)),
            spoken_for: ledger.spoken_for(&uid, job, role, snapshot, now),
            floor: state.and_then(|state| state.floor(role)),
        }
    };
    let roles = gather.roles.iter().map(room).collect();
    // What could not be read may be a constraint.
    let (pod, entangled) = (args.pod.key(), !is_whole || has_constraints(&spec));
    Ok(Case { pod, uid, priority: spec.priority.unwrap_or_default(), entangled, roles, nodes })
}

struct Gather<'s> {
    snapshot: &'s Snapshot,
    /// The jobs and roles, as a list without duplicates.
    roles: Vec<(Name, Name)>,
}

impl Gather<'_> {
    fn node(&mut self, victims: &Victims<'_>) -> NodeCase {
        let name = victims.node.as_str().to_owned();
        let uids = || victims.uids.iter().map(|uid| uid.as_str());
        let asked = uids().map(|uid| {
            let unknown = || PodCase { uid: uid.to_owned(), ..PodCase::default() };
            self.snapshot.pods.get(uid).map_or_else(unknown, |pod| self.candidate(pod))
        });
        let asked: Vec<PodCase> = asked.collect();
        let there = self.snapshot.nodes.get(name.as_str()).map_or(&[][..], |node| &node.pods);
        let snapshot = self.snapshot;
        let is_other = |pod: &&Arc<PodFacts>| seat(snapshot, pod).is_some() && !uids().any(|uid| *uid == *pod.uid);
        let workers = there.iter().filter(is_other).map(|pod| self.candidate(pod)).collect();
        NodeCase { name, victims: asked, workers, budget_violations: victims.budget_violations }
    }

    fn candidate(&mut self, pod: &PodFacts) -> PodCase {
        let seat = seat(self.snapshot, pod).map(|seat| {
            let at = self.roles.iter().position(|(job, role)| (job, role) == (&seat.job, &seat.role));
            let at = at.unwrap_or_else(|| {
                self.roles.push((Arc::clone(&seat.job), Arc::clone(&seat.role)));
                self.roles.len() - 1
            });
            (at, seat.index)
        });
        PodCase {
            uid: pod.uid.to_string(),
            known: true,
            priority: pod.priority,
            seat,
            pinned: pod.pinned,
            entangled: pod.entangled,
            leaving: pod.leaving,
            requests: pod.requests.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect(),
        }
    }
}

/// The position of a pod in an existing job. Any user can write the name of a job into a pod to protect it, so it is
/// verified.
fn seat<'p>(snapshot: &Snapshot, pod: &'p PodFacts) -> Option<&'p Seat> {
    let seat = pod.seat.as_ref()?;
    let job = snapshot.jobs.get(&seat.job)?.facts.as_ref()?;
    (job.uid == seat.uid).then_some(seat)
}
