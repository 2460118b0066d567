//! Pods of other programs in queues: notebooks, servers, the pods of other operators.
//!
//! A pod that carries the label of a queue is a job of one pod to the queues. It is held by a scheduling gate until it
//! has quota and there is room on a node; kube-scheduler then chooses its node. A pod that the queues stop is deleted.
//! Its own controller may create another, which waits.
//!
//! A decision counts from the moment at which it is made, before it is visible in the pod. While a pod waits, this
//! process remembers what the record of a job would hold.

use std::collections::BTreeMap;

use crate::jobs::cluster_view::ClusterView;
use crate::jobs::flavors;
use crate::jobs::machine::loss::is_lost;
use crate::jobs::pod_decisions::{Decided, Decision, Decisions, pending};
use crate::jobs::pod_waits::{PodWait, PodWaits};
use crate::jobs::queue::{HeldPod, Job, LeftoverPod, Role, Verdict};
use crate::objects::{Pod, QueuedPod};
use crate::time::{Earliest, Seconds};
use larder_kube::key::Key;

/// Why a pod keeps waiting that gets its devices by claims.
const UNCOUNTED: &str =
    "a queue cannot count the devices of spec.resourceClaims: request devices in the limits of containers";

/// The pods as queues see them: those that wait or have room, and those that are terminating. A pod in a queue that its
/// namespace may not use is in none. `again` receives the times at which the result changes.
pub fn counted(view: &ClusterView<'_>, again: &mut Earliest) -> (Vec<Job>, Vec<LeftoverPod>) {
    let (mut jobs, mut leftover) = (Vec::new(), Vec::new());
    for pod in view.jobs.queued.iter().filter_map(|key| view.pods.get(key)) {
        let Some(queued) = pod.queued.as_ref().filter(|queued| is_granted(view, pod, &queued.queue)) else { continue };
        let decision = pending(view.jobs.pod_decisions.get(&pod.meta.key), pod);
        let is_held = queued.gates.is_some() && !matches!(decision, Some(Decision::Released(_)));
        if !pod.node.is_empty() {
            let node = view.health(&pod.node, queued.bound_at, None);
            if is_lost(node, view.now) {
                continue;
            }
            again.extend(node.lost_at);
        }
        if pod.meta.deleting || matches!(decision, Some(Decision::Ended(_))) {
            // A pod that is to end was released, even if that is not visible in it yet.
            if !is_held || decision.is_some() {
                leftover.push(LeftoverPod {
                    queue: queued.queue.clone(),
                    requests: queued.requests.clone(),
                    flavor: flavor(view, pod, queued, decision),
                    node: pod.node.clone(),
                    stays: false,
                });
            }
            continue;
        }
        jobs.push(job(view, pod, queued, (!is_held).then(|| flavor(view, pod, queued, decision))));
    }
    (jobs, leftover)
}

/// The decisions of the queues now, about pods to release and pods to end, and the memory of those without a node.
/// `again` receives the times at which the queues decide again.
pub fn decide(
    view: &ClusterView<'_>,
    verdicts: &mut BTreeMap<Key, Verdict>,
    again: &mut Earliest,
) -> (Decisions, PodWaits) {
    let (mut decisions, mut waits) = (Decisions::new(), PodWaits::new());
    for pod in view.jobs.queued.iter().filter_map(|key| view.pods.get(key)) {
        let (key, before) = (&pod.meta.key, pending(view.jobs.pod_decisions.get(&pod.meta.key), pod));
        let (Some(verdict), Some(queued)) = (verdicts.remove(&job_key(key)), &pod.queued) else { continue };
        let decision = match verdict {
            Verdict::Start { flavors, nodes, .. } => {
                let planned = nodes.into_iter().flatten().next().unwrap_or_default();
                waits.insert(key.clone(), PodWait { uid: pod.meta.uid.clone(), planned, ..PodWait::default() });
                Decision::Released(flavors.into_iter().next().unwrap_or_default())
            }
            Verdict::Run(_) => {
                if pod.node.is_empty() {
                    waits.insert(key.clone(), wait(view, pod));
                }
                continue;
            }
            Verdict::Stop { .. } => Decision::Ended(flavor(view, pod, queued, before)),
            Verdict::Wait(waiting) => {
                let wait = wait(view, pod).after(&waiting, view.now);
                wait.note_again(view.now, again);
                waits.insert(key.clone(), wait);
                continue;
            }
        };
        decisions.insert(key.clone(), Decided { uid: pod.meta.uid.clone(), decision });
    }
    (decisions, waits)
}

/// The memory of a pod.
fn wait(view: &ClusterView<'_>, pod: &Pod) -> PodWait {
    let before = view.jobs.pod_waits.get(&pod.meta.key).filter(|wait| wait.uid == pod.meta.uid);
    before.cloned().unwrap_or_else(|| PodWait { uid: pod.meta.uid.clone(), ..PodWait::default() })
}

/// The key of a pod among jobs. No TrainingJob has a name with a slash.
fn job_key(pod: &Key) -> Key {
    Key::new(&pod.namespace, &format!("pod/{}", pod.name))
}

fn is_granted(view: &ClusterView<'_>, pod: &Pod, queue: &str) -> bool {
    let queue = view.jobs.queues.get(&Key::cluster(queue)).and_then(|object| object.queue.as_ref().ok());
    queue.is_some_and(|queue| queue.is_granted(&pod.meta.key.namespace))
}

/// The flavor of a pod that may be scheduled: of its node, of its decision, or of the nodes that its selector allows.
fn flavor(view: &ClusterView<'_>, pod: &Pod, queued: &QueuedPod, decision: Option<&Decision>) -> String {
    if let Some(node) = view.nodes.get(&Key::cluster(&pod.node)) {
        return flavors::of_labels(view.flavors, &node.labels).to_owned();
    }
    match decision {
        Some(Decision::Released(flavor) | Decision::Ended(flavor)) => flavor.clone(),
        None => flavors::of_labels(view.flavors, &queued.places.labels).to_owned(),
    }
}

/// A pod as a job of one pod. `flavor` is set if it may be scheduled.
fn job(view: &ClusterView<'_>, pod: &Pod, queued: &QueuedPod, flavor: Option<String>) -> Job {
    let role = Role {
        name: "pod".to_owned(),
        requests: queued.requests.clone(),
        places: queued.places.clone(),
        min: 1,
        wanted: 1,
        max: 1,
        is_fixed: true,
        ..Role::default()
    };
    let queue = view.jobs.queues.get(&Key::cluster(&queued.queue)).and_then(|object| object.queue.as_ref().ok());
    let priorities = queue.map(|queue| &queue.priorities).filter(|priorities| !priorities.is_empty());
    let PodWait { head_since, claims, claimed, preempts_after, is_passed_over, lacks_nodes, planned, .. } =
        wait(view, pod);
    let of = Job {
        key: job_key(&pod.meta.key),
        queue: queued.queue.clone(),
        priority: priorities.map_or(queued.priority, |all| all.get(&queued.named_priority).copied().unwrap_or(0)),
        created: Seconds(pod.meta.created),
        may_await_nodes: view.wait_for_nodes.is_some(),
        head_since,
        claims,
        claimed,
        preempts_after,
        is_passed_over,
        lacks_nodes,
        ..Job::default()
    };
    if let Some(flavor) = flavor {
        let bound = !pod.node.is_empty();
        // The scheduler chooses the node, and until then nothing else takes the room that was found.
        let planned = if queued.is_refused { String::new() } else { planned };
        let held = HeldPod {
            node: if bound { pod.node.clone() } else { planned },
            bound,
            flavor: flavor.clone(),
            ..HeldPod::default()
        };
        return Job { roles: vec![Role { flavor, ..role }], granted: vec![1], pods: vec![held], ..of };
    }
    let roles = vec![role];
    if queued.has_claims {
        return Job { roles, unsuited: Some(UNCOUNTED.to_owned()), ..of };
    }
    let choices = queue.map(|queue| flavors::choices(&queued.queue, queue, view.flavors, &roles));
    match choices.unwrap_or_else(|| Ok(vec![roles.clone()])) {
        Ok(mut choices) => Job { roles: choices.remove(0), fallbacks: choices, ..of },
        Err(why) => Job { roles, unsuited: Some(why), ..of },
    }
}
