//! Validates a JobType: renders sample jobs of every shape and checks the resulting objects. A running job never has a
//! type that fails here.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use larder_api::InvalidField;
use larder_api::job_type::JobTypeSpec;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::{Role, TrainingJob, TrainingJobSpec};
use serde_json::json;

use super::context::{Facts, Rendered};
use super::place::Place;
use super::pod::Renderer;
use super::size;
use super::template::Templates;

/// The number of pods of each role in the larger samples.
const REPLICAS: u32 = 3;

/// Checks a JobType and renders samples of it. Returns the first field that is wrong.
pub fn validate(spec: &JobTypeSpec) -> Result<CheckedType, InvalidField> {
    validate_as("sample", spec)
}

/// Like [`validate`], with the type's name for messages.
pub fn validate_as(name: &str, spec: &JobTypeSpec) -> Result<CheckedType, InvalidField> {
    let kind = spec.check()?;
    let templates = Templates::on_trial();
    for job in samples(name, &kind) {
        let checked = job.check()?;
        checked.fit(&kind)?;
        let rendered = Rendered { namespace: "team-a", name: "sample", uid: "uid", job: &checked, kind: &kind };
        let mut facts = Facts { agent_image: "larder.invalid/larder".to_owned(), ..Facts::default() };
        try_job(&templates, &rendered, &facts)?;
        facts.ready = checked.roles.iter().map(|role| (role.name.clone(), (0..role.replicas).collect())).collect();
        facts.desired = checked.roles.iter().map(|role| (role.name.clone(), role.min)).collect();
        try_job(&templates, &rendered, &facts)?;
    }
    Ok(kind)
}

/// Sample jobs: with the mandatory roles alone, with each of the other roles in addition, and with all roles; each with
/// one pod per role and with several.
fn samples(name: &str, kind: &CheckedType) -> Vec<TrainingJob> {
    let all: BTreeSet<&str> = kind.roles.iter().map(|role| role.name.as_str()).collect();
    let required: BTreeSet<&str> =
        kind.roles.iter().filter(|role| role.required).map(|role| role.name.as_str()).collect();
    let mut shapes: BTreeSet<BTreeSet<&str>> = [all.clone(), required.clone()].into();
    shapes.extend(all.iter().map(|one| required.iter().copied().chain([*one]).collect()));
    // A job needs at least one of the roles that decide its success.
    shapes.retain(|shape| kind.success.roles.iter().any(|role| shape.contains(role.as_str())));
    shapes.iter().flat_map(|shape| [1, REPLICAS].map(|replicas| sample(name, kind, shape, replicas))).collect()
}

fn sample(name: &str, kind: &CheckedType, shape: &BTreeSet<&str>, replicas: u32) -> TrainingJob {
    let template: PodTemplateSpec =
        serde_json::from_value(json!({"spec": {"containers": [{"name": "main", "image": "image"}]}}))
            .expect("a template of a pod");
    let roles = kind.roles.iter().filter(|role| shape.contains(role.name.as_str())).map(|role| {
        let replicas = replicas.min(role.most.unwrap_or(REPLICAS));
        let elastic = role.elastic && replicas > 1;
        let min = elastic.then_some(1);
        Role { name: role.name.clone(), replicas, min, template: template.clone(), ..Role::default() }
    });
    let spec = TrainingJobSpec { type_: name.to_owned(), roles: roles.collect(), ..TrainingJobSpec::default() };
    TrainingJob::new("sample", spec)
}

fn try_job(templates: &Templates, rendered: &Rendered<'_>, facts: &Facts) -> Result<(), InvalidField> {
    let renderer = Renderer::with(templates.clone(), *rendered, facts);
    for role in &rendered.job.roles {
        let pods = rendered.desired(role, facts);
        for index in BTreeSet::from([0, pods - 1]) {
            check_pod(&renderer.pod(&role.name, index, 0, &Place::default())?)?;
        }
    }
    let Some(map) = renderer.config_map()? else { return Ok(()) };
    size::files(&map)?;
    let files = map.data.unwrap_or_default();
    if let Some((key, _)) = files.iter().find(|(_, text)| text.contains('\0')) {
        return Err(InvalidField::new("spec.files", format!("contain a NUL byte in {key}")));
    }
    Ok(())
}

/// Rejects a container that could not start.
fn check_pod(pod: &Pod) -> Result<(), InvalidField> {
    size::pod(pod)?;
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let mut names = BTreeSet::new();
        for one in container.env.iter().flatten() {
            let field = format!("spec.environment[{}].value", one.name);
            let refuse = |what: &str| Err(InvalidField::new(field.clone(), what));
            let value = one.value.as_deref().unwrap_or_default();
            if !names.insert(&one.name) {
                return refuse("is set twice for the same pod");
            }
            if value.contains('\0') {
                return refuse("contains a NUL byte");
            }
            // A value that begins like JSON must be valid JSON.
            if value.starts_with('{') {
                let read = serde_json::from_str::<serde::de::IgnoredAny>(value);
                read.map_err(|error| InvalidField::new(field.clone(), format!("is not valid JSON: {error}")))?;
            }
        }
        let mut paths = BTreeSet::new();
        for mount in container.volume_mounts.iter().flatten() {
            if !paths.insert(mount.mount_path.trim_end_matches('/')) {
                let what = format!("has two volumes at {}", mount.mount_path);
                return Err(InvalidField::new("spec.files", what));
            }
        }
    }
    Ok(())
}
