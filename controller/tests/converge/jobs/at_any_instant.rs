//! A tree of queues with flavors, jobs and pods of other programs, and a controller that is killed at any of its
//! writes. A watcher of its own counts the pods after each change.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::super::World;
use super::super::api::{Api, Dies};
use super::queues::queued;
use super::{phase, queue_of_pod};

/// The most GPUs that pods of these queues may have on nodes of a flavor, or on all nodes.
const LIMITS: [(&[&str], Option<&str>, usize); 5] = [
    (&["red"], Some("h100"), 2),
    (&["red"], Some("a100"), 2),
    (&["red", "blue"], Some("a100"), 3),
    (&["red", "blue"], Some("h100"), 2),
    (&["green"], None, 1),
];

const JOBS: [(&str, &str, u32); 7] = [
    ("r1", "red", 2),
    ("r2", "red", 2),
    ("r3", "red", 1),
    ("b1", "blue", 2),
    ("b2", "blue", 1),
    ("g1", "green", 1),
    ("g2", "green", 1),
];

fn begin(api: &Api) {
    for (node, gpu) in [("n1", "h100"), ("n2", "a100")] {
        api.change("nodes", "", node, |node| node["metadata"]["labels"]["gpu"] = gpu.into());
    }
    let flavor = |name: &str| json!({"name": name, "nodeLabels": {"gpu": name}});
    let flavors = json!({"flavors": [flavor("h100"), flavor("a100")]});
    api.put("lardersettings", json!({"metadata": {"name": "larder"}, "spec": flavors}));
    let of = |name: &str, quota: Value| json!({"name": name, "quota": {"nvidia.com/gpu": quota}});
    let queue = |name: &str, mut spec: Value| {
        spec["namespaces"] = json!(["team-a"]);
        let metadata = json!({"name": name});
        api.put(
            "queues",
            json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec}),
        );
    };
    queue("company", json!({}));
    let red = [of("h100", json!({"nominal": 2})), of("a100", json!({"nominal": 1, "borrow": 1}))];
    queue("red", json!({"parent": "company", "flavors": red}));
    queue("blue", json!({"parent": "company", "flavors": [of("a100", json!({"nominal": 2}))]}));
    queue("green", json!({"quota": {"nvidia.com/gpu": {"nominal": 1}}}));
    for (name, queue, workers) in JOBS {
        api.put("trainingjobs", queued(name, queue, workers));
    }
    for queue in ["red", "blue", "green"] {
        let container = json!({"name": "main", "image": "image", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        let metadata =
            json!({"namespace": "team-a", "name": format!("server-{queue}"), "labels": {"larder.dev/queue": queue}});
        let spec = json!({"containers": [container], "schedulingGates": [{"name": "larder.dev/queue"}]});
        api.put("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    }
}

fn is_held(pod: &Value) -> bool {
    pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty())
}

/// The limits that pods exceed now.
fn exceeded(api: &Api) -> Vec<String> {
    let has_ended =
        |pod: &Value| ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default());
    let pods: Vec<Value> = api.list("pods").into_iter().filter(|pod| !is_held(pod) && !has_ended(pod)).collect();
    let exceeds = |(queues, flavor, most): &(&[&str], Option<&str>, usize)| {
        let counts = |pod: &&Value| {
            let is_on = flavor.is_none_or(|flavor| pod["spec"]["nodeSelector"]["gpu"] == flavor);
            is_on && queue_of_pod(pod).is_some_and(|queue| queues.contains(&queue.as_str()))
        };
        let used = pods.iter().filter(counts).count();
        (used > *most).then(|| format!("{queues:?} have {used} of {most} on {flavor:?}"))
    };
    LIMITS.iter().filter_map(exceeds).collect()
}

/// Runs the released pods of other programs, and ends those that run.
fn serve(api: &Api) {
    let is_of_others = |pod: &Value| !pod["metadata"]["labels"]["larder.dev/queue"].is_null();
    for pod in api.list("pods").iter().filter(|pod| is_of_others(pod) && !is_held(pod)) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        if pod["spec"]["nodeName"].is_null() {
            let node = if pod["spec"]["nodeSelector"]["gpu"] == "a100" { "n2" } else { "n1" };
            api.change("pods", "team-a", name, |pod| {
                pod["spec"]["nodeName"] = node.into();
                pod["status"] = json!({"phase": "Running"});
            });
        } else {
            api.delete("pods", "team-a", name);
        }
    }
}

async fn watch(api: Api, found: Arc<Mutex<Vec<String>>>) {
    let mut changes = api.changes();
    loop {
        found.lock().unwrap().extend(exceeded(&api));
        serve(&api);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Runs everything to its end, with a controller that is killed at a write and its successor. Returns the number of
/// writes.
async fn run(kill: Option<(usize, Dies)>) -> usize {
    let mut world = World::with_jobs(2);
    begin(&world.api);
    let found = Arc::new(Mutex::new(Vec::new()));
    let watcher = tokio::spawn(watch(world.api.clone(), Arc::clone(&found)));
    if let Some((write, dies)) = kill {
        world.api.die_at(write, dies);
    }
    world.start();
    if kill.is_some() {
        world.until_killed().await;
        world.kill();
        world.api.revive();
        world.start();
    }
    world.rest().await;
    watcher.abort();
    assert_eq!(*found.lock().unwrap(), [""; 0], "{kill:?}");
    for (name, ..) in JOBS {
        assert_eq!(phase(&world.api, name), "Succeeded", "{name}, {kill:?}: {:#?}", world.api.list("trainingjobs"));
    }
    let is_of_others = |pod: &Value| !pod["metadata"]["labels"]["larder.dev/queue"].is_null();
    assert!(!world.api.list("pods").iter().any(is_of_others), "{kill:?}");
    world.api.writes().len()
}

// SEMANTICS: J3, J25, J26
#[tokio::test(start_paused = true)]
async fn no_quota_is_exceeded_at_any_instant_and_all_get_their_turn_whenever_the_controller_is_killed() {
    let writes = run(None).await;
    assert!(writes > 30, "{writes}");
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            run(Some((write, dies))).await;
        }
    }
}
