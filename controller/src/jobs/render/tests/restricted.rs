//! Jobs whose own template passes PodSecurity `restricted` still pass it once rendered.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use serde_json::json;

use super::*;

fn check(pod: &Pod) {
    let spec = pod.spec.as_ref().expect("a spec");
    assert!(spec.host_network.is_none() && spec.host_pid.is_none() && spec.host_ipc.is_none());
    let of_pod = spec.security_context.as_ref().expect("a security context");
    assert_eq!(of_pod.seccomp_profile.as_ref().map(|profile| profile.type_.as_str()), Some("RuntimeDefault"));
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for Container { name, security_context, ports, .. } in containers {
        let context = security_context.as_ref().unwrap_or_else(|| panic!("{name} has no security context"));
        assert_eq!(context.allow_privilege_escalation, Some(false), "{name}");
        let drop = context.capabilities.as_ref().and_then(|capabilities| capabilities.drop.as_ref());
        assert!(drop.is_some_and(|drop| drop.iter().any(|one| one == "ALL")), "{name}");
        assert!(context.run_as_non_root.or(of_pod.run_as_non_root) == Some(true), "{name}");
        assert!(ports.iter().flatten().all(|port| port.host_port.is_none()), "{name}");
    }
    for volume in spec.volumes.iter().flatten() {
        let Volume { config_map, secret, empty_dir, persistent_volume_claim, .. } = volume;
        let kinds = [config_map.is_some(), secret.is_some(), empty_dir.is_some(), persistent_volume_claim.is_some()];
        assert!(kinds.contains(&true), "{} is of a kind that is not allowed", volume.name);
    }
}

#[test]
fn all_that_is_added_is_restricted() {
    let template = json!({"spec": {
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000},
        "containers": [{
            "name": "main", "image": "image",
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "resources": {"limits": {"hugepages-2Mi": "1Gi", "memory": "4Gi", "cpu": 2}}
        }]
    }});
    for name in BUILTIN {
        let kind = builtin(name);
        let roles: Vec<_> =
            kind.spec.roles.iter().map(|role| json!({"name": role.name, "template": template})).collect();
        let datasets = json!([{"name": "pets", "mountPath": "/data"}]);
        let sample = Sample::of(name, json!({"roles": roles, "datasets": datasets}));
        let facts = facts();
        let renderer = Renderer::new(sample.rendered(), &facts);
        for role in &sample.job.roles {
            check(&renderer.pod(&role.name, 0, 0, &Place::default()).expect("a pod"));
        }
    }
}
