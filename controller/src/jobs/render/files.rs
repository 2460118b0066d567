//! The files of a JobType: one ConfigMap, with a separate volume for each folder. The kubelet does not update `subPath`
//! mounts, so folders are mounted whole.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, KeyToPath, PodSpec, Volume, VolumeMount};
use larder_api::job_type::ConfigFile;

use super::context::Rendered;
use super::names;

/// The ConfigMap key of the hosts that a launcher waits for.
pub(super) const HOSTS_KEY: &str = "larder-hosts";

/// The ConfigMap key of a file: its path without the leading `/`, and with `__` for the other slashes, which keys do
/// not allow.
pub(super) fn key(file: &ConfigFile) -> String {
    file.path.trim_start_matches('/').replace('/', "__")
}

/// True if the pods of `role` get the file.
fn is_for(file: &ConfigFile, role: &str) -> bool {
    file.roles.is_empty() || file.roles.iter().any(|name| name == role)
}

/// Mounts the files into every container.
pub(super) fn mount(rendered: &Rendered<'_>, role: &str, spec: &mut PodSpec) {
    let mut folders: BTreeMap<&str, Vec<(&ConfigFile, &str)>> = BTreeMap::new();
    for file in rendered.kind.files.iter().filter(|file| is_for(file, role)) {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        folders.entry(folder).or_default().push((file, name));
    }
    for (at, (folder, files)) in folders.into_iter().enumerate() {
        let items = files.into_iter().map(|(file, name)| KeyToPath {
            key: key(file),
            path: name.to_owned(),
            mode: Some(if file.executable { 0o555 } else { 0o444 }),
            ..KeyToPath::default()
        });
        let volume = volume(rendered, format!("larder-files-{at}"), items.collect());
        let mount = VolumeMount {
            name: volume.name.clone(),
            mount_path: folder.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        };
        spec.volumes.get_or_insert_default().push(volume);
        for container in &mut spec.containers {
            container.volume_mounts.get_or_insert_default().push(mount.clone());
        }
    }
}

/// A volume with some keys of the job's ConfigMap.
pub(super) fn volume(rendered: &Rendered<'_>, name: String, items: Vec<KeyToPath>) -> Volume {
    let source = ConfigMapVolumeSource {
        name: names::config_map(rendered.name, rendered.uid),
        items: Some(items),
        ..ConfigMapVolumeSource::default()
    };
    Volume { name, config_map: Some(source), ..Volume::default() }
}
