//! Pods that outlive their jobs, and the quota and room that they use until they are deleted.

use std::collections::{BTreeMap, HashMap};

use larder_api::Phase;
use larder_api::training_job::KeepPods;

use crate::jobs::cluster_view::{ClusterView, pod_id};
use crate::jobs::job_state::JobState;
use crate::jobs::machine::Stage;
use crate::jobs::machine::loss::is_lost;
use crate::jobs::objects::JobObject;
use crate::jobs::queue::{LeftoverPod, Role};
use crate::jobs::render::names;
use crate::objects::JobPod;
use crate::time::Earliest;
use larder_kube::key::Key;

/// How a round accounts for the pods of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accounting<'a> {
    /// The queues count the job, including its pods.
    Counted,
    /// The queues do not count the job. It is in this phase, and has these roles if they are known.
    Uncounted(Phase, &'a [Role]),
}

/// The pods of jobs that are not counted, by the uids of `jobs`. A pod on a lost node uses nothing. Any user can create
/// a pod that looks like a job's. Such a pod uses nothing unless its name is one that the job generates, and then no
/// more than the job's own pod would. `again` receives the times at which the result changes.
pub fn pods(view: &ClusterView<'_>, jobs: &HashMap<&str, Accounting<'_>>, again: &mut Earliest) -> Vec<LeftoverPod> {
    let mut leftover = Vec::new();
    let is_uncounted = |((_, uid), _): &(&(Key, String), _)| jobs.get(uid.as_str()) != Some(&Accounting::Counted);
    let keys = view.jobs.live.iter().filter(is_uncounted).flat_map(|(_, keys)| keys);
    for pod in keys.filter_map(|key| view.pods.get(key)) {
        let Some(of_job) = &pod.of_job else { continue };
        let (phase, roles) = match jobs.get(of_job.uid.as_str()) {
            Some(Accounting::Uncounted(phase, roles)) => (Some(*phase), *roles),
            Some(Accounting::Counted) | None => (None, &[][..]),
        };
        let object = view.jobs.jobs.get(&of_job.job).filter(|object| object.meta.uid == of_job.uid);
        if object.is_some_and(|object| object.is_of_others) {
            continue;
        }
        let mut requests = pod.requests.clone();
        if let Some(job) = object.and_then(|object| object.job.as_ref().ok()) {
            let Some(id) = pod_id(&of_job.job.name, job, &pod.meta.key.name) else { continue };
            if let Some(role) = roles.get(id.role) {
                requests = requests.at_most(&role.requests);
            }
        }
        if !pod.node.is_empty() {
            let job = object.and_then(|object| object.job.as_ref().ok());
            let node = view.health(&pod.node, of_job.bound_at, job);
            if is_lost(node, view.now) {
                continue;
            }
            again.extend(node.lost_at);
        }
        leftover.push(LeftoverPod {
            queue: queue(view, object, &pod.meta.key, of_job),
            requests,
            flavor: of_job.flavor.clone(),
            node: pod.node.clone(),
            stays: of_job.leaving.is_none() && !pod.meta.deleting && object.is_some_and(|object| stays(object, phase)),
        });
    }
    leftover
}

/// The pods that are still being created for jobs that were deleted. Those that are there already are among [`pods`], like
/// all pods of a job that was deleted.
pub fn unmade(view: &ClusterView<'_>, job_states: &BTreeMap<Key, JobState>) -> Vec<LeftoverPod> {
    let mut unmade = Vec::new();
    for (key, job_state) in job_states {
        let (Some(profile), record) = (&job_state.profile, &job_state.record) else { continue };
        let mut placed = record.state.slots().filter(|(_, slot)| slot.stage == Stage::Placed).peekable();
        if placed.peek().is_none() || view.has(key, &job_state.uid) {
            continue;
        }
        for (id, _) in placed {
            let Some(role) = profile.roles.get(id.role) else { continue };
            let name = names::pod(&key.name, &role.name, id.index, id.attempt);
            let pod = view.pods.get(&Key::new(&key.namespace, &name)).and_then(|pod| pod.of_job.as_ref());
            if pod.is_some_and(|pod| pod.uid == job_state.uid) {
                continue;
            }
            unmade.push(LeftoverPod {
                queue: job_state.queue.clone(),
                requests: role.requests.clone(),
                flavor: record.flavors.get(id.role).cloned().unwrap_or_default(),
                ..LeftoverPod::default()
            });
        }
    }
    unmade
}

/// True if a pod of a job is not going to terminate. A job without a known phase rests, because it has ended.
fn stays(object: &JobObject, phase: Option<Phase>) -> bool {
    let is_kept = || object.job.as_ref().is_ok_and(|job| job.keep_pods == KeepPods::All);
    match phase {
        _ if object.meta.deleting => false,
        _ if object.is_of_newer => true,
        Some(phase) if !phase.is_terminal() => phase.has_pods(),
        _ => is_kept(),
    }
}

/// The queue of a pod: its job's queue. If the job was deleted, the queue in the pod's label, provided that the pod's
/// namespace may use it.
fn queue(view: &ClusterView<'_>, object: Option<&JobObject>, pod: &Key, of_job: &JobPod) -> String {
    if let Some(job) = object.and_then(|object| object.job.as_ref().ok()) {
        return job.queue().unwrap_or_default().to_owned();
    }
    let queue = view.jobs.queues.get(&Key::cluster(&of_job.queue)).and_then(|queue| queue.queue.as_ref().ok());
    let is_granted = queue.is_some_and(|queue| queue.is_granted(&pod.namespace));
    if is_granted { of_job.queue.clone() } else { String::new() }
}
