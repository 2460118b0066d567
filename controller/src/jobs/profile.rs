//! The requirements of a job's pods: its terms for the state machine, and its roles for queues and plans.

use k8s_openapi::api::core::v1::Pod;
use larder_api::job_type::checked::CheckedType;
use larder_api::job_type::{Indexes, Outcome, RestartScope};
use larder_api::training_job::checked::{CheckedJob, CheckedMount, CheckedRole, Queueing};
use larder_api::training_job::conditions::JobReason;
use serde::{Deserialize, Serialize};

use crate::jobs::constraints::{are_apart, are_spread, are_unplanned};
use crate::jobs::machine::{Decides, Leeway, RoleTerms, Scope, Terms};
use crate::jobs::objects::{JobObject, TypeObject};
use crate::jobs::pod_group::choice::{Obstacle, obstacle};
use crate::jobs::queue::Role;
use crate::jobs::refusal::Refusal;
use crate::jobs::render::{Facts, Place, Rendered, Renderer, fits};
use larder_kube::pod::node_affinity::Places;
use larder_kube::pod::requests::requests;
use larder_kube::short_hash::short_hash;

/// The generation of a job, and the uid and generation of its type.
pub type Generations = (i64, String, i64);

/// The current generations of a job and its type.
pub fn generations(job: &JobObject, of_type: &TypeObject) -> Generations {
    (job.generation, of_type.meta.uid.clone(), of_type.generation)
}

/// The requirements of a job's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The generations from which the profile was computed.
    pub of: Generations,
    pub roles: Vec<Role>,
    /// One pod per role, without a place. Kept only for jobs in Kueue's queues, whose Workload contains them.
    pub pods: Vec<Pod>,
    /// Why such pods must not be created.
    pub refusal: Option<Refusal>,
    /// Why the scheduler cannot schedule the pods as one gang.
    pub obstacle: Option<Obstacle>,
    /// The pods have constraints that a plan does not consider.
    pub is_unplanned: bool,
    /// The PriorityClass of the first pod.
    pub priority_class: Option<String>,
    /// The pod-spec hash. Jobs with the same hash share a dry run.
    pub spec_hash: String,
}

impl Profile {
    /// True if the profile was computed from the current job and type.
    pub fn is_of(&self, job: &JobObject, kind: &TypeObject) -> bool {
        // A change of a label does not increase the generation, so it is compared separately.
        self.of == generations(job, kind) && job.job.as_ref().is_ok_and(|job| keeps_pods(job) != self.pods.is_empty())
    }

    /// Computes the profile of a job of this type. Fails if a pod cannot be rendered.
    pub fn new(object: &JobObject, of_type: &TypeObject, rendered: &Rendered<'_>) -> Result<Self, Refusal> {
        let job = rendered.job;
        let all: u32 = job.roles.iter().fold(0, |sum, role| role.max.saturating_add(sum));
        let unfit = |error| {
            let why = format!("a job of {all} pods does not fit the JobType {}: {error}", job.kind);
            Refusal::new(JobReason::RolesUnfit, why)
        };
        let mut refusal = fits(rendered).err().map(unfit);
        let facts = Facts::default();
        let renderer = Renderer::new(*rendered, &facts);
        let (mut roles, mut pods, mut is_unplanned) = (Vec::new(), Vec::new(), false);
        for role in &rendered.job.roles {
            let pod = renderer.pod(&role.name, 0, 0, &Place::default()).map_err(unfit)?;
            let spec = pod.spec.clone().unwrap_or_default();
            if let Queueing::Queue(queue) = &job.queueing
                && spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
            {
                refusal = Some(uncounted(&role.name, queue));
            }
            let (apart, spread) = (are_apart(&pod), are_spread(&pod));
            is_unplanned |= are_unplanned(&spec);
            pods.push(pod);
            roles.push(Role {
                name: role.name.clone(),
                requests: requests(&spec),
                flavor: String::new(),
                places: Places::of(&spec),
                min: role.min,
                wanted: role.replicas,
                max: role.max,
                is_fixed: !rendered.kind.role(&role.name).is_some_and(|of_type| of_type.elastic),
                apart,
                spread,
            });
        }
        let templates = rendered.job.roles.iter().map(|role| {
            let of_role = (&role.name, role.replicas, &role.template);
            serde_json::to_string(&of_role).unwrap_or_default()
        });
        let datasets = rendered.job.datasets.iter().map(|mount| {
            let CheckedMount { dataset, path, split, .. } = mount;
            format!("{dataset} {path} {split}")
        });
        let of_type_now = [
            of_type.meta.uid.clone(),
            of_type.generation.to_string(),
            rendered.namespace.to_owned(),
            (job.in_place > 0).to_string(),
        ];
        let parts: Vec<String> = of_type_now.into_iter().chain(templates).chain(datasets).collect();
        let spec_hash = short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>());
        let of = generations(object, of_type);
        let obstacle = obstacle(rendered.job, &pods);
        let priority_class = pods.first().and_then(|pod| pod.spec.as_ref()?.priority_class_name.clone());
        if !keeps_pods(rendered.job) {
            pods.clear();
        }
        Ok(Self { of, roles, pods, refusal, obstacle, is_unplanned, priority_class, spec_hash })
    }
}

fn uncounted(role: &str, queue: &str) -> Refusal {
    let why = format!(
        "pods of role {role} have spec.resourceClaims, which the queue {queue} cannot count: request devices in the limits of \
         containers, or omit spec.queue"
    );
    Refusal::new(JobReason::InvalidSpec, why)
}

fn keeps_pods(job: &CheckedJob) -> bool {
    matches!(job.queueing, Queueing::Kueue(_))
}

/// The parts of a job's type that determine how it runs. They are stored with the job, because the type may be deleted
/// before the job ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rules {
    /// The role that decides the job's success, and which of its pods; `None`: the job never succeeds.
    pub decides: Option<(String, Indexes)>,
    /// The roles of which two pods of an index may run for a while.
    pub overlap: Vec<String>,
    /// The pods that are restarted after a loss.
    pub scope: RestartScope,
    /// The number of crashes that the job survives. One more fails it.
    pub max_crashes: u32,
}

impl Rules {
    pub fn new(job: &CheckedJob, kind: &CheckedType) -> Self {
        // A job that is suspended instead of completed never succeeds.
        let success = Some(&kind.success).filter(|success| success.then == Outcome::Complete);
        let decides = success.and_then(|success| {
            let role = success.roles.iter().find(|name| job.role(name).is_some())?;
            Some((role.clone(), success.indexes))
        });
        let names = job.roles.iter().map(|role| &role.name);
        let overlap = names.filter(|name| kind.role(name).is_some_and(|role| role.overlap)).cloned().collect();
        Self { decides, overlap, scope: kind.scope, max_crashes: kind.max_crashes }
    }
}

/// The terms of a job. Without rules, because the type is unknown, nothing that pods do ends the job.
pub fn terms(job: &CheckedJob, rules: Option<&Rules>) -> Terms {
    let decides = rules.and_then(|rules| rules.decides.as_ref());
    let role = |role: &CheckedRole| RoleTerms {
        name: role.name.clone(),
        min: role.min,
        decides: match decides {
            Some((name, Indexes::First)) if *name == role.name => Decides::First,
            Some((name, Indexes::All)) if *name == role.name => Decides::All,
            _ => Decides::Nothing,
        },
        two_pods: !job.at_most_once && rules.is_some_and(|rules| rules.overlap.contains(&role.name)),
        starts_after: role.starts_after.clone(),
    };
    let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Terms {
        roles: job.roles.iter().map(role).collect(),
        scope: match job.scope.or(rules.map(|rules| rules.scope)).unwrap_or_default() {
            RestartScope::Worker => Scope::Worker,
            RestartScope::Job => Scope::Job,
        },
        max_crashes: job.max_crashes.or(rules.map(|rules| rules.max_crashes)).unwrap_or(u32::MAX),
        forgive_after: seconds(job.forgive_after),
        in_place: job.in_place,
        rules: job.rules.clone(),
        gang_timeout: Some(seconds(job.gang_timeout)),
        unreserved: job.queueing == Queueing::None,
        by_scheduler: false,
        leeway: Leeway::Gang,
        nodes_timeout: None,
        active_deadline: job.active_deadline.map(seconds),
        ttl: job.ttl_after_finished.map(seconds),
        suspend: job.suspend,
        keep_pods: job.keep_pods,
    }
}
