//! A simulator of the scheduler and the kubelets for pods of training jobs. A pod goes to the node that its affinity
//! names, is ready immediately, and succeeds unless a test holds it. A pod with a group waits until the group exists.

use serde_json::{Value, json};

use super::api::Api;

/// The ConfigMap in which a test sets the fate of pods, by the prefix of their names: `pending`, `starting` without
/// getting ready, `running`, `failed` or `exit CODE`, `result NUMBER` for a success with this termination message,
/// `refused` by the kubelet, or `only NODE` for pods that the scheduler binds nowhere else and that then run. All other
/// pods succeed.
fn fate(api: &Api, pod: &str) -> String {
    let map = api.get("configmaps", "test", "fates").unwrap_or_default();
    let fates = map["data"].as_object().cloned().unwrap_or_default();
    let of = fates.iter().filter(|(name, _)| pod.starts_with(name.as_str())).max_by_key(|(name, _)| name.len());
    of.and_then(|(_, fate)| fate.as_str()).unwrap_or("succeeded").to_owned()
}

/// From now on, pods with these name prefixes have these fates.
pub(crate) fn set_fates(api: &Api, fates: &[(&str, &str)]) {
    let data: serde_json::Map<String, Value> =
        fates.iter().map(|(name, fate)| ((*name).to_owned(), (*fate).into())).collect();
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "fates"}, "data": data}));
}

/// The status of a pod whose program exited with an error.
pub(crate) fn failed() -> Value {
    exited(1)
}

fn exited(code: u8) -> Value {
    let state = json!({"terminated": {"exitCode": code, "reason": "Error"}});
    json!({"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]})
}

/// The status of a pod that has succeeded, with a termination message.
fn succeeded(message: &str) -> Value {
    let state = json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": message}});
    json!({"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]})
}

/// The status of a pod that the scheduler cannot bind.
fn unschedulable() -> Value {
    let message = "0/2 nodes are available: 1 node(s) had volume node affinity conflict";
    let scheduled = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    json!({"phase": "Pending", "conditions": [scheduled]})
}

fn planned(pod: &Value) -> Option<&str> {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    pod.pointer(terms)?.pointer("/matchFields/0/values/0")?.as_str()
}

pub(super) fn react(api: &Api) {
    for pod in api.list("pods") {
        if pod["metadata"]["labels"]["larder.dev/job"].is_null() {
            continue;
        }
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap().to_owned();
        let phase = pod["status"]["phase"].as_str().unwrap_or("Pending").to_owned();
        let fate = fate(api, &name);
        if ["Succeeded", "Failed"].contains(&phase.as_str()) || fate == "pending" {
            continue;
        }
        let group = pod["spec"]["schedulingGroup"]["podGroupName"].as_str();
        if group.is_some_and(|group| api.get("podgroups", &namespace, group).is_none()) {
            continue;
        }
        let only = fate.strip_prefix("only ");
        let node = planned(&pod).or(only).unwrap_or("n1").to_owned();
        if only.is_some_and(|only| only != node) {
            api.change("pods", &namespace, &name, |pod| pod["status"] = unschedulable());
            continue;
        }
        api.change("pods", &namespace, &name, |pod| {
            pod["spec"]["nodeName"] = node.into();
            pod["status"] = match (phase.as_str(), fate.as_str()) {
                ("Running", "succeeded") => json!({"phase": "Succeeded"}),
                ("Running", "failed") => failed(),
                ("Running", fate) if fate.starts_with("exit ") => exited(fate["exit ".len()..].parse().unwrap()),
                ("Running", fate) if fate.starts_with("result ") => succeeded(&fate["result ".len()..]),
                (_, "starting") => json!({"phase": "Running"}),
                (_, "refused") => json!({"phase": "Failed", "reason": "TopologyAffinityError"}),
                _ => {
                    let mut status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
                    if let Some(reported) = pod["status"].get("containerStatuses") {
                        status["containerStatuses"] = reported.clone();
                    }
                    status
                }
            };
        });
    }
}
