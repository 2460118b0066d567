//! Brings the bytes to the nodes that promised room: on each node, a short-lived pod mounts the snapshot, warms it and
//! ends.

use larder_api::dataset::LAGGING_MAX;
use larder_api::names::ROLE_WARM;
use larder_api::{ConditionKind, LagReason, LaggingNode, NodesStatus, Reason};

use super::status_draft::{Draft, time};
use super::{claims, names, pods};
use crate::datasets::input::NodeFacts;
use crate::objects::{Job, Key, Pod};
use crate::time::Seconds;
use crate::write::Change;
use larder_kube::kinds::Kind;

/// How long a node may take to report the bytes that a pod has warmed.
const REPORT_SECONDS: i64 = 30;

/// The interval between two checks for a free slot.
const QUEUED_SECONDS: i64 = 60;

/// A node, and what it holds of a snapshot.
struct Holder<'a> {
    facts: &'a NodeFacts<'a>,
    /// Its larderd knows the promise.
    taken: bool,
    /// Its larderd has room for the promise.
    promised: bool,
    cached: u64,
    wanted: u64,
    job: Option<&'a Job>,
    /// Only a queued job requests the node, so the dataset's conditions do not cover it.
    only_requested: bool,
    /// A job with GPUs waits for it.
    urgent: bool,
}

impl Holder<'_> {
    /// One percent may be missing: blocks take slightly more room than their bytes.
    fn is_warm(&self) -> bool {
        self.taken && self.cached.saturating_mul(100) >= self.wanted.saturating_mul(99)
    }
}

pub(super) fn step(draft: &mut Draft<'_>) {
    let view = draft.view;
    let mut slots = view.warming_slots;
    let snapshots: Vec<String> = draft.status.snapshot.iter().chain(&draft.status.next).cloned().collect();
    let mut jobs_wanted = Vec::new();
    for (index, snapshot) in snapshots.iter().enumerate() {
        let holders = holders(draft, snapshot);
        if holders.is_empty() {
            continue;
        }
        let purpose = |holder: &Holder<'_>| format!("{} {snapshot}", holder.facts.node.meta.key.name);
        // Including the jobs of nodes that are warm already: they end on their own.
        let jobs = holders.iter().map(|holder| &holder.facts.node.meta.key.name);
        jobs_wanted.extend(jobs.map(|node| names::warm_job(draft.key(), draft.uid(), snapshot, node)));
        let mut cold: Vec<&Holder<'_>> = holders.iter().filter(|holder| holder.taken && !holder.is_warm()).collect();
        // Nodes of jobs with GPUs come first.
        cold.sort_by_key(|holder| !holder.urgent);
        let claim = names::warm_claim(draft.key(), draft.uid(), snapshot);
        let has_claim = !cold.is_empty() && claims::make_for_warming(draft, &claim, snapshot);
        for holder in cold {
            let node = holder.facts.node.meta.key.name.clone();
            let name = names::warm_job(draft.key(), draft.uid(), snapshot, &node);
            let needs = &mut draft.decision.needs;
            match holder.job {
                Some(job) if holder.urgent && job.end.is_none() && !job.meta.deleting => needs.urgent_held += 1,
                None if has_claim && holder.facts.node.ready && holder.urgent => needs.urgent += 1,
                None if has_claim && holder.facts.node.ready => needs.others += 1,
                _ => {}
            }
            match holder.job {
                _ if !has_claim => {}
                None if holder.facts.node.ready && slots > 0 => {
                    slots -= 1;
                    let key = Key::new(&draft.key().namespace, &name);
                    let job = pods::warm_job(draft, &node, &claim, &purpose(holder));
                    draft.write_with((Kind::Claim, &claim), Kind::Job, &key, Change::Create(job));
                }
                None if holder.facts.node.ready => {
                    // A job that does not start loses its slot without an event, so a timer is needed.
                    draft.decision.again(view.now + QUEUED_SECONDS);
                }
                Some(job) if job.meta.deleting => {}
                // The dataset does not fit completely: a retry makes sense only after Kubernetes has removed this Job.
                Some(job) if job.end.is_some() && !holder.promised => {}
                // The bytes disappeared again after the Job had ended.
                Some(job) if job.end.as_ref().is_some_and(|end| end.at + REPORT_SECONDS < view.now) => {
                    let (key, uid) = (job.meta.key.clone(), job.meta.uid.clone());
                    draft.write(Kind::Job, &key.namespace, &key.name, Change::Delete(uid));
                }
                Some(job) if job.end.is_some() => draft.decision.again(view.now + REPORT_SECONDS + 1),
                _ => {}
            }
        }
        let asked: Vec<Holder<'_>> = holders.into_iter().filter(|holder| !holder.only_requested).collect();
        if index == 0 && !asked.is_empty() {
            tell(draft, &asked);
        }
    }
    end_others(draft, &jobs_wanted);
    if draft.found(ConditionKind::Warm).is_none() {
        tell_without_nodes(draft);
    }
}

/// The nodes that should hold a snapshot. Nodes that only keep pinned bytes are not among them.
fn holders<'a>(draft: &Draft<'a>, snapshot: &str) -> Vec<Holder<'a>> {
    let view = draft.view;
    let decided = |facts: &&NodeFacts<'_>| {
        let promises = draft.decision.promises.get(&facts.node.meta.key.name);
        promises.into_iter().flatten().find(|promise| promise.snapshot == snapshot).map(|promise| promise.bytes)
    };
    let mut holders = Vec::new();
    for facts in &view.nodes {
        let Some(bytes) = decided(&facts) else { continue };
        let at = (facts.node.meta.key.name.clone(), snapshot.to_owned());
        if draft.only_pinned.contains(&at) {
            continue;
        }
        let here = facts.snapshot(snapshot);
        let wanted = here.map(|here| here.wanted_bytes).filter(|wanted| *wanted > 0).unwrap_or(bytes).min(bytes);
        let name = names::warm_job(draft.key(), draft.uid(), snapshot, &facts.node.meta.key.name);
        holders.push(Holder {
            facts,
            taken: facts.has_taken(draft.uid(), snapshot),
            promised: facts.has_promised(draft.uid(), snapshot),
            cached: here.map_or(0, |here| here.bytes),
            wanted,
            job: view.jobs.iter().find(|job| job.meta.key.name == name).copied(),
            only_requested: draft.only_requested.contains(&at),
            urgent: draft.urgent.contains(&at),
        });
    }
    holders
}

/// True if every node that should hold the snapshot has it, or as much of it as it has room for. Also true if there are
/// no such nodes.
pub(super) fn next_is_ready(draft: &Draft<'_>, snapshot: &str) -> bool {
    holders(draft, snapshot).iter().all(|holder| {
        let has_tried = holder.job.is_some_and(|job| job.end.is_some());
        let is_full = has_tried && !holder.promised;
        holder.taken && (is_full || holder.is_warm())
    })
}

/// Deletes the Jobs of nodes that should no longer hold the snapshot.
fn end_others(draft: &mut Draft<'_>, wanted: &[String]) {
    let view = draft.view;
    for job in &view.jobs {
        let name = &job.meta.key.name;
        if job.role.role == ROLE_WARM && job.end.is_none() && !job.meta.deleting && !wanted.contains(name) {
            draft.write(Kind::Job, &job.meta.key.namespace, name, Change::Delete(job.meta.uid.clone()));
        }
    }
}

fn tell_without_nodes(draft: &mut Draft<'_>) {
    draft.status.nodes = Some(NodesStatus::default());
    draft.status.percent = None;
    draft.status.eta = None;
    draft.status.lagging.clear();
    let placed = draft.found(ConditionKind::Placed).map(|verdict| (verdict.status, verdict.reason));
    if placed == Some((true, Reason::NotWanted)) {
        draft.find(ConditionKind::Warm, true, Reason::NotWanted, "nodes hold the dataset once a pod reads it");
    } else {
        draft.find(ConditionKind::Warm, false, Reason::Waiting, "no node has promised room yet");
    }
}

fn tell(draft: &mut Draft<'_>, holders: &[Holder<'_>]) {
    let view = draft.view;
    let count = |of: &dyn Fn(&Holder<'_>) -> bool| holders.iter().filter(|holder| of(holder)).count() as u32;
    let wanted = count(&|_| true);
    let (holding, warm) = (count(&|holder| holder.promised), count(&|holder| holder.is_warm()));
    draft.status.nodes = Some(NodesStatus { wanted, holding, warm });

    let sum = |sum: u64, bytes: u64| sum.saturating_add(bytes);
    let total = holders.iter().map(|holder| holder.wanted).fold(0, sum);
    let cached = holders.iter().map(|holder| holder.cached.min(holder.wanted)).fold(0, sum);
    let percent = if warm == wanted { 100 } else { (u128::from(cached) * 10 / u128::from(total.max(1))) as u32 * 10 };
    if draft.status.percent != Some(percent) {
        draft.status.percent = Some(percent);
        let begun = holders.iter().filter_map(|holder| holder.job).map(|job| job.meta.created).min();
        let eta = begun.filter(|_| (10..100).contains(&percent)).map(|begun| {
            let took = (view.now - Seconds(begun)).max(1);
            view.now + took * i64::from(100 - percent) / i64::from(percent)
        });
        draft.status.eta = eta.map(time);
    }
    draft.status.lagging = holders.iter().filter_map(|holder| lag(draft, holder)).take(LAGGING_MAX).collect();

    if warm == wanted && holding == wanted {
        draft.find(ConditionKind::Warm, true, Reason::Cached, format!("{warm} nodes have all bytes"));
        return;
    }
    let failed = draft.status.lagging.iter().find(|lag| lag.reason == LagReason::WarmingFailed).cloned();
    let (reason, message) = match failed {
        Some(lag) => (Reason::WarmingFailed, format!("{}: {}; retrying", lag.node, lag.message)),
        None if holding == 0 => (Reason::Waiting, "no node has promised room yet".to_owned()),
        None => (Reason::Warming, format!("{percent} % on {wanted} nodes; {warm} have all bytes")),
    };
    draft.find(ConditionKind::Warm, false, reason, message);
    let unkept = draft.status.lagging.iter().find(|lag| lag.reason == LagReason::PromiseUnkept).cloned();
    let lost = draft.status.lagging.iter().find(|lag| lag.reason == LagReason::NotReporting).cloned();
    if let Some(lag) = unkept {
        let message = format!("{} {}", lag.node, lag.message);
        draft.find(ConditionKind::Degraded, true, Reason::PromiseUnkept, message);
    } else if let Some(lag) = lost {
        draft.find(ConditionKind::Degraded, true, Reason::NodeLost, format!("{} {}", lag.node, lag.message));
    }
}

fn lag(draft: &Draft<'_>, holder: &Holder<'_>) -> Option<LaggingNode> {
    if holder.is_warm() {
        return None;
    }
    let node = &holder.facts.node;
    let lag = |reason, message: &str| {
        Some(LaggingNode { node: node.meta.key.name.clone(), reason, message: message.to_owned() })
    };
    if !node.ready {
        return lag(LagReason::NotReporting, "is not ready");
    }
    let status = holder.facts.cache.and_then(|cache| cache.status.as_ref());
    let unkept = status.and_then(|status| status.unkept.iter().find(|unkept| unkept.uid == draft.uid()));
    if let Some(unkept) = unkept {
        let missing = larder_dataset::size::show_bytes(unkept.missing_bytes);
        let limit = status.and_then(|status| status.unkept_because(draft.uid()));
        let why = limit.map(|limit| format!(": {limit}")).unwrap_or_default();
        return lag(LagReason::PromiseUnkept, &format!("lacks {missing} of room for its promise{why}"));
    }
    if !holder.taken {
        return lag(LagReason::Queued, "its larderd has not promised the space yet");
    }
    let Some(job) = holder.job else {
        return lag(LagReason::Queued, "waits for a slot: the limit of warming pods is reached");
    };
    let pod = draft.view.job_pods.iter().find(|pod| pod.is_of(job));
    match pod {
        Some(Pod { terminated: Some(end), .. }) if end.exit_code != 0 => {
            lag(LagReason::WarmingFailed, end.message.trim().lines().last().unwrap_or(&end.reason))
        }
        Some(Pod { waiting: Some(waiting), .. }) if waiting.reason != "ContainerCreating" => {
            lag(LagReason::PodPending, format!("{} {}", waiting.reason, waiting.message).trim())
        }
        None => lag(LagReason::PodPending, ""),
        Some(_) => lag(LagReason::Warming, ""),
    }
}
