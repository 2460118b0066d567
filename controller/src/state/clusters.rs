//! The events that concern other clusters and the jobs in them, and the work that follows.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::cluster::{ClusterConditionKind, ClusterReason, ClusterStatus};
use larder_api::names::HERE;
use larder_api::quantity::words::show;
use larder_api::training_job::checked::{CheckedJob, Clusters};
use larder_api::training_job::conditions::JobReason;
use larder_api::training_job::{Phase, TERMS_MAX};
use larder_kube::events::Severity;
use serde_json::json;

use super::State;
use super::watched::{Watched, kept};
use crate::clusters::choice::{Ask, Candidate, Choice, choose};
use crate::clusters::desired::{Desired, GONE_SECONDS, Wanted};
use crate::clusters::elsewhere::{self, Outcome};
use crate::clusters::fence::fence_after;
use crate::clusters::known::{Link, Needs, Report};
use crate::clusters::objects::{self, ClusterObject};
use crate::clusters::summary::{free, held, summary, unused};
use crate::events::write_event;
use crate::jobs::cluster_view::dataset_key;
use crate::jobs::condition::{Finding, condition, time};
use crate::jobs::objects::{JobObject, TypeObject};
use crate::jobs::profile::{Profile, generations};
use crate::jobs::queue::{LeftoverPod, Role};
use crate::jobs::refusal::Refusal;
use crate::jobs::render::Rendered;
use crate::jobs::validate;
use crate::time::Seconds;
use crate::work_queue::Work;
use crate::write::{Change, Write};
use larder_kube::api::DynamicObject;
use larder_kube::key::Key;
use larder_kube::kinds::Kind;
use larder_kube::pod::amounts::Amounts;
use larder_kube::store::{Put, Store};
use serde_json::Error;

/// The pods of a job that started so many seconds before a description of the cluster was written are in it.
const DESCRIBED_SECONDS: i64 = 5;

/// How long a job waits for the end of another home that has a job of its name.
const COLLISION_MILLIS: u64 = (GONE_SECONDS.unsigned_abs() + 120) * 1_000;

impl Watched for ClusterObject {
    kept!(clusters.objects, objects::cluster);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let name = self.meta.key.name.clone();
        if name == HERE {
            state.clusters.leases.clone_from(&self.leases);
        }
        if let Put::Changed(before) = state.clusters.objects.put(self) {
            work.extend([Work::Jobs, Work::Cluster(name)]);
            let parts = |object: &ClusterObject| (object.meta.uid.clone(), object.secret.clone());
            let mut now = state.clusters.objects.iter().map(parts);
            if before.is_none() {
                work.push(Work::JobTypes);
            }
            if before.as_ref().map(parts).is_none_or(|before| !now.any(|now| now == before)) {
                work.push(Work::Links);
            }
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        if key.name == HERE {
            state.clusters.leases.clear();
        }
        state.clusters.objects.take(key);
        work.extend([Work::Jobs, Work::JobTypes, Work::Links]);
    }
}

impl State {
    /// Removes everything known about other clusters, because this one no longer knows of any.
    pub(super) fn forget_clusters(&mut self, work: &mut Vec<Work>) {
        for key in self.clusters.objects.keys() {
            self.remove(Kind::Cluster, &key, work);
        }
        self.clusters.presence.becomes_absent();
    }

    /// Applies a report of a link. Reports of an earlier link to a cluster of this name do not count.
    pub(super) fn link_reports(&mut self, cluster: &str, number: u64, report: Report, work: &mut Vec<Work>) {
        let now = self.clusters.now;
        let Some(link) = self.clusters.links.get_mut(cluster).filter(|link| link.number == number) else { return };
        link.apply(report, now);
        work.extend([Work::Jobs, Work::Cluster(cluster.to_owned())]);
    }

    /// The jobs that may run in other clusters.
    fn spread(&self) -> impl Iterator<Item = &JobObject> {
        self.clusters.jobs.iter().filter_map(|key| self.jobs.jobs.get(key)).filter(|object| object.is_spread())
    }

    /// Finds the jobs that may run in other clusters, and the quota that they use there.
    pub(super) fn count_elsewhere(&mut self, now: Seconds) {
        let leases = self.clusters.leases.iter().map(|(home, lease)| (home.clone(), *lease));
        let read = |object: &JobObject| Some((object.meta.uid.clone(), object.home.as_ref()?.read));
        self.clusters.void.refresh(leases.chain(self.jobs.jobs.iter().filter_map(read)), now);
        let spread = self.jobs.jobs.iter().filter(|object| object.is_spread());
        self.clusters.jobs = spread.map(|object| object.meta.key.clone()).collect();
        let known: BTreeSet<&Key> = self.clusters.jobs.iter().collect();
        for link in self.clusters.links.values_mut() {
            link.refused.retain(|key, _| known.contains(key));
        }
        let away = self.jobs.jobs.iter().filter(|object| object.is_spread() || object.is_moved());
        let away: BTreeSet<Key> = away.map(|object| object.meta.key.clone()).collect();
        self.clusters.needs.retain(|key, _| away.contains(key));
        for key in away {
            if let Some(needs) = self.needs(&key, now) {
                self.clusters.needs.insert(key, needs);
            }
        }
        let count = |object: &JobObject| {
            let queue = object.job.as_ref().ok()?.queue().unwrap_or_default().to_owned();
            let is_counted = is_away(object) && !is_at_rest(object);
            let roles = is_counted.then(|| self.roles(object))??;
            Some(LeftoverPod { queue, requests: requests(roles), stays: true, ..LeftoverPod::default() })
        };
        self.clusters.counted = self.spread().filter_map(count).collect();
    }

    /// The requirements of a job, if they are not known yet.
    fn needs(&self, key: &Key, now: Seconds) -> Option<Needs> {
        let object = self.jobs.jobs.get(key)?;
        let job = object.job.as_ref().ok()?;
        let of_type = self.jobs.types.get(&Key::cluster(&job.kind));
        let of = of_type.map(|of_type| generations(object, of_type)).unwrap_or_default();
        let is_known = |of_type: &TypeObject| match self.clusters.needs.get(key) {
            Some(Needs { profile: Ok(profile), .. }) => profile.is_of(object, of_type),
            Some(needs) => needs.of == of,
            None => false,
        };
        if of_type.is_some_and(is_known) {
            return None;
        }
        let profile = validate::kind(&self.cluster_view(now), job).and_then(|kind| {
            let (namespace, name) = (object.meta.key.namespace.as_str(), object.meta.key.name.as_str());
            let rendered = Rendered { namespace, name, uid: &object.meta.uid, job, kind };
            let of_type = of_type.ok_or_else(|| Refusal::new(JobReason::TypeMissing, "there is no such JobType"))?;
            let mut profile = Profile::new(object, of_type, &rendered)?;
            profile.refusal.take().map_or(Ok(profile), Err)
        });
        Some(Needs { of, profile })
    }

    pub(super) fn roles(&self, object: &JobObject) -> Option<&[Role]> {
        Some(&self.clusters.needs.get(&object.meta.key)?.profile.as_ref().ok()?.roles)
    }

    /// Chooses clusters for the jobs that have none, and schedules the work about each job.
    pub(super) fn choose_clusters(&mut self, now: Seconds, work: &mut Vec<Work>) {
        self.forget_leaving();
        self.find_collisions();
        let mut choices = BTreeMap::new();
        let view = self.cluster_view(now);
        let mut waiting: Vec<(i32, &JobObject, &CheckedJob)> = self
            .spread()
            .filter(|object| is_waiting(object))
            .filter_map(|object| Some((object, object.job.as_ref().ok()?)))
            .map(|(object, job)| (view.priority(job), object, job))
            .collect();
        if !waiting.is_empty() {
            waiting.sort_by_key(|(priority, object, _)| (-i64::from(*priority), object.meta.created, &object.meta.key));
            let mut candidates = self.candidates(now);
            let mut taken: BTreeMap<&str, Amounts> = BTreeMap::new();
            for (_, object, job) in waiting {
                choices.insert(object.meta.key.clone(), self.choice(now, object, job, &mut candidates, &mut taken));
            }
        }
        self.clusters.choices = choices;
        work.extend(self.clusters.jobs.iter().cloned().map(Work::Elsewhere));
    }

    /// The clusters with the room that the jobs there leave. Jobs whose pods are not there yet are not in the
    /// description of their cluster.
    pub(super) fn candidates(&self, now: Seconds) -> Vec<Candidate> {
        let candidate = |object: &ClusterObject| {
            let name = object.meta.key.name.as_str();
            let link = self.clusters.links.get(name);
            let own;
            let status = match link {
                _ if name == HERE => {
                    own = summary(&self.cluster_view(now));
                    &own
                }
                Some(link) => &link.status,
                None => &object.status,
            };
            let is_well = name == HERE || link.is_some_and(|link| link.is_reachable(self.clusters.now));
            let mut free = free(status);
            let heartbeat = status.heartbeat.as_ref().map(Seconds::of);
            let placed = self.spread().filter(|job| is_in(job, name) && !is_at_rest(job));
            let placed = placed.filter(|job| !is_described(job, heartbeat));
            for roles in placed.filter_map(|job| self.roles(job)) {
                free.take(roles);
            }
            Candidate {
                name: name.to_owned(),
                free,
                datasets: held(status),
                cost: object.cost,
                weight: object.weight,
                obstacle: (!is_well).then(|| "does not answer".to_owned()),
            }
        };
        self.clusters.objects.iter().map(candidate).collect()
    }

    /// Where a job goes, or why it waits. `taken` is the quota that this round has given to jobs, by queue.
    fn choice<'s>(
        &'s self,
        now: Seconds,
        object: &'s JobObject,
        job: &'s CheckedJob,
        candidates: &mut [Candidate],
        taken: &mut BTreeMap<&'s str, Amounts>,
    ) -> Choice {
        let view = self.cluster_view(now);
        let wait = |reason, why: String| Choice::Wait { terms: Vec::new(), reason, why };
        let roles = match self.clusters.needs.get(&object.meta.key).map(|needs| &needs.profile) {
            Some(Ok(profile)) => &profile.roles,
            Some(Err(refusal)) => return wait(refusal.reason, refusal.why.clone()),
            None => return wait(JobReason::Waiting, "its pods are not known yet".to_owned()),
        };
        if let Err(refusal) = validate::grants(&view, &object.meta.key.namespace, job) {
            return wait(refusal.reason, refusal.why);
        }
        if let Clusters::Names(names) = &job.clusters
            && let Some(missing) = names.iter().find(|name| self.clusters.objects.get(&Key::cluster(name)).is_none())
        {
            return wait(JobReason::ClusterMissing, format!("there is no Cluster {missing}: larder cluster list"));
        }
        let all = requests(roles);
        let queue = job.queue().unwrap_or_default();
        let of_queue = taken.entry(queue).or_default();
        let short = all.iter().find_map(|(resource, amount)| {
            let left = unused(&view, queue, resource)?.saturating_sub(of_queue.get(resource));
            (amount > left)
                .then(|| format!("queue {queue} has {} left, needs {}", show(resource, left), show(resource, amount)))
        });
        if let Some(why) = short {
            return wait(JobReason::QuotaUsed, why);
        }
        let key = &object.meta.key;
        // A link that is being made may be to the cluster that has the job already.
        let millis = self.clusters.now;
        let is_new = |link: &Link| !link.is_reachable(millis) && !link.is_silent(millis);
        let mut links = self.clusters.links.iter().filter(|(name, _)| job.clusters.allow(name));
        if let Some((name, _)) = links.find(|(_, link)| is_new(link)) {
            return wait(JobReason::NoCluster, format!("cluster {name} is being asked"));
        }
        let mut excluded: BTreeSet<String> =
            object.status.placement.iter().flat_map(|placement| &placement.left).cloned().collect();
        // The API of a cluster may answer although its controller has stopped, so the copy there can be deleted first.
        // Otherwise its lease must be old: an earlier process may have decided that the job leaves the cluster, and this
        // one may have renewed the lease before that was written.
        let failover = object.failover().unwrap_or(0);
        let may_run = |link: &Link| link.has_listed() || link.silent_seconds(millis) <= failover;
        if let Some(name) = excluded.iter().find(|name| self.clusters.links.get(*name).is_some_and(may_run)) {
            return wait(JobReason::NoCluster, format!("its copy in cluster {name} may still have pods"));
        }
        let listed = self.clusters.links.iter().filter(|(_, link)| link.has_listed());
        for (name, link) in listed.filter(|(name, _)| job.clusters.allow(name)) {
            // Such as that of a job whose status was lost: this home is restored from a backup.
            if link.job(key, &object.meta.uid).is_some() {
                return wait(JobReason::NoCluster, format!("its copy in cluster {name} is being deleted"));
            }
            // A copy of another home that is gone is taken over, and no other is started beside it.
            let Some(age) = link.other_home(key) else { continue };
            if age > GONE_SECONDS {
                of_queue.add(&all, 1);
                return Choice::Place { cluster: name.clone(), terms: Vec::new() };
            }
            // The other home is there, and its job has the name by chance. Or the cluster lies.
            if self.clusters.collisions.get(key).is_some_and(|since| millis - *since > COLLISION_MILLIS) {
                excluded.insert(name.clone());
                continue;
            }
            let why = format!(
                "cluster {name} runs a job of that name for another home; it is taken over if that home is silent for \
                 {GONE_SECONDS} s"
            );
            return wait(JobReason::NoCluster, why);
        }
        let datasets: Vec<(String, u64)> = job
            .datasets
            .iter()
            .map(|mount| dataset_key(&mount.dataset))
            .map(|key| (key.to_string(), view.bytes(&key)))
            .collect();
        let allowed = candidates.iter_mut().filter(|candidate| job.clusters.allow(&candidate.name));
        let allowed = allowed.filter(|candidate| !excluded.contains(&candidate.name));
        let (mut terms, chosen) = choose(Ask { roles, datasets: &datasets }, allowed);
        terms.truncate(TERMS_MAX);
        match chosen {
            Some(cluster) => {
                of_queue.add(&all, 1);
                Choice::Place { cluster, terms }
            }
            None => {
                let each = terms.iter().map(|term| format!("{}: {}", term.cluster, term.why));
                let each: Vec<String> = each.collect();
                let why = if each.is_empty() {
                    "there is no Cluster that it may run in: larder cluster list".to_owned()
                } else {
                    format!("fits in none of its clusters now ({})", each.join("; "))
                };
                Choice::Wait { terms, reason: JobReason::NoCluster, why }
            }
        }
    }

    /// The decision about a job that may run in other clusters.
    pub fn elsewhere(&mut self, key: &Key, now: Seconds) -> Outcome {
        let Some(object) = self.jobs.jobs.get(key).filter(|object| object.is_spread()) else {
            return Outcome::default();
        };
        let choice = self.clusters.choices.get(key);
        let outcome = elsewhere::decide(object, &self.clusters, choice, self.settings.keep_ended_jobs, now);
        if let Some(cluster) = &outcome.leaves {
            let uid = object.meta.uid.clone();
            self.clusters.leaving.entry(cluster.clone()).or_default().insert(uid);
        }
        outcome
    }

    /// Forgets the jobs that have left a cluster, once that is written.
    fn forget_leaving(&mut self) {
        let mut leaving = std::mem::take(&mut self.clusters.leaving);
        for (cluster, uids) in &mut leaving {
            let there: BTreeSet<&str> =
                self.spread().filter(|object| is_in(object, cluster)).map(|object| object.meta.uid.as_str()).collect();
            uids.retain(|uid| there.contains(uid.as_str()));
        }
        leaving.retain(|_, uids| !uids.is_empty());
        self.clusters.leaving = leaving;
    }

    /// Finds the jobs that wait while another home has one of their name, and since when: not since their creation, as
    /// they may have been suspended, in a home that stands by.
    fn find_collisions(&mut self) {
        let mut before = std::mem::take(&mut self.clusters.collisions);
        let collides = |object: &&JobObject| {
            let Ok(job) = &object.job else { return false };
            let mut links = self.clusters.links.iter().filter(|(name, _)| job.clusters.allow(name));
            is_waiting(object)
                && links.any(|(_, link)| link.has_listed() && link.other_home(&object.meta.key).is_some())
        };
        let now = self.clusters.now;
        let since = |object: &JobObject| {
            let key = object.meta.key.clone();
            let since = before.remove(&key).unwrap_or(now);
            (key, since)
        };
        self.clusters.collisions = self.spread().filter(collides).map(since).collect();
    }

    /// The state that a cluster should have, by what is written here.
    pub fn desired(&self, cluster: &str) -> Desired {
        let Some(link) = self.clusters.links.get(cluster).filter(|_| self.jobs.presence.is_there()) else {
            return Desired::default();
        };
        let is_reachable = link.is_reachable(self.clusters.now);
        let wanted = |object: &JobObject| {
            let placement = object.status.placement.as_ref()?;
            let uid = object.meta.uid.clone();
            let has_left = placement.left.iter().any(|left| left == cluster);
            let is_kept = placement.cluster == cluster
                && object.is_finalized()
                && !object.meta.deleting
                && !self.clusters.is_leaving(cluster, &uid);
            if !is_kept && !has_left && placement.cluster != cluster {
                return None;
            }
            let wanted = Wanted {
                uid,
                generation: object.generation,
                fence_after: object.failover().map(fence_after),
                is_kept,
                may_begin: is_reachable && !is_ended(object),
            };
            Some((object.meta.key.clone(), wanted))
        };
        // All of them, and not those of the last round: a copy of a job that is missing here would be deleted.
        let spread = self.jobs.jobs.iter().filter(|object| object.is_spread());
        Desired { home: link.home.clone(), read: link.read, jobs: spread.filter_map(wanted).collect() }
    }

    /// The writes that bring the status of a Cluster up to date.
    pub fn cluster_status(&self, name: &str, now: Seconds) -> Vec<Write> {
        let Some(object) = self.clusters.objects.get(&Key::cluster(name)) else { return Vec::new() };
        let link = self.clusters.links.get(name);
        let mut status = match link {
            _ if name == HERE => ClusterStatus { heartbeat: Some(time(now)), ..summary(&self.cluster_view(now)) },
            Some(link) => ClusterStatus {
                heartbeat: None,
                latency_millis: link.lost.is_none().then_some(link.latency_millis),
                ..link.status.clone()
            },
            None => object.status.clone(),
        };
        let Some((reason, message)) = self.reachable(name, link) else { return Vec::new() };
        let is = matches!(reason, ClusterReason::Answers | ClusterReason::IsHere);
        let finding = Finding { is, reason: reason.as_str(), message };
        let kind = ClusterConditionKind::Reachable;
        let before = &object.status.conditions;
        status.observed_generation = Some(object.generation);
        status.conditions = vec![condition(kind.as_str(), finding, object.generation, before, now)];
        let gist = |status: &ClusterStatus| ClusterStatus { latency_millis: None, ..status.clone() };
        if gist(&status) == gist(&object.status) {
            return Vec::new();
        }
        let condition = &status.conditions[0];
        let was = kind.find(before).map(|before| before.status.as_str());
        let event = (!is && was == Some("True")).then(|| {
            let said = (Severity::Warning, reason.as_str(), condition.message.as_str());
            let since = condition.last_transition_time.0.to_string();
            write_event(now, Kind::Cluster, &object.meta, &[&*object.meta.uid, &*since], said)
        });
        let fields = json!({"metadata": {"uid": object.meta.uid}, "status": status});
        let write = Write::new(Kind::Cluster, "", name, Change::ApplyStatus(fields));
        std::iter::once(write).chain(event).collect()
    }

    /// Whether a cluster answers, and why not. `None`: it has been silent for a moment, which means nothing yet.
    fn reachable(&self, name: &str, link: Option<&Link>) -> Option<(ClusterReason, String)> {
        if name == HERE {
            return Some((ClusterReason::IsHere, String::new()));
        }
        let link = link?;
        if link.is_reachable(self.clusters.now) {
            return Some((ClusterReason::Answers, String::new()));
        }
        let stopped = || {
            let why = "its larder-controller has not written the status of its Cluster `here` for half a minute";
            (ClusterReason::NoAnswer, why.to_owned())
        };
        let (reason, why) = link.lost.clone().unwrap_or_else(stopped);
        (reason != ClusterReason::NoAnswer || link.is_silent(self.clusters.now)).then_some((reason, why))
    }
}

/// The requests of the pods that a job asks for.
fn requests(roles: &[Role]) -> Amounts {
    let mut all = Amounts::default();
    roles.iter().for_each(|role| all.add(&role.requests, u64::from(role.wanted)));
    all
}

/// True if a job is in this cluster.
fn is_in(object: &JobObject, cluster: &str) -> bool {
    object.status.placement.as_ref().is_some_and(|placement| placement.cluster == cluster)
}

/// True if a job is in another cluster.
fn is_away(object: &JobObject) -> bool {
    object.status.placement.as_ref().is_some_and(|placement| !["", HERE].contains(&placement.cluster.as_str()))
}

/// True if a cluster is to be chosen for a job.
fn is_waiting(object: &JobObject) -> bool {
    let is_placed = object.status.placement.as_ref().is_some_and(|placement| !placement.cluster.is_empty());
    let may_start = object.job.as_ref().is_ok_and(|job| !job.suspend);
    !is_placed && may_start && !object.meta.deleting && !is_ended(object)
}

fn is_ended(object: &JobObject) -> bool {
    object.status.phase.is_some_and(Phase::is_terminal)
}

/// True if a job uses no quota.
fn is_at_rest(object: &JobObject) -> bool {
    is_ended(object) || object.status.phase == Some(Phase::Suspended)
}

/// True if the pods of a job are in the description of its cluster, which is of this time. Both times are of the clock
/// of that cluster.
fn is_described(object: &JobObject, heartbeat: Option<Seconds>) -> bool {
    let started = object.status.started.as_ref().map(Seconds::of);
    let is_before = |heartbeat: Seconds| started.is_some_and(|started| started + DESCRIBED_SECONDS < heartbeat);
    object.status.phase.is_some_and(Phase::has_pods) && heartbeat.is_none_or(is_before)
}
