//! Constraints beyond resource requests that can keep a pod off a node. If a pod has one, only the scheduler can tell
//! which pods must be preempted for it.

use k8s_openapi::api::core::v1::PodSpec;

/// True if a pod has one: a host port, an affinity to pods, a required topology spread, or a claim to devices.
pub fn has_constraints(spec: &PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let affinity = spec.affinity.as_ref();
    let has_pod_affinity =
        affinity.is_some_and(|affinity| affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some());
    let mut spreads = spec.topology_spread_constraints.iter().flatten();
    has_pod_affinity
        || ports.any(|port| port.host_port.is_some_and(|port| port != 0))
        || spreads.any(|spread| spread.when_unsatisfiable == "DoNotSchedule")
        || spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_pod_affinity_hard_spreads_and_device_claims_are_constraints() {
        let any = |spec: &str| has_constraints(&serde_json::from_str(spec).expect("a spec"));
        for spec in [
            r#"{"containers":[{"ports":[{"containerPort":80},{"hostPort":80}]}]}"#,
            r#"{"initContainers":[{"ports":[{"hostPort":80}]}]}"#,
            r#"{"affinity":{"podAffinity":{}}}"#,
            r#"{"affinity":{"podAntiAffinity":{"x":[]}}}"#,
            r#"{"topologySpreadConstraints":[{"maxSkew":1,"whenUnsatisfiable":"DoNotSchedule"}]}"#,
            r#"{"resourceClaims":[{"name":"gpu"}]}"#,
        ] {
            assert!(any(spec), "{spec}");
        }
        let none = r#"{"containers":[{"ports":[{"containerPort":80}]}],"affinity":{"nodeAffinity":{}},
            "topologySpreadConstraints":[{"whenUnsatisfiable":"ScheduleAnyway"}]}"#;
        assert!(!any(none) && !any("{}"));
    }
}
