//! What Kueue has decided about a job, and the writes to its Workload that follow.

use k8s_openapi::api::core::v1::Pod;
use larder_api::training_job::checked::CheckedJob;

use super::messages;
use super::places::{NoPlace, place};
use super::prebuilt;
use super::slices::{Slices, continues, slices};
use super::status::{Status, let_go, remove};
use super::usage::{is_ready, may_have, over, runs, used};
use super::wanted::{NoWorkload, Wanted};
use crate::jobs::machine::{Observed, Phase, State};
use crate::jobs::queue::{Running, Verdict, Waiting};
use crate::jobs::render::Place;
use crate::kueue::objects::Flavor;
use crate::kueue::workload::JobWorkload;
use crate::time::Seconds;
use crate::write::Write;
use larder_kube::key::Key;
use larder_kube::kinds::KueueVersion;
use larder_kube::store::Store;

/// The inputs of the decision about a job.
pub struct Situation<'a> {
    /// Seconds since 1970.
    pub now: Seconds,
    pub version: KueueVersion,
    pub name: &'a str,
    pub uid: &'a str,
    pub job: &'a CheckedJob,
    /// Its LocalQueue.
    pub queue: &'a str,
    /// The name of its Workload, or of the first of them.
    pub workload: &'a str,
    /// MultiKueue has made the Workload, and its spec is left as it is.
    pub is_prebuilt: bool,
    /// Why the job waits according to its status, and since when that is written there.
    pub said: Option<(&'a str, Seconds)>,
    /// Builds the Workload that the job should have, or the one that should replace this one; or says why it can have
    /// none.
    pub wanted: &'a dyn Fn(Option<&JobWorkload>) -> Result<Wanted, NoWorkload>,
    /// The job grows by Workloads that replace each other.
    pub elastic: bool,
    /// One pod per role, in the order of the roles, without a place.
    pub pods: &'a [Pod],
    pub state: &'a State,
    pub observed: &'a Observed,
    /// The Workload with that name, and all Workloads that belong to the job ([`JobWorkload::owner`]).
    pub workloads: Vec<&'a JobWorkload>,
    /// The ResourceFlavors of the cluster.
    pub flavors: &'a Store<Flavor>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// For the state machine. A start names no nodes: the caller plans them, or leaves them to the scheduler.
    pub verdict: Verdict,
    /// Writes in any order, before or after the job's own state.
    pub writes: Vec<Write>,
    /// Where pods may run, by role; `None` while no pods may be created.
    pub places: Option<Vec<Place>>,
}

/// Decides about a job in a queue of Kueue.
pub fn decide(situation: &Situation<'_>) -> Decision {
    let Situation { version, workloads, workload: name, .. } = situation;
    let Slices { current, next, others } = slices(name, situation.uid, workloads);
    let mut writes: Vec<Write> = others.into_iter().filter_map(|workload| remove(workload, *version)).collect();
    writes.extend(situation.growth(current, next));
    let named = || workloads.iter().find(|workload| workload.meta.key.name == *name && !workload.is_of(situation.uid));
    let mut decision = match (current, named()) {
        (Some(workload), _) => with(situation, workload),
        (None, Some(free)) if situation.is_prebuilt && !free.is_controlled => {
            let write = prebuilt::take_over(free, (situation.name, situation.uid), *version);
            situation.wait(messages::asks(situation.queue)).writing(write)
        }
        (None, Some(_)) => situation.stop(messages::is_of_another(name)),
        (None, None) => without(situation),
    };
    writes.append(&mut decision.writes);
    Decision { writes, ..decision }
}

/// The next write for the Workload of a job that was deleted or has left Kueue's queues. At the end its quota is free.
pub fn abandon(workload: &JobWorkload, version: KueueVersion) -> Option<Write> {
    remove(workload, version)
}

fn without(situation: &Situation<'_>) -> Decision {
    let Situation { state, observed, queue, .. } = situation;
    if state.phase.is_terminal() || observed.terms.suspend {
        return situation.wait(String::new());
    }
    if state.holds_room() {
        return situation.stop("its Workload was deleted".to_owned());
    }
    // The quota of those pods would be used twice.
    if runs(observed, situation.now) {
        return situation.wait("its earlier pods are still terminating".to_owned());
    }
    if situation.is_prebuilt {
        return situation.wait(messages::is_not_made(situation.workload));
    }
    match (situation.wanted)(None) {
        Ok(wanted) => situation.wait(messages::asks(queue)).writing(Some(wanted.create())),
        Err(why) => situation.wait(why.to_string()),
    }
}

fn with(situation: &Situation<'_>, workload: &JobWorkload) -> Decision {
    let Situation { state, observed, version, .. } = situation;
    let is_idle = !state.holds_room() && !runs(observed, situation.now);
    if state.phase.is_terminal() {
        let may_end = is_idle || workload.holding("Finished").is_some();
        return situation.wait(String::new()).writing(end(situation, workload).filter(|_| may_end));
    }
    if observed.terms.suspend {
        // A later start needs a new admission.
        return situation.stop(String::new()).writing(remove(workload, *version).filter(|_| is_idle));
    }
    if workload.meta.deleting {
        let why = "its Workload is being deleted".to_owned();
        return situation.stop(why).writing(let_go(workload, *version).filter(|_| is_idle));
    }
    if let Some(finished) = workload.holding("Finished") {
        let is_given_up = situation.is_prebuilt && finished.reason == prebuilt::OUT_OF_SYNC;
        let why = if is_given_up { finished.message } else { messages::finished(workload, &finished) };
        return situation.stop(why);
    }
    let evicted = workload.holding("Evicted");
    if evicted.is_some() || !workload.active {
        let has_quota = evicted.is_some() && workload.holding("QuotaReserved").is_some();
        let mut status = Status::of(workload, *version, situation.now);
        if has_quota && is_idle {
            status.release();
        }
        // Without quota, a past eviction is the reason for the wait, unless Kueue reports something newer.
        let why = if has_quota || !workload.active {
            messages::evicted(workload, evicted.as_ref())
        } else {
            messages::pending(situation.queue, workload)
        };
        return situation.stop(why).writing(status.write()).writing(situation.update(workload));
    }
    if situation.is_prebuilt
        && !state.holds_room()
        && let Some(why) = prebuilt::difference(workload, situation.job, situation.pods)
    {
        return situation.give_up(workload, why, is_idle);
    }
    if workload.holding("Admitted").is_some() {
        return admitted(situation, workload, is_idle);
    }
    if state.holds_room() && continues(workload) {
        let granted = state.granted();
        let verdict = Verdict::Run(Running { may_grow_to: granted.clone(), granted, ..Running::default() });
        let places = places(situation.job, workload, situation.pods, situation.flavors).ok();
        return Decision { verdict, writes: Vec::new(), places };
    }
    if workload.holding("QuotaReserved").is_some() {
        return situation.stop(messages::checks(workload)).warming();
    }
    situation.stop(messages::pending(situation.queue, workload)).writing(situation.update(workload))
}

/// Reports the job's end to Kueue. Afterwards the Workload is only a record, and may be deleted with the job.
fn end(situation: &Situation<'_>, workload: &JobWorkload) -> Option<Write> {
    if workload.holding("Finished").is_some() || workload.meta.deleting {
        return let_go(workload, situation.version);
    }
    let mut status = Status::of(workload, situation.version, situation.now);
    match situation.state.phase {
        Phase::Succeeded => status.set("Finished", true, "Succeeded", "The job has succeeded"),
        _ => status.set("Finished", true, "Failed", &situation.state.why),
    }
    status.write()
}

fn admitted(situation: &Situation<'_>, workload: &JobWorkload, is_idle: bool) -> Decision {
    let Situation { state, observed, job, version, .. } = situation;
    let terms = &observed.terms;
    let mut granted = Vec::new();
    for (at, role) in job.roles.iter().enumerate() {
        let may_have = may_have(workload, state, terms, at);
        match may_have.filter(|may_have| *may_have >= role.min.max(1)) {
            Some(may_have) => granted.push(may_have.min(role.replicas)),
            None => {
                let why = messages::too_few(role, may_have);
                return situation.stop(why).writing(remove(workload, *version).filter(|_| is_idle));
            }
        }
    }
    let mut status = Status::of(workload, *version, situation.now);
    let places = match places(situation.job, workload, situation.pods, situation.flavors) {
        Ok(places) => Some(places),
        Err(_) if state.holds_room() => None,
        Err(NoPlace::Unknown(why)) => return situation.wait(why.to_string()),
        Err(NoPlace::Contradiction(why)) => {
            // Another admission would have the same contradiction, so Kueue must not retry.
            let why = why.to_string();
            status.set("Finished", true, "FailedToStart", &why);
            return situation.wait(why).writing(status.write().filter(|_| is_idle));
        }
    };
    let verdict = if state.holds_room() {
        news(situation, workload, &granted, &mut status);
        let is_fewer = granted.iter().zip(state.granted()).any(|(granted, before)| *granted < before);
        let why = if is_fewer { messages::FEWER.to_owned() } else { String::new() };
        Verdict::Run(Running { may_grow_to: granted.clone(), granted, why, plan: None })
    } else {
        Verdict::Start { granted, nodes: Vec::new(), flavors: Vec::new() }
    };
    Decision { verdict, writes: status.write().into_iter().collect(), places }
}

/// Where the pods of the job with this uid may run, by role, if one of its Workloads is admitted. `name` is the first of
/// them.
pub fn admitted_places(
    (name, uid): (&str, &str),
    job: &CheckedJob,
    workloads: &[&JobWorkload],
    pods: &[Pod],
    flavors: &Store<Flavor>,
) -> Option<Vec<Place>> {
    let current = slices(name, uid, workloads).current?;
    let may_run = current.holding("Admitted").is_some() || continues(current);
    if may_run { places(job, current, pods, flavors).ok() } else { None }
}

fn places(
    job: &CheckedJob,
    workload: &JobWorkload,
    pods: &[Pod],
    flavors: &Store<Flavor>,
) -> Result<Vec<Place>, NoPlace> {
    let flavor = |name: &str| flavors.get(&Key::cluster(name));
    job.roles.iter().zip(pods).map(|(role, pod)| place(workload, &role.name, pod, flavor)).collect()
}

/// Reports the progress of a running job to Kueue.
fn news(situation: &Situation<'_>, workload: &JobWorkload, granted: &[u32], status: &mut Status<'_>) {
    let Situation { state, observed, .. } = situation;
    let given_back = observed.terms.roles.iter().zip(granted).enumerate().map(|(at, (role, granted))| {
        let asked = workload.asked.get(&role.name).copied().unwrap_or(0);
        let assigned = workload.assigned.get(&role.name).and_then(|assigned| assigned.count).unwrap_or(asked);
        // A pod that is missing only for lack of a node may return.
        let used =
            used(state, observed, at, situation.now).max(granted.saturating_sub(over(state, &observed.terms, at)));
        // Kueue counts reclaimable pods from the requested number.
        (role.name.clone(), if used < assigned { asked.saturating_sub(used) } else { 0 })
    });
    status.give_back(&given_back.collect::<Vec<_>>());
    let before = workload.condition("PodsReady");
    let was_ready = workload.holding("PodsReady").is_some();
    match (is_ready(state, observed), was_ready) {
        (true, false) => {
            let recovers = before.is_some_and(|before| before.reason == "WaitForRecovery");
            let reason = if recovers { "Recovered" } else { "Started" };
            status.set("PodsReady", true, reason, "All pods reached readiness and the workload is running");
        }
        (false, true) => {
            let message = "At least one pod has failed, waiting for recovery";
            status.set("PodsReady", false, "WaitForRecovery", message);
        }
        (true, true) | (false, false) => {}
    }
}

impl Situation<'_> {
    /// Updates the Workload if the request has changed and Kueue has not answered yet.
    fn update(&self, workload: &JobWorkload) -> Option<Write> {
        if self.is_prebuilt {
            return None;
        }
        (self.wanted)(None).ok()?.update(workload)
    }

    /// The write that requests more pods than the job's Workload allows, follows the job's spec, or gives the request
    /// up.
    fn growth(&self, current: Option<&JobWorkload>, next: Option<&JobWorkload>) -> Option<Write> {
        match (current.filter(|current| self.outgrows(current)), next) {
            (Some(current), None) => Some((self.wanted)(Some(current)).ok()?.create()),
            (Some(current), Some(next)) if !next.meta.deleting => (self.wanted)(Some(current)).ok()?.update(next),
            (_, Some(next)) => remove(next, self.version),
            (None, None) => None,
        }
    }

    /// True if the job is elastic, runs with all pods that its Workload allows, and its spec has more.
    fn outgrows(&self, current: &JobWorkload) -> bool {
        let Self { state, observed, .. } = self;
        let is_admitted = current.active
            && !current.meta.deleting
            && current.holding("Admitted").is_some()
            && ["Evicted", "Finished"].iter().all(|condition| current.holding(condition).is_none());
        if !self.elastic || !is_admitted || observed.terms.suspend || state.phase != Phase::Running {
            return false;
        }
        let allows = |role: usize| may_have(current, state, &observed.terms, role).unwrap_or(u32::MAX);
        let is_whole = state.granted().iter().enumerate().all(|(role, pods)| *pods >= allows(role));
        is_whole && self.job.roles.iter().enumerate().any(|(at, role)| allows(at) < role.replicas)
    }

    /// The job has no quota and waits.
    fn wait(&self, why: String) -> Decision {
        Decision { verdict: Verdict::Wait(Waiting { why, ..Waiting::default() }), writes: Vec::new(), places: None }
    }

    /// The job waits with quota for other pods. It gives the quota back once its status has said why for a while and
    /// none of its pods runs.
    fn give_up(&self, workload: &JobWorkload, why: String, is_idle: bool) -> Decision {
        let said = self.said.filter(|(said, _)| *said == why && workload.holding("QuotaReserved").is_some());
        let again_at = said.map(|(_, since)| since + prebuilt::SAYS_SECONDS);
        let mut status = Status::of(workload, self.version, self.now);
        if is_idle && again_at.is_some_and(|at| at <= self.now) {
            status.set("Finished", true, prebuilt::OUT_OF_SYNC, &why);
        }
        let verdict = Verdict::Wait(Waiting { why, again_at, ..Waiting::default() });
        Decision { verdict, writes: status.write().into_iter().collect(), places: None }
    }

    /// The job has no quota, and its pods are terminated.
    fn stop(&self, why: String) -> Decision {
        if self.state.holds_room() {
            Decision { verdict: Verdict::Stop { why }, writes: Vec::new(), places: None }
        } else {
            self.wait(why)
        }
    }
}

impl Decision {
    fn writing(mut self, write: Option<Write>) -> Self {
        self.writes.extend(write);
        self
    }

    /// Warms data while the Workload waits for checks.
    fn warming(mut self) -> Self {
        if let Verdict::Wait(waiting) = &mut self.verdict {
            waiting.warm = true;
        }
        self
    }
}
