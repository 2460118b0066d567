//! What can keep pods apart beyond what they request: where that is so, nobody but the scheduler knows who has to end for whom.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The part of a pod's spec that says so.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Constraints {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    affinity: Affinity,
    topology_spread_constraints: Vec<Spread>,
    resource_claims: Vec<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    ports: Vec<Port>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Port {
    host_port: u16,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Affinity {
    pod_affinity: Option<IgnoredAny>,
    pod_anti_affinity: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spread {
    when_unsatisfiable: String,
}

impl Constraints {
    /// True if there is one: a port of the node, an affinity to pods, a spread that must hold, or a claim to devices.
    pub fn any(&self) -> bool {
        let containers = self.containers.iter().chain(&self.init_containers);
        containers.flat_map(|container| &container.ports).any(|port| port.host_port != 0)
            || self.affinity.pod_affinity.is_some()
            || self.affinity.pod_anti_affinity.is_some()
            || self.topology_spread_constraints.iter().any(|spread| spread.when_unsatisfiable == "DoNotSchedule")
            || !self.resource_claims.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_do_not_tell_is_a_constraint() {
        let any = |spec: &str| serde_json::from_str::<Constraints>(spec).expect("a spec").any();
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
