//! A job as templates see it.

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

/// A job that fits its type: what does not change while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Rendered<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub job: &'a CheckedJob,
    /// Its type.
    pub kind: &'a CheckedType,
}

/// The facts of the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How many pods roles are to have now, if not as many as `replicas`. They are the first so many indexes.
    pub desired: BTreeMap<String, u32>,
    /// The indexes of each role whose pods are ready.
    pub ready: BTreeMap<String, BTreeSet<u32>>,
    /// The image that has the agent of launchers.
    pub agent_image: String,
}

impl Rendered<'_> {
    /// Its role of this name, and the type's.
    pub(super) fn role(&self, name: &str) -> Result<(&CheckedRole, &RoleType), InvalidField> {
        let (role, of_type) = (self.job.role(name), self.kind.role(name));
        role.zip(of_type).ok_or_else(|| InvalidField::new("spec.roles", format!("has no role {name}")))
    }

    /// How many pods a role is to have now.
    pub(super) fn desired(&self, role: &CheckedRole, facts: &Facts) -> u32 {
        facts.desired.get(&role.name).copied().unwrap_or(role.replicas)
    }

    pub(super) fn host(&self, role: &str, index: u32) -> String {
        names::host(self.namespace, self.name, role, index)
    }
}

/// A job as templates see it. Files see this; variables of pods see the pod, too.
#[derive(Clone, Debug, Serialize)]
struct JobContext {
    job: JobNames,
    /// By name.
    roles: BTreeMap<String, RoleContext>,
    /// The hosts of all pods, in order of rank.
    hosts: Vec<String>,
    /// How many pods there are.
    size: u32,
    /// How many processes there are in all of them.
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
    /// Pods now.
    replicas: u32,
    min: u32,
    max: u32,
    /// Its pods may come and go.
    elastic: bool,
    /// In each pod.
    processes: u32,
    /// GPUs of each pod.
    gpus: u32,
    /// The hosts of its pods.
    hosts: Vec<String>,
    /// The same with the first port, if it has one.
    addresses: Vec<String>,
    /// The hosts of its pods that are ready.
    ready: Vec<String>,
    /// The first port.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// By name.
    ports: BTreeMap<String, u16>,
}

/// The contexts of a job, made once for all its pods.
pub(super) struct Contexts {
    /// The context of files.
    pub(super) job: Value,
    /// The rank of the first pod of each role.
    ranks: BTreeMap<String, u32>,
}

impl Contexts {
    pub(super) fn of(rendered: &Rendered<'_>, facts: &Facts) -> Self {
        let (mut roles, mut ranks, mut hosts) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        // Ranks count in the order of the type's roles.
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

    /// The context of a pod's variables.
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

/// The ports of the type, each with the number that the job's template gives to the same name.
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

/// The GPUs of a pod's containers.
fn gpus(template: &PodTemplateSpec) -> u32 {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let counts = limits.flatten().filter(|(name, _)| is_gpu(name)).filter_map(|(name, count)| amount(name, count));
    u32::try_from(counts.fold(0, u64::saturating_add)).unwrap_or(u32::MAX)
}
