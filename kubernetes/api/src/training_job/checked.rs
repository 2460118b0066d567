//! The spec of a TrainingJob, validated and parsed, and whether it matches its JobType.
//!
//! The schema and the policy `larder-jobs` reject nearly all mistakes at apply. These checks cover objects that were
//! stored before a rule was added, and mistakes that a rule cannot express.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use larder_dataset::size::parse_duration;

use super::{GangBackend, KeepPods, MountedDataset, Role, TrainingJob, Until};
use crate::checked::InvalidField;
use crate::form::{is_label, is_name, is_path};
use crate::job_type::RestartScope;
use crate::job_type::checked::CheckedType;
use crate::names::{ANY_CLUSTER, DatasetKey, HERE, KUEUE_QUEUE_LABEL, MANAGED_BY, MULTIKUEUE};

mod rules;
mod sweep;
mod template;

pub use rules::{CheckedRule, Predecessor};
pub use sweep::{CheckedObjective, CheckedSweep, Draw, Space, TRIALS_MAX};
pub use template::Defaults;

/// The most pods of a role.
pub const REPLICAS_MAX: u32 = 10_000;

/// The most bytes of a spec, in JSON. A controller keeps the specs of all jobs in memory, and does not parse a larger
/// one. The policy `larder-jobs` refuses roles of a fourth of it and sweeps of half of it, so only a job that was
/// created before the policy can be larger.
pub const SPEC_BYTES_MAX: usize = 256 << 10;

/// The most seconds that a pod of a job may take to end. The policy `larder-jobs` refuses jobs with more.
pub const GRACE_SECONDS_MAX: i64 = 3600;

/// The most roles of a job.
pub const ROLES_MAX: usize = 16;
/// The default percentage of a dataset that must be cached before a job starts.
pub const MIN_WARM: u32 = 90;
/// The default for the longest time that a job waits for a dataset.
pub const WARM_TIMEOUT: Duration = Duration::from_secs(600);
/// The default for how long a job must run without a crash before one crash less counts.
pub const FORGIVE_AFTER: Duration = Duration::from_secs(12 * 3600);
/// The default for how long the pods of a gang may take to be bound.
pub const GANG_TIMEOUT: Duration = Duration::from_secs(30);

/// The shortest `spec.failover`.
pub const FAILOVER_MIN: Duration = Duration::from_secs(120);
/// The most clusters of a job.
const CLUSTERS_MAX: usize = 20;
/// The grace period of pods that set none.
const GRACE_SECONDS: i64 = 30;

/// The longest timeouts of a job without a queue. The policy `larder-jobs` refuses longer ones.
pub const UNQUEUED_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The longest timeouts of any other job.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A TrainingJob, validated and parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedJob {
    /// The name of the JobType.
    pub kind: String,
    /// The pods, by role.
    pub roles: Vec<CheckedRole>,
    /// The datasets that the pods read.
    pub datasets: Vec<CheckedMount>,
    /// Variables of every container: their names and values.
    pub parameters: Vec<(String, String)>,
    /// Its trials, if it is a sweep.
    pub sweep: Option<CheckedSweep>,
    /// Where the job waits for quota.
    pub queueing: Queueing,
    /// The priority among those of its Queue; `None` for the queue's default.
    pub priority: Option<String>,
    /// The planner of the job's nodes.
    pub backend: GangBackend,
    /// How long pods may take to be bound.
    pub gang_timeout: Duration,
    /// A node label. All pods should run on nodes with the same value.
    pub topology_key: Option<String>,
    /// The part that restarts when a pod is lost; `None` for the JobType's setting.
    pub scope: Option<RestartScope>,
    /// The number of crashes that the job tolerates; `None` for the JobType's setting.
    pub max_crashes: Option<u32>,
    /// How long the job must run without a crash before one crash less counts.
    pub forgive_after: Duration,
    /// How often the kubelet restarts the containers of a pod.
    pub in_place: u32,
    /// The rules for pods that crash: the first that matches decides.
    pub rules: Vec<CheckedRule>,
    /// How long a node may be not ready before it is lost to the job; `None` for the administrator's setting.
    pub node_lost_after: Option<Duration>,
    /// True if no pod is replaced that may still run.
    pub at_most_once: bool,
    /// True if the job should have no pods.
    pub suspend: bool,
    /// The job fails when it has run for this long; `None` for no limit.
    pub active_deadline: Option<Duration>,
    /// The job is deleted this long after it has ended; `None` to keep it.
    pub ttl_after_finished: Option<Duration>,
    /// The pods that stay after the job has ended.
    pub keep_pods: KeepPods,
    /// The clusters that the job may run in.
    pub clusters: Clusters,
    /// How long its cluster may not answer before the job starts in another one; `None`: it stays.
    pub failover: Option<Duration>,
}

/// The clusters that a job may run in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clusters {
    /// This one alone.
    #[default]
    Here,
    /// All.
    Any,
    /// Those with these names.
    Names(Vec<String>),
}

impl Clusters {
    /// True if the job may run in this cluster.
    pub fn allow(&self, cluster: &str) -> bool {
        match self {
            Self::Here => cluster == HERE,
            Self::Any => true,
            Self::Names(names) => names.iter().any(|name| name == cluster),
        }
    }
}

/// Pods of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedRole {
    /// The name of the role.
    pub name: String,
    /// The desired number of pods.
    pub replicas: u32,
    /// The fewest pods that the job can run with, at least 1.
    pub min: u32,
    /// The most pods that the job can use.
    pub max: u32,
    /// The roles that come before it.
    pub starts_after: Vec<Predecessor>,
    /// The template of the pods.
    pub template: PodTemplateSpec,
    /// Processes in each pod; `None` for the default: one for each GPU, or one without GPUs.
    pub processes: Option<u32>,
    /// The performance defaults that are on for the pods.
    pub defaults: Defaults,
}

/// A dataset, and where pods see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedMount {
    /// The Dataset.
    pub dataset: DatasetKey,
    /// The folder in every container.
    pub path: String,
    /// True if each pod gets a list of its share of the files.
    pub split: bool,
    /// The percentage that must be cached before pods start.
    pub min_warm: u32,
    /// The longest time that the job waits for the dataset.
    pub warm_timeout: Duration,
}

/// Where a job waits for quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// Without a queue: the job starts when it fits, after the jobs of queues.
    None,
    /// In a Queue.
    Queue(String),
    /// In a LocalQueue of Kueue, which admits the job.
    Kueue(String),
}

impl TrainingJob {
    /// True if another controller runs the job.
    pub fn is_of_others(&self) -> bool {
        is_others(self.spec.managed_by.as_deref())
    }

    /// True if MultiKueue runs the job in another cluster.
    pub fn is_of_multikueue(&self) -> bool {
        self.spec.managed_by.as_deref() == Some(MULTIKUEUE)
    }

    /// Checks every value. Errors: the first invalid field.
    pub fn check(&self) -> Result<CheckedJob, InvalidField> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        if !is_name(name, 63) {
            let form = "must begin with a letter, consist of lower-case letters, digits and hyphens, and have at most 63 \
                        characters";
            return Err(InvalidField::new("metadata.name", form));
        }
        let spec = &self.spec;
        if !is_label(&spec.type_, 63) {
            return Err(InvalidField::new("spec.type", "must be the name of a JobType"));
        }
        let time =
            |field: &'static str, text: &Option<String>| text.as_deref().map(|text| duration(field, text)).transpose();
        let queueing = self.queueing()?;
        if spec.priority.is_some() && !matches!(queueing, Queueing::Queue(_)) {
            return Err(InvalidField::new("spec.priority", "needs spec.queue, whose priorities it names"));
        }
        let longest = if queueing == Queueing::None { UNQUEUED_TIMEOUT_MAX } else { TIMEOUT_MAX };
        let (roles, datasets) = (check_roles(&spec.roles)?, self.check_datasets(longest)?);
        check_split(&datasets, &roles)?;
        Ok(CheckedJob {
            kind: spec.type_.clone(),
            roles,
            datasets,
            parameters: sweep::check_parameters(&spec.parameters)?,
            sweep: spec.sweep.as_ref().map(|sweep| sweep::check(sweep, name, &spec.roles)).transpose()?,
            queueing,
            priority: spec.priority.clone(),
            backend: spec.gang.backend.unwrap_or_default(),
            gang_timeout: time("spec.gang.timeout", &spec.gang.timeout)?.unwrap_or(GANG_TIMEOUT).min(longest),
            topology_key: spec.gang.topology_key.clone(),
            scope: spec.restart.scope,
            max_crashes: spec.restart.max_crashes,
            forgive_after: time("spec.restart.forgiveAfter", &spec.restart.forgive_after)?.unwrap_or(FORGIVE_AFTER),
            in_place: spec.restart.in_place.unwrap_or(0),
            rules: rules::check(&spec.restart.rules, &spec.roles)?,
            node_lost_after: time("spec.restart.nodeLostAfter", &spec.restart.node_lost_after)?,
            at_most_once: spec.restart.at_most_once,
            suspend: spec.suspend,
            active_deadline: time("spec.activeDeadline", &spec.active_deadline)?,
            ttl_after_finished: match spec.ttl_after_finished.as_deref() {
                // Only this duration may be 0, and the parser rejects 0.
                Some(text) if text.trim_end_matches(['s', 'm', 'h', 'd']).bytes().all(|byte| byte == b'0') => {
                    Some(Duration::ZERO)
                }
                Some(text) => Some(duration("spec.ttlAfterFinished", text)?),
                None => None,
            },
            keep_pods: spec.keep_pods.unwrap_or_default(),
            clusters: self.clusters()?,
            failover: self.failover()?,
        })
    }

    fn clusters(&self) -> Result<Clusters, InvalidField> {
        let names = &self.spec.clusters;
        let refused = |what: &str| Err(InvalidField::new("spec.clusters", what));
        if names.is_empty() || *names == [HERE] {
            return Ok(Clusters::Here);
        }
        if self.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(KUEUE_QUEUE_LABEL)) {
            return refused("cannot be combined with a queue of Kueue, which moves jobs between clusters itself");
        }
        if *names == [ANY_CLUSTER] {
            return Ok(Clusters::Any);
        }
        let is_name = |name: &String| is_label(name, 63) && name != ANY_CLUSTER;
        if names.len() > CLUSTERS_MAX || !names.iter().all(is_name) {
            return refused("must list at most 20 names of Clusters, or `any` alone");
        }
        Ok(Clusters::Names(names.clone()))
    }

    /// Half of the time is for the other cluster to notice that the link is lost, and half for pods to end.
    fn failover(&self) -> Result<Option<Duration>, InvalidField> {
        const FIELD: &str = "spec.failover";
        let Some(text) = &self.spec.failover else { return Ok(None) };
        let failover = duration(FIELD, text)?;
        let grace = |role: &Role| {
            role.template.spec.as_ref().and_then(|pod| pod.termination_grace_period_seconds).unwrap_or(GRACE_SECONDS)
        };
        let grace = self.spec.roles.iter().map(grace).max().unwrap_or(GRACE_SECONDS).clamp(0, GRACE_SECONDS_MAX);
        let least = FAILOVER_MIN.max(Duration::from_secs(2 * grace.unsigned_abs() + 60));
        if failover < least {
            let what = format!(
                "must be at least {} s: 2m, and twice the longest terminationGracePeriodSeconds and a minute, so that the pods have \
                 ended before others start",
                least.as_secs()
            );
            return Err(InvalidField::new(FIELD, what));
        }
        Ok(Some(failover))
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

    /// Checks the datasets. `longest` is the most that the job may wait for one of them.
    fn check_datasets(&self, longest: Duration) -> Result<Vec<CheckedMount>, InvalidField> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
        let mut checked = Vec::new();
        for mount in &self.spec.datasets {
            let mount = check_mount(own, mount, longest)?;
            if !names.insert(mount.dataset.clone()) {
                return Err(InvalidField::new("spec.datasets", format!("has {} twice", mount.dataset)));
            }
            if !paths.insert(mount.path.clone()) {
                let what = "must be different for each dataset";
                return Err(InvalidField::new(format!("spec.datasets[{}].mountPath", mount.dataset.name), what));
            }
            checked.push(mount);
        }
        Ok(checked)
    }
}

fn check_mount(own: &str, mount: &MountedDataset, longest: Duration) -> Result<CheckedMount, InvalidField> {
    let field = |rest: &str| format!("spec.datasets[{}].{rest}", mount.name);
    let dataset = DatasetKey::within(own, &mount.name)
        .map_err(|_| InvalidField::new("spec.datasets[].name", "must be the name of a Dataset, or NAMESPACE/NAME"))?;
    if !is_path(&mount.mount_path, 256) {
        return Err(InvalidField::new(field("mountPath"), "must be an absolute path without `..` and `:`"));
    }
    let min_warm = mount.min_warm.unwrap_or(MIN_WARM);
    if min_warm > 100 {
        return Err(InvalidField::new(field("minWarm"), "must be a percentage, 0 to 100"));
    }
    let timeout = mount.warm_timeout.as_deref().map(|text| duration(&field("warmTimeout"), text)).transpose()?;
    let warm_timeout = timeout.unwrap_or(WARM_TIMEOUT).min(longest);
    Ok(CheckedMount { dataset, path: mount.mount_path.clone(), split: mount.split, min_warm, warm_timeout })
}

/// Checks that at most one dataset is split, among pods whose number is fixed.
fn check_split(datasets: &[CheckedMount], roles: &[CheckedRole]) -> Result<(), InvalidField> {
    let mut split = datasets.iter().filter(|mount| mount.split);
    let Some(first) = split.next() else { return Ok(()) };
    let field = |mount: &CheckedMount| format!("spec.datasets[{}].split", mount.dataset.name);
    if let Some(second) = split.next() {
        return Err(InvalidField::new(field(second), format!("is true for {} too; only one can be", first.dataset)));
    }
    match roles.iter().find(|role| role.min != role.max) {
        Some(role) => {
            let what = format!("needs a fixed number of pods; remove min and max of the role {}", role.name);
            Err(InvalidField::new(field(first), what))
        }
        None => Ok(()),
    }
}

fn check_roles(roles: &[Role]) -> Result<Vec<CheckedRole>, InvalidField> {
    if roles.is_empty() || roles.len() > ROLES_MAX {
        return Err(InvalidField::new("spec.roles", "must have 1 to 16 roles"));
    }
    let mut names = BTreeSet::new();
    let checked = roles.iter().enumerate().map(|(at, role)| {
        if !names.insert(&role.name) {
            return Err(InvalidField::new("spec.roles", format!("has {} twice", role.name)));
        }
        check_role(role, &roles[..at])
    });
    checked.collect()
}

/// Checks a role. `before` are the roles before it.
fn check_role(role: &Role, before: &[Role]) -> Result<CheckedRole, InvalidField> {
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
        starts_after: rules::predecessors(role, before)?,
        processes: template::processes(&field("template"), &role.template)?,
        defaults: Defaults::of(&field("template"), &role.template)?,
        template: role.template.clone(),
    })
}

/// True if `spec.managedBy` names another controller.
pub fn is_others(managed_by: Option<&str>) -> bool {
    managed_by.is_some_and(|name| name != MANAGED_BY)
}

/// The mistake of a spec of this many bytes; `None` if it is small enough.
pub fn too_large(bytes: usize) -> Option<InvalidField> {
    let what = || {
        format!(
            "has {bytes} bytes, and may have at most {SPEC_BYTES_MAX}: move scripts and files into ConfigMaps or the \
             image, and use spec.sweep.grid or random in place of a long list"
        )
    };
    (bytes > SPEC_BYTES_MAX).then(|| InvalidField::new("spec", what()))
}

fn duration(field: &str, text: &str) -> Result<Duration, InvalidField> {
    let refused = |_| InvalidField::new(field.to_owned(), "must be a time in s, m, h or d, such as 30s, 12h or 7d");
    parse_duration(text).map_err(refused)
}

impl CheckedJob {
    /// The Queue that the job waits in, if any.
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

    /// Checks that the job's roles match its JobType. Errors: the first mismatch.
    pub fn fit(&self, kind: &CheckedType) -> Result<(), InvalidField> {
        let known = || kind.roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(", ");
        for role in &self.roles {
            let field = |rest: &str| format!("spec.roles[{}].{rest}", role.name);
            let Some(of_type) = kind.role(&role.name) else {
                let what = format!("is not a role of the type {}, which has {}", self.kind, known());
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
        let decides = kind.success.roles.iter().find_map(|name| self.roles.iter().position(|role| role.name == *name));
        let Some(decides) = decides else {
            let what = format!(
                "has none of the roles {}; one of them must decide when the job is done",
                kind.success.roles.join(", ")
            );
            return Err(InvalidField::new("spec.roles", what));
        };
        let waits_for_the_end = |role: &&CheckedRole| {
            role.starts_after.iter().any(|before| before.role == decides && before.until == Until::Done)
        };
        if let Some(role) = self.roles.iter().find(waits_for_the_end) {
            let what = format!(
                "waits until {} is done, and so is a job of the type {} then; wait until it is ready",
                self.roles[decides].name, self.kind
            );
            return Err(InvalidField::new(format!("spec.roles[{}].startsAfter", role.name), what));
        }
        if let Some(launcher) = &kind.launcher
            && let Some(role) = self.after(&launcher.role).into_iter().find(|role| launcher.starts.contains(&role.name))
        {
            let what = format!(
                "waits for {}, which in jobs of the type {} waits for all pods of this role; put it after this role",
                launcher.role, self.kind
            );
            return Err(InvalidField::new(format!("spec.roles[{}].startsAfter", role.name), what));
        }
        Ok(())
    }

    /// The roles that start after this one, or after others that do.
    fn after(&self, first: &str) -> Vec<&CheckedRole> {
        let mut after: Vec<&CheckedRole> = Vec::new();
        for role in &self.roles {
            let mut before = role.starts_after.iter().filter_map(|before| self.roles.get(before.role));
            if before.any(|before| before.name == first || after.iter().any(|other| other.name == before.name)) {
                after.push(role);
            }
        }
        after
    }
}

#[cfg(test)]
mod tests;
