//! Launchers: pods that start processes in other pods without ssh. An init container installs larder-agent into each
//! pod, and a key that only this job has authenticates the connections. The launcher's main containers start after
//! every other pod has answered, so every host name resolves by then.
//!
//! The JobType's variables can rely on `/larder/rsh HOST COMMAND...`, which runs a command on a host. The other pods
//! run `/larder/agent serve`.

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVar, KeyToPath, PodSpec, SecretVolumeSource, Volume,
};
use larder_api::job_type::Launcher;

use super::agent::{container, mount};
use super::context::{Facts, Rendered};
use super::{files, names};

/// The folder of larder-agent in every container.
const FOLDER: &str = "/larder";
/// The folder of the key.
const KEY_FOLDER: &str = "/etc/larder-job";
/// The folder of the host list, in the container that waits for the hosts.
const HOSTS_FOLDER: &str = "/etc/larder-hosts";

/// Adds the parts of the launcher that a pod of `role` needs.
pub(super) fn add(rendered: &Rendered<'_>, role: &str, facts: &Facts, spec: &mut PodSpec) {
    let Some(launcher) = &rendered.kind.launcher else { return };
    let starts = launcher.role == role;
    if !starts && !launcher.starts.iter().any(|name| name == role) {
        return;
    }
    let volumes = spec.volumes.get_or_insert_default();
    volumes.push(Volume {
        name: "larder-agent".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: "larder-key".to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(names::secret(rendered.name, rendered.uid)),
            default_mode: Some(0o444),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    let agent = mount("larder-agent", FOLDER, true);
    let key = mount("larder-key", KEY_FOLDER, true);
    for container in &mut spec.containers {
        container.volume_mounts.get_or_insert_default().extend([agent.clone(), key.clone()]);
        container.env.get_or_insert_default().splice(0..0, variables(launcher));
    }
    let mut ours = vec![Container {
        command: Some(["larder-agent", "install", FOLDER].map(str::to_owned).to_vec()),
        volume_mounts: Some(vec![mount("larder-agent", FOLDER, false)]),
        ..container("larder-agent", facts)
    }];
    if starts {
        let hosts = KeyToPath {
            key: files::HOSTS_KEY.to_owned(),
            path: "hosts".to_owned(),
            mode: Some(0o444),
            ..KeyToPath::default()
        };
        volumes.push(files::volume(rendered, "larder-hosts".to_owned(), vec![hosts]));
        ours.push(Container {
            command: Some(vec!["larder-agent".to_owned(), "wait".to_owned(), format!("{HOSTS_FOLDER}/hosts")]),
            env: Some(variables(launcher)),
            volume_mounts: Some(vec![key, mount("larder-hosts", HOSTS_FOLDER, true)]),
            ..container("larder-wait", facts)
        });
    }
    // The job's own init containers come first: the other pods may be waiting for their results.
    spec.init_containers.get_or_insert_default().extend(ours);
}

/// The hosts that the launcher waits for, one per line.
pub(super) fn hosts(rendered: &Rendered<'_>, facts: &Facts) -> Option<String> {
    let launcher = rendered.kind.launcher.as_ref()?;
    let roles = launcher.starts.iter().filter_map(|name| rendered.job.role(name));
    let hosts = roles.flat_map(|role| {
        let desired = rendered.desired(role, facts);
        (0..desired).map(|index| rendered.host(&role.name, index) + "\n")
    });
    Some(hosts.collect())
}

fn variables(launcher: &Launcher) -> Vec<EnvVar> {
    let variable =
        |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
    vec![
        variable("LARDER_AGENT_PORT", launcher.port.to_string()),
        variable("LARDER_AGENT_KEY", format!("{KEY_FOLDER}/{}", super::shared::KEY)),
    ]
}
