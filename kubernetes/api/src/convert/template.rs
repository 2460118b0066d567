//! The roles of a manifest: their counts and pod templates.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::fields::Fields;
use crate::checked::InvalidField;
use crate::names::PROCESSES_ANNOTATION;
use crate::training_job::Role;

/// A role of a Kubeflow manifest.
pub(super) struct Replicas {
    /// The role's path in the manifest.
    pub(super) path: String,
    pub(super) role: Role,
    pub(super) restart_policy: Option<String>,
}

/// Takes the replica spec `name`; `None` if it is absent. The container named `main` is moved to the front.
pub(super) fn replicas(
    specs: &mut Fields,
    name: &str,
    role: &str,
    main: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<Replicas>, InvalidField> {
    let Some(given) = specs.take(name) else { return Ok(None) };
    let mut given = Fields::of(&specs.path(name), given)?;
    let replicas = given.read("replicas")?.unwrap_or(1);
    let restart_policy = given.read("restartPolicy")?;
    let template = template(given.object("template")?, main, warnings)?;
    given.rest(warnings);
    if replicas == 0 {
        warnings.push(format!("{}: has no replicas, so the job has no role {role}", specs.path(name)));
        return Ok(None);
    }
    let role = Role { name: role.to_owned(), replicas, template, ..Role::default() };
    Ok(Some(Replicas { path: specs.path(name), role, restart_policy }))
}

fn template(mut given: Fields, main: &str, warnings: &mut Vec<String>) -> Result<PodTemplateSpec, InvalidField> {
    let mut metadata = given.object("metadata")?;
    let labels: Option<BTreeMap<String, String>> = metadata.read("labels")?;
    let annotations: Option<BTreeMap<String, String>> = metadata.read("annotations")?;
    metadata.rest(warnings);
    let path = given.path("spec");
    let given_spec = given.take("spec").unwrap_or_default();
    given.rest(warnings);
    let mut spec: PodSpec = serde_json::from_value(given_spec.clone())
        .map_err(|error| InvalidField::new(path.clone(), format!("cannot be read: {error}")))?;
    lost(&path, &given_spec, &serde_json::to_value(&spec).expect("a pod is JSON"), warnings);
    if let Some(at) = spec.containers.iter().position(|container| container.name == main) {
        spec.containers[..=at].rotate_right(1);
    }
    if let Some(policy) = spec.restart_policy.take().filter(|policy| policy != "Never") {
        warnings.push(format!("{path}.restartPolicy: is {policy}; Larder makes a new pod instead, see spec.restart"));
    }
    let metadata = (labels.is_some() || annotations.is_some()).then(|| ObjectMeta {
        labels,
        annotations,
        ..ObjectMeta::default()
    });
    Ok(PodTemplateSpec { metadata, spec: Some(spec) })
}

/// Adds warnings for fields that Kubernetes does not define.
fn lost(path: &str, given: &Value, kept: &Value, warnings: &mut Vec<String>) {
    match given {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match kept.get(name) {
                    Some(kept) => lost(&path, value, kept, warnings),
                    None if is_empty(value) => {}
                    None => warnings.push(format!("{path}: is not known to Kubernetes and is left out")),
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                lost(&format!("{path}[{at}]"), item, &kept[at], warnings);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

impl Replicas {
    fn main(&mut self) -> Option<&mut Container> {
        self.role.template.spec.as_mut()?.containers.first_mut()
    }

    /// Sets a variable of the first container, unless the container already sets it.
    pub(super) fn set_variable(&mut self, name: &str, value: String) {
        let Some(main) = self.main() else { return };
        let variables = main.env.get_or_insert_default();
        if !variables.iter().any(|one| one.name == name) {
            variables.push(EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() });
        }
    }

    /// Sets the number of a port of the first container.
    pub(super) fn set_port(&mut self, name: &str, number: i32) {
        let Some(main) = self.main() else { return };
        let ports = main.ports.get_or_insert_default();
        ports.retain(|port| port.name.as_deref() != Some(name));
        ports.push(ContainerPort { name: Some(name.to_owned()), container_port: number, ..ContainerPort::default() });
    }

    /// Sets the number of processes in each pod.
    pub(super) fn set_processes(&mut self, processes: u32) {
        let metadata = self.role.template.metadata.get_or_insert_default();
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(PROCESSES_ANNOTATION.to_owned(), processes.to_string());
    }

    /// The words of the first container's command and arguments.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        let main = self.role.template.spec.as_ref().and_then(|spec| spec.containers.first());
        let lists = main.into_iter().flat_map(|main| [&main.command, &main.args]);
        lists.flatten().flatten().flat_map(|text| text.split_whitespace())
    }

    /// Removes the first container's command, so that the JobType's command applies.
    pub(super) fn clear_command(&mut self) {
        if let Some(main) = self.main() {
            (main.command, main.args) = (None, None);
        }
    }
}
