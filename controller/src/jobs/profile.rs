//! What the pods of a job need: its terms as the state machine takes them, and its roles as queues and plans count them.

use k8s_openapi::api::core::v1::Pod;
use larder_api::job_type::checked::CheckedType;
use larder_api::job_type::{Indexes, Outcome, RestartScope};
use larder_api::training_job::checked::{CheckedJob, CheckedRole, Queueing};
use larder_api::training_job::conditions::JobReason;
use serde::{Deserialize, Serialize};

use crate::jobs::machine::{Decides, RoleTerms, Scope, Terms};
use crate::jobs::objects::{JobObject, TypeObject};
use crate::jobs::pod_group::choice::{Obstacle, obstacle};
use crate::jobs::queue::Role;
use crate::jobs::refusal::Refusal;
use crate::jobs::render::{Facts, Place, Rendered, Renderer, fits};
use larder_kube::pod::node_affinity::Places;
use larder_kube::pod::requests::requests;
use larder_kube::short_hash::short_hash;

/// The generations of a job and of its type, with the uid of the type.
pub type Generations = (i64, String, i64);

/// Those of a job and a type as they are now.
pub fn generations(job: &JobObject, of_type: &TypeObject) -> Generations {
    (job.generation, of_type.meta.uid.clone(), of_type.generation)
}

/// What the pods of a job need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The generations that it is of.
    pub of: Generations,
    /// Its roles.
    pub roles: Vec<Role>,
    /// A pod of each role, for no place: kept of jobs in Kueue's queues, which asks for them.
    pub pods: Vec<Pod>,
    /// Why such pods may not be created.
    pub refusal: Option<Refusal>,
    /// Why the scheduler cannot take its pods as one gang.
    pub obstacle: Option<Obstacle>,
    /// The PriorityClass of its first pod.
    pub priority_class: Option<String>,
    /// The hash of what its pods are made of. Jobs with the same hash share the dry run of their pods.
    pub spec_hash: String,
}

impl Profile {
    /// True if it is that of a job and a type as they are now.
    pub fn is_of(&self, job: &JobObject, kind: &TypeObject) -> bool {
        // A label is of no generation.
        self.of == generations(job, kind) && job.job.as_ref().is_ok_and(|job| keeps_pods(job) != self.pods.is_empty())
    }

    /// What the pods of a job of this type need. Errors: a pod cannot be rendered.
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
        let (mut roles, mut pods) = (Vec::new(), Vec::new());
        for role in &rendered.job.roles {
            let pod = renderer.pod(&role.name, 0, 0, &Place::default()).map_err(unfit)?;
            let spec = pod.spec.clone().unwrap_or_default();
            if let Queueing::Queue(queue) = &job.queueing
                && spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
            {
                refusal = Some(uncounted(&role.name, queue));
            }
            pods.push(pod);
            roles.push(Role {
                name: role.name.clone(),
                requests: requests(&spec),
                places: Places::of(&spec),
                min: role.min,
                wanted: role.replicas,
                max: role.max,
                is_fixed: !rendered.kind.role(&role.name).is_some_and(|of_type| of_type.elastic),
            });
        }
        let templates = rendered.job.roles.iter().map(|role| {
            let of_role = (&role.name, role.replicas, &role.template);
            serde_json::to_string(&of_role).unwrap_or_default()
        });
        let datasets = rendered.job.datasets.iter().map(|mount| format!("{} {}", mount.dataset, mount.path));
        let of_type_now = [of_type.meta.uid.clone(), of_type.generation.to_string(), rendered.namespace.to_owned()];
        let parts: Vec<String> = of_type_now.into_iter().chain(templates).chain(datasets).collect();
        let spec_hash = short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>());
        let of = generations(object, of_type);
        let obstacle = obstacle(rendered.job, &pods);
        let priority_class = pods.first().and_then(|pod| pod.spec.as_ref()?.priority_class_name.clone());
        if !keeps_pods(rendered.job) {
            pods.clear();
        }
        Ok(Self { of, roles, pods, refusal, obstacle, priority_class, spec_hash })
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

/// What the type of a job says about how it runs. It is remembered with the job: the type may be deleted before the job ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rules {
    /// The role that decides that the job has succeeded, and which of its pods; without one the job is never done.
    pub decides: Option<(String, Indexes)>,
    /// The roles of which two pods of an index may run for a while.
    pub overlap: Vec<String>,
    /// What is started again after a loss.
    pub scope: RestartScope,
    /// With one crash more the job fails.
    pub max_crashes: u32,
}

impl Rules {
    /// What a type says about a job.
    pub fn new(job: &CheckedJob, kind: &CheckedType) -> Self {
        // A job that is suspended when it is done is never done.
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

/// What a job and its type say. As long as nothing is known of the type, nothing that pods do ends the job.
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
        two_pods: rules.is_some_and(|rules| rules.overlap.contains(&role.name)),
    };
    let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Terms {
        roles: job.roles.iter().map(role).collect(),
        scope: match job.scope.or(rules.map(|rules| rules.scope)).unwrap_or_default() {
            RestartScope::Worker => Scope::Worker,
            RestartScope::Job => Scope::Job,
        },
        max_crashes: job.max_crashes.or(rules.map(|rules| rules.max_crashes)).unwrap_or(u32::MAX),
        gang_timeout: Some(seconds(job.gang_timeout)),
        by_scheduler: false,
        active_deadline: job.active_deadline.map(seconds),
        ttl: job.ttl_after_finished.map(seconds),
        suspend: job.suspend,
        keep_pods: job.keep_pods,
    }
}
