//! Chooses who finds the nodes of a job's pods.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use larder_api::training_job::GangBackend;
use larder_api::training_job::checked::CheckedJob;

/// The API version that has PodGroups.
const GROUP_VERSION: &str = "scheduling.k8s.io/v1beta1";

/// The shortest bind timeout if the scheduler chooses the nodes: it retries unschedulable pods after five minutes, even
/// if nothing has changed.
pub const BOUND_SECONDS: i64 = 300;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planner {
    /// Larder's own planner ([`crate::jobs::plan`]).
    #[default]
    Builtin,
    /// kube-scheduler, with PodGroups.
    Native,
}

/// Why the scheduler cannot schedule the pods of a job as one gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The cluster does not serve PodGroups.
    NotServed,
    /// The job has a topology key.
    TopologyKey,
    /// Its roles name different schedulers.
    SchedulerNames,
    /// Its roles name different PriorityClasses.
    PriorityClasses,
    /// One of its roles starts after another one, and the scheduler would wait for pods that do not exist yet.
    Order,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServed => write!(f, "this cluster serves no PodGroups ({GROUP_VERSION}, off by default)"),
            Self::TopologyKey => f.write_str("the scheduler's gangs do not support spec.gang.topologyKey"),
            Self::SchedulerNames => f.write_str("its roles differ in schedulerName"),
            Self::PriorityClasses => f.write_str("its roles differ in priorityClassName"),
            Self::Order => f.write_str("one of its roles starts after another one (spec.roles[].startsAfter)"),
        }
    }
}

/// The job requests native gangs, which are not possible for it. The text is the message of its condition `Valid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoGang(pub Obstacle);

impl fmt::Display for NoGang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.gang.backend is native, but {}; use builtin or auto", self.0)
    }
}

/// Chooses the planner of a job. `obstacle` is the result of [`obstacle`], and `is_served` tells whether the cluster
/// serves PodGroups.
///
/// `auto` chooses native gangs only if nothing is lost: kube-scheduler does not consider data locality, and keeps pods
/// within one topology domain only behind another feature gate.
pub fn choose(job: &CheckedJob, obstacle: Option<Obstacle>, is_served: bool) -> Result<Planner, NoGang> {
    let obstacle = if is_served { obstacle } else { Some(Obstacle::NotServed) };
    match (job.backend, obstacle) {
        (GangBackend::Builtin, _) | (GangBackend::Auto, Some(_)) => Ok(Planner::Builtin),
        (GangBackend::Auto, None) if !job.datasets.is_empty() => Ok(Planner::Builtin),
        (GangBackend::Native, Some(obstacle)) => Err(NoGang(obstacle)),
        (GangBackend::Auto | GangBackend::Native, None) => Ok(Planner::Native),
    }
}

/// Why the scheduler cannot schedule the job's pods as one gang. `pods` contains one pod per role.
pub fn obstacle(job: &CheckedJob, pods: &[Pod]) -> Option<Obstacle> {
    if job.topology_key.is_some() {
        return Some(Obstacle::TopologyKey);
    }
    if job.roles.iter().any(|role| !role.starts_after.is_empty()) {
        return Some(Obstacle::Order);
    }
    let differ = |field: fn(&Pod) -> Option<&String>| pods.windows(2).any(|two| field(&two[0]) != field(&two[1]));
    let scheduler = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.scheduler_name.clone()).unwrap_or_default();
    let schedulers: Vec<String> = pods.iter().map(scheduler).collect();
    let is_default = |name: &String| name.is_empty() || name == "default-scheduler";
    if !schedulers.iter().all(is_default) && schedulers.windows(2).any(|two| two[0] != two[1]) {
        return Some(Obstacle::SchedulerNames);
    }
    if differ(|pod| pod.spec.as_ref()?.priority_class_name.as_ref()) {
        return Some(Obstacle::PriorityClasses);
    }
    None
}
