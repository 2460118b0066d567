//! A list of the files that a pod is to read: its share of a dataset among the pods of its role.
//!
//! An init container writes the list. All pods list the same snapshot in the same order (`larder-agent split`).

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, EnvVar, PodSpec, SecurityContext, Volume};

use super::agent::{container, mount};
use super::context::Facts;
use crate::jobs::constraints::DATA_VOLUME;
use larder_api::training_job::checked::CheckedJob;

/// The volume of the list.
const VOLUME: &str = "larder-split";
/// The folder of the list in every container.
const FOLDER: &str = "/larder-split";

/// Adds the list to the pod with this index in a role of `count` pods, if the job splits a dataset.
pub(super) fn add(job: &CheckedJob, index: u32, count: u32, facts: &Facts, spec: &mut PodSpec) {
    let Some((at, split)) = job.datasets.iter().enumerate().find(|(_, mount)| mount.split) else { return };
    spec.volumes.get_or_insert_default().push(Volume {
        name: VOLUME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    let list = format!("{FOLDER}/files.txt");
    let variables = [
        ("LARDER_SPLIT_INDEX", index.to_string()),
        ("LARDER_SPLIT_COUNT", count.to_string()),
        ("LARDER_SPLIT_FILES", list.clone()),
    ]
    .map(|(name, value)| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() });
    let user = user(spec);
    for container in &mut spec.containers {
        container.volume_mounts.get_or_insert_default().push(mount(VOLUME, FOLDER, true));
        container.env.get_or_insert_default().splice(0..0, variables.clone());
    }
    let words = ["larder-agent", "split", &split.path, &index.to_string(), &count.to_string(), &list];
    let mut lists = Container {
        command: Some(words.map(str::to_owned).to_vec()),
        volume_mounts: Some(vec![
            mount(&format!("{DATA_VOLUME}{at}"), &split.path, true),
            mount(VOLUME, FOLDER, false),
        ]),
        ..container(VOLUME, facts)
    };
    // The files may be readable by the pod's user alone.
    if let (Some(user), Some(context)) = (user, &mut lists.security_context) {
        (context.run_as_user, context.run_as_group) = (user.run_as_user, user.run_as_group);
    }
    spec.init_containers.get_or_insert_default().push(lists);
}

/// The user and group of the first container, unless it is root or that of its image.
fn user(spec: &PodSpec) -> Option<SecurityContext> {
    let of_pod = spec.security_context.as_ref();
    let own = spec.containers.first().and_then(|main| main.security_context.as_ref());
    let id = own.and_then(|own| own.run_as_user).or_else(|| of_pod?.run_as_user).filter(|id| *id != 0)?;
    let group = own.and_then(|own| own.run_as_group).or_else(|| of_pod?.run_as_group);
    Some(SecurityContext { run_as_user: Some(id), run_as_group: group, ..SecurityContext::default() })
}
