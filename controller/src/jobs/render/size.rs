//! Checks the sizes of a job's objects before any object is created: the API server does not store larger objects, and
//! the kernel starts no process with larger variables.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use larder_api::InvalidField;

use super::context::{Facts, Rendered};
use super::place::Place;
use super::pod::Renderer;

/// The largest object. The API server accepts no larger ConfigMap, and only slightly larger pods.
const OBJECT_BYTES: usize = 1 << 20;

/// The longest environment variable with which a process can be started, including its name, the `=` and the final zero
/// byte.
const VARIABLE_BYTES: usize = 128 << 10;

/// Renders the objects of a job that has the most pods it may have. Fails if an object cannot be rendered or is too
/// large.
pub fn fits(rendered: &Rendered<'_>) -> Result<(), InvalidField> {
    let roles = &rendered.job.roles;
    let desired = roles.iter().map(|role| (role.name.clone(), role.max)).collect();
    let mut facts = Facts { desired, ..Facts::default() };
    if !rendered.kind.files.is_empty() {
        Renderer::new(*rendered, &facts).config_map()?;
    }
    facts.ready = facts.desired.iter().map(|(role, pods)| (role.clone(), (0..*pods).collect())).collect();
    let renderer = Renderer::new(*rendered, &facts);
    for role in roles {
        let last = rendered.desired(role, &facts).saturating_sub(1);
        for index in BTreeSet::from([0, last]) {
            pod(&renderer.pod(&role.name, index, 0, &Place::default())?)?;
        }
    }
    renderer.config_map()?.as_ref().map_or(Ok(()), files)
}

/// Rejects a pod that could not be created or not be started.
pub(super) fn pod(pod: &Pod) -> Result<(), InvalidField> {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    for one in containers.flat_map(|container| container.env.iter().flatten()) {
        if one.name.len() + one.value.as_deref().map_or(0, str::len) + 2 > VARIABLE_BYTES {
            let field = format!("the variable {}", one.name);
            return Err(InvalidField::new(
                field,
                format!("has more than {VARIABLE_BYTES} bytes, and no process can be started with it"),
            ));
        }
    }
    let bytes = serde_json::to_vec(pod).map_or(0, |json| json.len());
    if bytes > OBJECT_BYTES { Err(too_large("a pod", bytes)) } else { Ok(()) }
}

/// Rejects files that exceed the size of a ConfigMap.
pub(super) fn files(map: &ConfigMap) -> Result<(), InvalidField> {
    let bytes = map.data.iter().flatten().map(|(key, text)| key.len() + text.len()).sum();
    if bytes > OBJECT_BYTES { Err(too_large("spec.files", bytes)) } else { Ok(()) }
}

fn too_large(what: &'static str, bytes: usize) -> InvalidField {
    InvalidField::new(what, format!("would have {bytes} bytes, and the API server accepts at most {OBJECT_BYTES}"))
}
