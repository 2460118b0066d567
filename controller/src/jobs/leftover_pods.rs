//! Pods that jobs leave behind: what they use of queues and nodes until they are gone.

use std::collections::BTreeMap;

use larder_api::Phase;
use larder_api::training_job::KeepPods;

use crate::jobs::cluster_view::{Scene, pod_id};
use crate::jobs::job_state::Memory;
use crate::jobs::machine::loss::{NODE_LOST_SECONDS, is_lost};
use crate::jobs::objects::{JobObject, JobPod};
use crate::jobs::queue::{LeftPod, Role};
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;

/// What is to be known of the jobs that a round looks at, by uid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing<'a> {
    /// It is counted with its pods.
    Counted,
    /// It is not, is in this phase, and has these roles, if they are known.
    In(Phase, &'a [Role]),
}

/// The pods of jobs that are not counted. A pod on a lost node uses nothing. Others may make pods that look like those of a job:
/// such a pod uses nothing if it has no name of the job's, and no more than the job's own would. `again` is called with times at
/// which that changes.
pub fn pods(scene: &Scene<'_>, jobs: &BTreeMap<&str, Standing<'_>>, mut again: impl FnMut(i64)) -> Vec<LeftPod> {
    let mut left = Vec::new();
    for pod in scene.jobs.live.iter().filter_map(|key| scene.pods.get(key)) {
        let Some(of_job) = &pod.of_job else { continue };
        let (phase, roles) = match jobs.get(of_job.uid.as_str()) {
            Some(Standing::Counted) => continue,
            Some(Standing::In(phase, roles)) => (Some(*phase), *roles),
            None => (None, &[][..]),
        };
        let object = scene.jobs.jobs.get(&of_job.job).filter(|object| object.meta.uid == of_job.uid);
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
            let node = scene.health(&pod.node, of_job.bound_at);
            if is_lost(node, scene.now) {
                continue;
            }
            node.unready_since.into_iter().for_each(|since| again(since + NODE_LOST_SECONDS));
        }
        left.push(LeftPod {
            queue: queue(scene, object, &pod.meta.key, of_job),
            requests,
            node: pod.node.clone(),
            stays: of_job.leaving.is_none() && !pod.meta.deleting && object.is_some_and(|object| stays(object, phase)),
        });
    }
    left
}

/// What jobs use that were deleted while their pods are being made, by uid.
pub fn unmade(scene: &Scene<'_>, memories: &BTreeMap<Key, Memory>) -> BTreeMap<String, LeftPod> {
    let gone = memories.iter().filter(|(key, memory)| !scene.has(key, &memory.uid));
    let all = |(_, memory): (&Key, &Memory)| {
        let mut requests = Amounts::default();
        let roles = memory.profile.iter().flat_map(|profile| &profile.roles);
        for (role, pods) in roles.zip(memory.record.state.granted()) {
            requests.add(&role.requests, u64::from(pods));
        }
        (memory.uid.clone(), LeftPod { queue: memory.queue.clone(), requests, ..LeftPod::default() })
    };
    gone.map(all).collect()
}

/// True if a pod of a job is not going to end. A job of which no phase is known sleeps: it has ended.
fn stays(object: &JobObject, phase: Option<Phase>) -> bool {
    let is_kept = || object.job.as_ref().is_ok_and(|job| job.keep_pods == KeepPods::All);
    match phase {
        _ if object.meta.deleting => false,
        Some(phase) if !phase.is_terminal() => phase.has_pods(),
        _ => is_kept(),
    }
}

/// The queue of a pod: that of its job, or of a job that is gone what the pod says, if its namespace may use that.
fn queue(scene: &Scene<'_>, object: Option<&JobObject>, pod: &Key, of_job: &JobPod) -> String {
    if let Some(job) = object.and_then(|object| object.job.as_ref().ok()) {
        return job.queue().unwrap_or_default().to_owned();
    }
    let queue = scene.jobs.queues.get(&Key::cluster(&of_job.queue)).and_then(|queue| queue.queue.as_ref().ok());
    let is_granted = queue.is_some_and(|queue| queue.is_granted(&pod.namespace));
    if is_granted { of_job.queue.clone() } else { String::new() }
}
