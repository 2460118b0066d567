//! What a pod requests of its node, as the scheduler counts it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_controller_api::quantity::amount;
use serde::Deserialize;

use crate::job::amounts::Amounts;

/// The parts of a pod's spec that say what it requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResources {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    overhead: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    resources: Resources,
    restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
}

/// Amounts as they are written. What is no amount counts as nothing.
pub fn amounts(written: &BTreeMap<String, Quantity>) -> Amounts {
    written.iter().filter_map(|(resource, quantity)| Some((resource.as_str(), amount(resource, quantity)?))).collect()
}

impl Resources {
    /// A limit is a request, too, if there is no other.
    fn amounts(&self) -> Amounts {
        let mut all = self.limits.clone();
        all.extend(self.requests.clone());
        amounts(&all)
    }
}

impl PodResources {
    /// What all containers that run together request: those of the pod with the sidecars, or an init container with the sidecars
    /// that were started before it, whichever is more of each resource.
    pub fn requests(&self) -> Amounts {
        let (mut sidecars, mut most) = (Amounts::default(), Amounts::default());
        for container in &self.init_containers {
            let mut now = sidecars.clone();
            now.add(&container.resources.amounts(), 1);
            most = larger(&most, &now);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = now;
            }
        }
        for container in &self.containers {
            sidecars.add(&container.resources.amounts(), 1);
        }
        let mut all = larger(&most, &sidecars);
        all.add(&amounts(&self.overhead), 1);
        all
    }
}

/// The larger amount of each resource.
fn larger(one: &Amounts, other: &Amounts) -> Amounts {
    let resources: BTreeSet<&str> = one.iter().chain(other.iter()).map(|(resource, _)| resource).collect();
    resources.into_iter().map(|resource| (resource, one.get(resource).max(other.get(resource)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_requests_what_its_containers_need_at_the_same_time() {
        let of = |amounts: serde_json::Value| json!({"resources": {"requests": amounts}});
        let pod = json!({
            "containers": [of(json!({"cpu": "1", "memory": "1Gi"})), {"resources": {"limits": {"nvidia.com/gpu": 2}}}],
            "initContainers": [
                {"resources": {"requests": {"cpu": "500m"}}, "restartPolicy": "Always"},
                of(json!({"cpu": "3"})),
                of(json!({"memory": "512Mi"})),
            ],
            "overhead": {"memory": "1Mi"},
        });
        let requests = PodResources::deserialize(pod).expect("a pod").requests();
        let expected = [("cpu", 3_500), ("memory", (1 << 30) + (1 << 20)), ("nvidia.com/gpu", 2)];
        assert_eq!(requests, expected.into_iter().collect());
    }
}
