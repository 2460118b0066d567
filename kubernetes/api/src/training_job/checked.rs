//! The spec of a TrainingJob as values, and whether it fits its JobType.
//!
//! The schema and the policy `larder-jobs` refuse nearly all of this at apply. These checks hold for what was stored before,
//! and for the forms that a rule cannot express.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use larder_dataset::size::parse_duration;

use super::{GangBackend, KeepPods, MountedDataset, Role, TrainingJob};
use crate::checked::InvalidField;
use crate::form::{is_label, is_name, is_path};
use crate::job_type::RestartScope;
use crate::job_type::checked::CheckedType;
use crate::names::{DatasetKey, KUEUE_QUEUE_LABEL, MANAGED_BY};

mod template;

pub use template::Defaults;

/// The most pods of a role.
pub const REPLICAS_MAX: u32 = 10_000;

/// The most roles of a job.
pub const ROLES_MAX: usize = 16;
/// The percentage of a dataset from which on a job starts.
pub const MIN_WARM: u32 = 90;
/// The longest that a job waits for a dataset.
pub const WARM_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the pods of a gang may take to be bound.
pub const GANG_TIMEOUT: Duration = Duration::from_secs(30);

/// A TrainingJob as values.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedJob {
    /// The name of its JobType.
    pub kind: String,
    /// Its pods, by role.
    pub roles: Vec<CheckedRole>,
    /// The datasets that its pods read.
    pub datasets: Vec<CheckedMount>,
    /// Where it waits.
    pub queueing: Queueing,
    /// The planner of its nodes.
    pub backend: GangBackend,
    /// How long pods may take to be bound.
    pub gang_timeout: Duration,
    /// A label of nodes of which all pods are to see the same value.
    pub topology_key: Option<String>,
    /// The part that restarts when a pod is lost; `None`: as its type says.
    pub scope: Option<RestartScope>,
    /// The crashes that it survives; `None`: its type says.
    pub max_crashes: Option<u32>,
    /// It is to have no pods.
    pub suspend: bool,
    /// It fails when it has run for this long.
    pub active_deadline: Option<Duration>,
    /// It is deleted when it has been done for this long.
    pub ttl_after_finished: Option<Duration>,
    /// The pods that stay once it is done.
    pub keep_pods: KeepPods,
}

/// Pods of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedRole {
    /// Its name.
    pub name: String,
    /// How many pods are desired.
    pub replicas: u32,
    /// The fewest that the job can run with, at least 1.
    pub min: u32,
    /// The most that it makes use of.
    pub max: u32,
    /// Its pods.
    pub template: PodTemplateSpec,
    /// Processes in each pod, if the template says; otherwise one for each GPU, or one.
    pub processes: Option<u32>,
    /// The performance defaults that its pods have.
    pub defaults: Defaults,
}

/// A dataset, and where pods see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedMount {
    /// The Dataset.
    pub dataset: DatasetKey,
    /// The folder in every container.
    pub path: String,
    /// The percentage that is to be cached before pods start.
    pub min_warm: u32,
    /// The longest that the job waits for it.
    pub warm_timeout: Duration,
}

/// Where a job waits for quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// Nowhere.
    None,
    /// In a Queue.
    Queue(String),
    /// In a LocalQueue of Kueue, which decides.
    Kueue(String),
}

impl TrainingJob {
    /// True if another controller runs it.
    pub fn is_of_others(&self) -> bool {
        self.spec.managed_by.as_ref().is_some_and(|name| name != MANAGED_BY)
    }

    /// Checks every value. Errors: the first that is not accepted.
    pub fn check(&self) -> Result<CheckedJob, InvalidField> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        if !is_name(name, 40) {
            let form = "must begin with a letter, consist of lower-case letters, digits and hyphens, and have at most 40 \
                        characters";
            return Err(InvalidField::new("metadata.name", form));
        }
        let spec = &self.spec;
        if !is_label(&spec.type_, 63) {
            return Err(InvalidField::new("spec.type", "must be the name of a JobType"));
        }
        let time =
            |field: &'static str, text: &Option<String>| text.as_deref().map(|text| duration(field, text)).transpose();
        Ok(CheckedJob {
            kind: spec.type_.clone(),
            roles: check_roles(&spec.roles)?,
            datasets: self.check_datasets()?,
            queueing: self.queueing()?,
            backend: spec.gang.backend.unwrap_or_default(),
            gang_timeout: time("spec.gang.timeout", &spec.gang.timeout)?.unwrap_or(GANG_TIMEOUT),
            topology_key: spec.gang.topology_key.clone(),
            scope: spec.restart.scope,
            max_crashes: spec.restart.max_crashes,
            suspend: spec.suspend,
            active_deadline: time("spec.activeDeadline", &spec.active_deadline)?,
            ttl_after_finished: match spec.ttl_after_finished.as_deref() {
                // The other times are more than 0.
                Some(text) if text.trim_end_matches(['s', 'm', 'h', 'd']).bytes().all(|byte| byte == b'0') => {
                    Some(Duration::ZERO)
                }
                Some(text) => Some(duration("spec.ttlAfterFinished", text)?),
                None => None,
            },
            keep_pods: spec.keep_pods.unwrap_or_default(),
        })
    }

    fn queueing(&self) -> Result<Queueing, InvalidField> {
        let kueue = self.metadata.labels.as_ref().and_then(|labels| labels.get(KUEUE_QUEUE_LABEL));
        match (&self.spec.queue, kueue) {
            (Some(_), Some(_)) => Err(InvalidField::new(
                "spec.queue",
                format!("cannot be combined with the label {KUEUE_QUEUE_LABEL}: one of them decides"),
            )),
            (Some(queue), None) if !is_label(queue, 63) => {
                Err(InvalidField::new("spec.queue", "must be the name of a Queue"))
            }
            (Some(queue), None) => Ok(Queueing::Queue(queue.clone())),
            (None, Some(queue)) => Ok(Queueing::Kueue(queue.clone())),
            (None, None) => Ok(Queueing::None),
        }
    }

    fn check_datasets(&self) -> Result<Vec<CheckedMount>, InvalidField> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
        let mut checked = Vec::new();
        for mount in &self.spec.datasets {
            let mount = check_mount(own, mount)?;
            if !names.insert(mount.dataset.clone()) {
                return Err(InvalidField::new("spec.datasets", format!("has {} twice", mount.dataset)));
            }
            if !paths.insert(mount.path.clone()) {
                let what = "must be another one for each dataset";
                return Err(InvalidField::new(format!("spec.datasets[{}].mountPath", mount.dataset.name), what));
            }
            checked.push(mount);
        }
        Ok(checked)
    }
}

fn check_mount(own: &str, mount: &MountedDataset) -> Result<CheckedMount, InvalidField> {
    let field = |rest: &str| format!("spec.datasets[{}].{rest}", mount.name);
    let dataset = DatasetKey::within(own, &mount.name)
        .map_err(|_| InvalidField::new("spec.datasets[].name", "must be the name of a Dataset, or NAMESPACE/NAME"))?;
    if !is_path(&mount.mount_path, 256) {
        return Err(InvalidField::new(field("mountPath"), "must be a whole path, without `..` and `:`"));
    }
    let min_warm = mount.min_warm.unwrap_or(MIN_WARM);
    if min_warm > 100 {
        return Err(InvalidField::new(field("minWarm"), "must be a percentage, 0 to 100"));
    }
    let timeout = mount.warm_timeout.as_deref().map(|text| duration(&field("warmTimeout"), text)).transpose()?;
    let warm_timeout = timeout.unwrap_or(WARM_TIMEOUT);
    Ok(CheckedMount { dataset, path: mount.mount_path.clone(), min_warm, warm_timeout })
}

fn check_roles(roles: &[Role]) -> Result<Vec<CheckedRole>, InvalidField> {
    if roles.is_empty() || roles.len() > ROLES_MAX {
        return Err(InvalidField::new("spec.roles", "must have 1 to 16 roles"));
    }
    let mut names = BTreeSet::new();
    let checked = roles.iter().map(|role| {
        if !names.insert(&role.name) {
            return Err(InvalidField::new("spec.roles", format!("has {} twice", role.name)));
        }
        check_role(role)
    });
    checked.collect()
}

fn check_role(role: &Role) -> Result<CheckedRole, InvalidField> {
    let field = |rest: &str| format!("spec.roles[{}].{rest}", role.name);
    if !is_name(&role.name, 15) {
        let form = "must begin with a letter and consist of lower-case letters, digits and hyphens";
        return Err(InvalidField::new("spec.roles[].name", form));
    }
    let (min, max) = (role.min.unwrap_or(role.replicas), role.max.unwrap_or(role.replicas));
    for (name, count) in [("replicas", role.replicas), ("min", min), ("max", max)] {
        if !(1..=REPLICAS_MAX).contains(&count) {
            return Err(InvalidField::new(field(name), format!("must be 1 to {REPLICAS_MAX}")));
        }
    }
    if min > role.replicas {
        let what = format!("is {min}, more than replicas, which is {}", role.replicas);
        return Err(InvalidField::new(field("min"), what));
    }
    if max < role.replicas {
        let what = format!("is {max}, less than replicas, which is {}", role.replicas);
        return Err(InvalidField::new(field("max"), what));
    }
    template::check(&field("template"), &role.template)?;
    Ok(CheckedRole {
        name: role.name.clone(),
        replicas: role.replicas,
        min,
        max,
        processes: template::processes(&field("template"), &role.template)?,
        defaults: Defaults::of(&field("template"), &role.template)?,
        template: role.template.clone(),
    })
}

fn duration(field: &str, text: &str) -> Result<Duration, InvalidField> {
    let refused = |_| InvalidField::new(field.to_owned(), "must be a time in s, m, h or d, such as 30s, 12h or 7d");
    parse_duration(text).map_err(refused)
}

impl CheckedJob {
    /// The Queue that it waits in.
    pub fn queue(&self) -> Option<&str> {
        match &self.queueing {
            Queueing::Queue(queue) => Some(queue),
            Queueing::None | Queueing::Kueue(_) => None,
        }
    }

    /// The role of this name.
    pub fn role(&self, name: &str) -> Option<&CheckedRole> {
        self.roles.iter().find(|role| role.name == name)
    }

    /// Checks that its roles are those of its type. Errors: the first that is not.
    pub fn fit(&self, kind: &CheckedType) -> Result<(), InvalidField> {
        let known = || kind.roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(", ");
        for role in &self.roles {
            let field = |rest: &str| format!("spec.roles[{}].{rest}", role.name);
            let Some(of_type) = kind.role(&role.name) else {
                let what = format!("is no role of the type {}, which has {}", self.kind, known());
                return Err(InvalidField::new(field("name"), what));
            };
            if let Some(most) = of_type.most.filter(|most| role.max > *most) {
                let what = format!("is {}, and the type {} has at most {most}", role.max, self.kind);
                return Err(InvalidField::new(field(if role.replicas > most { "replicas" } else { "max" }), what));
            }
            if !of_type.elastic && (role.min, role.max) != (role.replicas, role.replicas) {
                let name = if role.min < role.replicas { "min" } else { "max" };
                let what = format!("differs from replicas, and pods of the type {} cannot come and go", self.kind);
                return Err(InvalidField::new(field(name), what));
            }
        }
        let missing = kind.roles.iter().find(|role| role.required && self.role(&role.name).is_none());
        if let Some(role) = missing {
            let what = format!("lacks {}, which jobs of the type {} need", role.name, self.kind);
            return Err(InvalidField::new("spec.roles", what));
        }
        if !kind.success.roles.iter().any(|name| self.role(name).is_some()) {
            let what =
                format!("has none of {}, of which one decides when the job is done", kind.success.roles.join(", "));
            return Err(InvalidField::new("spec.roles", what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
