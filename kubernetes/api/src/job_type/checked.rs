//! The spec of a JobType, validated and parsed. Its templates are not checked here: the controller's
//! `job::render::validate` renders sample jobs with them.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    ConfigFile, Indexes, JobTypeSpec, Launcher, Outcome, Performance, RestartScope, RoleType, ServiceRules, Variable,
};
use crate::checked::InvalidField;
use crate::form::{is_name, is_path};
use crate::quantity::amount;

/// The number of crashes that a job tolerates if neither the job nor its type sets it.
pub const MAX_CRASHES: u32 = 3;
/// The default size of /dev/shm, as a percentage of the container's memory.
pub const SHARED_MEMORY_PERCENT: u8 = 50;

/// The spec of a JobType, validated and parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedType {
    /// The roles, in the order in which ranks are counted.
    pub roles: Vec<RoleType>,
    /// Variables of every container.
    pub environment: Vec<Variable>,
    /// Files in every container.
    pub files: Vec<ConfigFile>,
    /// How pods reach each other by name; `None` if they do not.
    pub service: Option<ServiceRules>,
    /// The role that starts processes in other pods; `None` if there is none.
    pub launcher: Option<Launcher>,
    /// When a job is done.
    pub success: CheckedSuccess,
    /// The part that restarts when a pod is lost, unless the job overrides it.
    pub scope: RestartScope,
    /// The job fails when more pods than this have crashed, unless the job overrides it.
    pub max_crashes: u32,
    /// The performance defaults of the pods.
    pub performance: CheckedPerformance,
}

/// When a job is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedSuccess {
    /// The deciding roles: the first of them that the job has decides.
    pub roles: Vec<String>,
    /// The indexes that must have succeeded.
    pub indexes: Indexes,
    /// The state of the job after that.
    pub then: Outcome,
}

/// The performance defaults of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPerformance {
    /// True if requests and limits become equal.
    pub guaranteed: bool,
    /// True if containers with more than one CPU get whole CPUs.
    pub whole_cpus: bool,
    /// The size of /dev/shm.
    pub shared_memory: SharedMemory,
    /// True if huge pages are mounted.
    pub hugepages: bool,
    /// The CPUs of a first container that requests none.
    pub cpus: Option<u32>,
    /// The memory of a first container that requests none, in bytes.
    pub memory_bytes: Option<u64>,
}

/// The size of /dev/shm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// The container runtime's 64 MiB.
    Off,
    /// A part of the first container's memory, in percent.
    Percent(u8),
    /// A size in bytes.
    Bytes(u64),
}

impl CheckedType {
    /// The role of this name.
    pub fn role(&self, name: &str) -> Option<&RoleType> {
        self.roles.iter().find(|role| role.name == name)
    }
}

impl JobTypeSpec {
    /// Checks every value. Errors: the first invalid field.
    pub fn check(&self) -> Result<CheckedType, InvalidField> {
        self.check_roles()?;
        self.check_references()?;
        self.check_launcher()?;
        self.check_names()?;
        Ok(CheckedType {
            roles: self.roles.clone(),
            environment: self.environment.clone(),
            files: self.files.clone(),
            service: self.service.clone(),
            launcher: self.launcher.clone(),
            success: CheckedSuccess {
                roles: self.success.roles.clone(),
                indexes: self.success.indexes.unwrap_or_default(),
                then: self.success.then.unwrap_or_default(),
            },
            scope: self.restart.scope.unwrap_or_default(),
            max_crashes: self.restart.max_crashes.unwrap_or(MAX_CRASHES),
            performance: self.performance.check()?,
        })
    }

    fn check_roles(&self) -> Result<(), InvalidField> {
        if self.roles.is_empty() || self.roles.len() > 16 {
            return Err(InvalidField::new("spec.roles", "must have 1 to 16 roles"));
        }
        let mut names = BTreeSet::new();
        for role in &self.roles {
            let field = |rest: &str| format!("spec.roles[{}].{rest}", role.name);
            if !is_name(&role.name, 15) {
                let form = "must begin with a letter and consist of lower-case letters, digits and hyphens";
                return Err(InvalidField::new("spec.roles[].name", form));
            }
            if !names.insert(&role.name) {
                return Err(InvalidField::new("spec.roles", format!("has {} twice", role.name)));
            }
            if role.most == Some(0) {
                return Err(InvalidField::new(field("most"), "must be at least 1"));
            }
            let mut ports = BTreeSet::new();
            if role.ports.iter().any(|port| port.port == 0 || !ports.insert(&port.name)) {
                return Err(InvalidField::new(field("ports"), "must have numbers from 1 on, and each name once"));
            }
            let spec = role.template.as_ref().map(|template| template.spec.as_ref());
            if spec.is_some_and(|spec| spec.is_none_or(|spec| spec.containers.is_empty())) {
                return Err(InvalidField::new(field("template.spec.containers"), "is empty"));
            }
        }
        Ok(())
    }

    /// Checks that all referenced roles exist.
    fn check_references(&self) -> Result<(), InvalidField> {
        if self.success.roles.is_empty() {
            return Err(InvalidField::new("spec.success.roles", "is empty"));
        }
        self.known("spec.success.roles", &self.success.roles)?;
        for one in &self.environment {
            self.known("spec.environment[].roles", &one.roles)?;
        }
        for one in &self.files {
            self.known("spec.files[].roles", &one.roles)?;
        }
        Ok(())
    }

    fn known(&self, field: &'static str, names: &[String]) -> Result<(), InvalidField> {
        let unknown = names.iter().find(|name| !self.roles.iter().any(|role| role.name == **name));
        unknown.map_or(Ok(()), |name| Err(InvalidField::new(field, format!("names {name}, which is not a role"))))
    }

    fn check_launcher(&self) -> Result<(), InvalidField> {
        let Some(launcher) = &self.launcher else { return Ok(()) };
        self.known("spec.launcher.role", std::slice::from_ref(&launcher.role))?;
        self.known("spec.launcher.starts", &launcher.starts)?;
        if launcher.starts.is_empty() || launcher.starts.contains(&launcher.role) {
            return Err(InvalidField::new("spec.launcher.starts", "must list roles other than the launcher's"));
        }
        if launcher.port < 1024 {
            return Err(InvalidField::new("spec.launcher.port", "must be 1024 to 65535"));
        }
        if self.service.is_none() {
            return Err(InvalidField::new("spec.service", "is missing: the launcher reaches its workers by name"));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), InvalidField> {
        for one in &self.environment {
            let first = one.name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            if !first || !one.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                let form = "must be the name of a variable: letters, digits and underscores";
                return Err(InvalidField::new("spec.environment[].name", form));
            }
        }
        let mut paths = BTreeSet::new();
        for one in &self.files {
            if !is_path(&one.path, 256) || one.path.matches('/').count() < 2 {
                let form = "must be the whole path of a file in a folder, such as /etc/mpi/hostfile";
                return Err(InvalidField::new("spec.files[].path", form));
            }
            if !paths.insert(&one.path) {
                return Err(InvalidField::new("spec.files", format!("has {} twice", one.path)));
            }
        }
        Ok(())
    }
}

impl Performance {
    fn check(&self) -> Result<CheckedPerformance, InvalidField> {
        let field = "spec.performance.sharedMemory";
        let shared_memory = match self.shared_memory.as_deref() {
            None => SharedMemory::Percent(SHARED_MEMORY_PERCENT),
            Some("off") => SharedMemory::Off,
            Some(text) => match text.strip_suffix('%') {
                Some(percent) => {
                    let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
                    SharedMemory::Percent(percent.ok_or_else(|| InvalidField::new(field, "must be 1% to 100%"))?)
                }
                None => SharedMemory::Bytes(size(field, text)?),
            },
        };
        let memory = self.memory.as_deref();
        Ok(CheckedPerformance {
            guaranteed: self.guaranteed,
            whole_cpus: self.whole_cpus,
            shared_memory,
            hugepages: self.hugepages,
            cpus: self.cpus,
            memory_bytes: memory.map(|text| size("spec.performance.memory", text)).transpose()?,
        })
    }
}

fn size(field: &'static str, text: &str) -> Result<u64, InvalidField> {
    let bytes = amount("memory", &Quantity(text.to_owned())).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| InvalidField::new(field, "must be a size such as 8Gi"))
}

#[cfg(test)]
mod tests;
