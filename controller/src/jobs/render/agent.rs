//! The containers that run larder-agent before those of the job.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ResourceRequirements, SeccompProfile, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::context::Facts;

/// The user of the containers. The files that they write are readable by every user.
const USER: i64 = 65532;

/// Mounts a volume.
pub(super) fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// A small container of the agent's image. It keeps its pod in the QoS class Guaranteed and passes PodSecurity
/// `restricted`.
pub(super) fn container(name: &str, facts: &Facts) -> Container {
    let amounts: BTreeMap<_, _> = [("cpu", "100m"), ("memory", "64Mi")]
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .into();
    Container {
        name: name.to_owned(),
        image: Some(facts.agent_image.clone()),
        resources: Some(ResourceRequirements {
            limits: Some(amounts.clone()),
            requests: Some(amounts),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}
