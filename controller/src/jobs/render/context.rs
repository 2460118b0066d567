//! The data that templates see of a job.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use larder_api::InvalidField;
use larder_api::job_type::RoleType;
use larder_api::job_type::checked::CheckedType;
use larder_api::quantity::{amount, is_gpu};
use larder_api::training_job::checked::{CheckedJob, CheckedRole};
use minijinja::{Value, context};
use serde::Serialize;

use super::names;

/// A job that matches its type: the inputs that do not change while the job runs.
#[derive(Clone, Copy, Debug)]
pub struct Rendered<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub job: &'a CheckedJob,
    pub kind: &'a CheckedType,
}

/// The inputs that change while a job runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The number of pods that roles should have now, where it differs from `replicas`. The pods have the indexes from
    /// 0 up.
    pub desired: BTreeMap<String, u32>,
    /// Per role, the indexes whose pods are ready.
    pub ready: BTreeMap<String, BTreeSet<u32>>,
    /// The image that contains larder-agent, for jobs with a launcher.
    pub agent_image: String,
}

impl Rendered<'_> {
    /// The role `name` of the job, and the same role of the type.
    pub(super) fn role(&self, name: &str) -> Result<(&CheckedRole, &RoleType), InvalidField> {
        let (role, of_type) = (self.job.role(name), self.kind.role(name));
        role.zip(of_type).ok_or_else(|| InvalidField::new("spec.roles", format!("has no role {name}")))
    }

    /// The number of pods that a role should have now.
    pub(super) fn desired(&self, role: &CheckedRole, facts: &Facts) -> u32 {
        facts.desired.get(&role.name).copied().unwrap_or(role.replicas)
    }

    pub(super) fn host(&self, role: &str, index: u32) -> String {
        names::host(self.namespace, self.name, role, index)
    }
}

/// The context of a job's files. The variables of a pod also see the pod.
#[derive(Clone, Debug, Serialize)]
struct JobContext {
    job: JobNames,
    roles: BTreeMap<String, RoleContext>,
    /// The hosts of all pods, ordered by rank.
    hosts: Vec<String>,
    /// The number of pods.
    size: u32,
    /// The number of processes in all pods together.
    world: u32,
}

#[derive(Clone, Debug, Serialize)]
struct JobNames {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Clone, Debug, Serialize)]
struct RoleContext {
    name: String,
    /// The number of pods that the role should have now.
    replicas: u32,
    min: u32,
    max: u32,
    /// Whether pods may join and leave while the job runs.
    elastic: bool,
    /// Processes per pod.
    processes: u32,
    /// GPUs per pod.
    gpus: u32,
    hosts: Vec<String>,
    /// The hosts, each with the role's first port if it has one.
    addresses: Vec<String>,
    /// The hosts whose pods are ready.
    ready: Vec<String>,
    /// The role's first port.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    ports: BTreeMap<String, u16>,
}

/// The contexts of a job, built once for all its pods.
pub(super) struct Contexts {
    /// The context of the job's files.
    pub(super) job: Value,
    /// Per role, the rank of its first pod.
    ranks: BTreeMap<String, u32>,
}

impl Contexts {
    pub(super) fn of(rendered: &Rendered<'_>, facts: &Facts) -> Self {
        let (mut roles, mut ranks, mut hosts) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        // Ranks follow the order of the roles in the JobType.
        for of_type in &rendered.kind.roles {
            let Some(role) = rendered.job.role(&of_type.name) else { continue };
            let context = role_context(rendered, role, facts);
            ranks.insert(role.name.clone(), hosts.len() as u32);
            hosts.extend(context.hosts.iter().cloned());
            roles.insert(role.name.clone(), context);
        }
        let job = JobContext {
            job: JobNames {
                name: rendered.name.to_owned(),
                namespace: rendered.namespace.to_owned(),
                uid: rendered.uid.to_owned(),
            },
            size: hosts.len() as u32,
            world: roles.values().fold(0, |sum, role| role.replicas.saturating_mul(role.processes).saturating_add(sum)),
            roles,
            hosts,
        };
        Self { job: Value::from_serialize(&job), ranks }
    }

    /// The context of the variables of one pod.
    pub(super) fn pod(&self, rendered: &Rendered<'_>, role: &str, index: u32, attempt: u32) -> Value {
        let of_role = self.job.get_attr("roles").and_then(|roles| roles.get_attr(role)).unwrap_or_default();
        let address = of_role.get_attr("addresses").and_then(|all| all.get_item_by_index(index as usize));
        context! {
            rank => self.ranks.get(role).map(|first| first + index),
            address => address.unwrap_or_default(),
            role => of_role,
            index => index,
            attempt => attempt,
            host => rendered.host(role, index),
            hostname => names::hostname(rendered.name, role, index),
            ..self.job.clone()
        }
    }
}

fn role_context(rendered: &Rendered<'_>, role: &CheckedRole, facts: &Facts) -> RoleContext {
    let replicas = rendered.desired(role, facts);
    let ports = ports(rendered, role);
    let port = ports.first().map(|(_, port)| *port);
    let hosts: Vec<_> = (0..replicas).map(|index| rendered.host(&role.name, index)).collect();
    let ready = facts.ready.get(&role.name);
    let gpus = gpus(&role.template);
    RoleContext {
        name: role.name.clone(),
        replicas,
        min: role.min,
        max: role.max,
        elastic: role.min < role.max,
        processes: role.processes.unwrap_or(gpus.max(1)),
        gpus,
        addresses: port.map(|port| hosts.iter().map(|host| format!("{host}:{port}")).collect()).unwrap_or_default(),
        ready: ready.into_iter().flatten().map(|index| rendered.host(&role.name, *index)).collect(),
        hosts,
        port,
        ports: ports.into_iter().collect(),
    }
}

/// The ports of the type. If the job's template declares a port of the same name, its number is used.
pub(super) fn ports(rendered: &Rendered<'_>, role: &CheckedRole) -> Vec<(String, u16)> {
    let given = |name: &str| {
        let ports = main(&role.template)?.ports.as_ref()?;
        let port = ports.iter().find(|port| port.name.as_deref() == Some(name))?;
        u16::try_from(port.container_port).ok()
    };
    let of_type = rendered.kind.role(&role.name).map(|role| &role.ports[..]).unwrap_or_default();
    of_type.iter().map(|port| (port.name.clone(), given(&port.name).unwrap_or(port.port))).collect()
}

fn main(template: &PodTemplateSpec) -> Option<&Container> {
    template.spec.as_ref()?.containers.first()
}

/// The number of GPUs that a pod's containers request.
fn gpus(template: &PodTemplateSpec) -> u32 {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let counts = limits.flatten().filter(|(name, _)| is_gpu(name)).filter_map(|(name, count)| amount(name, count));
    u32::try_from(counts.fold(0, u64::saturating_add)).unwrap_or(u32::MAX)
}
