//! Jobs that a real MultiKueue moves: Kueue in both clusters, and Larder in both, as its users deploy it.

use larder_e2e::platform::{SUMS, TIMEOUT, sums};
use serde_json::{Value, json};

use super::lab::{Lab, Place, TEAM};

/// The queue of the home, whose Workloads go to `west`.
const HOME: &str = "
apiVersion: kueue.x-k8s.io/v1beta2
kind: MultiKueueCluster
metadata: {name: west}
spec: {clusterSource: {kubeConfig: {locationType: Secret, location: west}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: MultiKueueConfig
metadata: {name: west, annotations: {larder.dev/dispatcher: 'true'}}
spec: {clusters: [west]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: west}
spec:
  controllerName: kueue.x-k8s.io/multikueue
  parameters: {apiGroup: kueue.x-k8s.io, kind: MultiKueueConfig, name: west}
";

/// The account of MultiKueue in `west`, with the rights that the documentation names and those to Workloads.
const WEST: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: multikueue, namespace: kueue-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: multikueue}
rules:
- {apiGroups: [larder.dev], resources: [trainingjobs], verbs: [create, delete, get, list, watch]}
- {apiGroups: [larder.dev], resources: [trainingjobs/status], verbs: [get]}
- {apiGroups: [batch], resources: [jobs], verbs: [get, list, watch]}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [create, delete, get, list, watch, patch, update]
- {apiGroups: [kueue.x-k8s.io], resources: [workloads/status], verbs: [get, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: multikueue}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: multikueue}
subjects: [{kind: ServiceAccount, name: multikueue, namespace: kueue-system}]
";

/// The queue `jobs` of the team. `checks` is a line of its ClusterQueue.
fn queue(checks: &str) -> String {
    format!(
        "
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: any}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: jobs}}
spec:
  namespaceSelector: {{}}
  {checks}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors: [{{name: any, resources: [{{name: cpu, nominalQuota: 10}}, {{name: memory, nominalQuota: 10Gi}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: jobs, namespace: {TEAM}}}
spec: {{clusterQueue: jobs}}
"
    )
}

/// Starts Kueue in both clusters, and joins `west` to the home's MultiKueue over the same link as to Larder's home.
fn join(lab: &Lab) {
    let (home, west) = (&lab.home.cluster, &lab.west.cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| west.start_kueue(&["multikueue"]));
        home.start_kueue(&["multikueue"]);
    });
    west.apply(&queue(""));
    west.apply(WEST);
    let token = west.kubectl_ok(&["create", "token", "multikueue", "-n", "kueue-system", "--duration=2h"]);
    home.apply(
        &json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "west", "namespace": "kueue-system"},
            "stringData": {"kubeconfig": lab.west_kubeconfig(token.trim()).to_string()},
        })
        .to_string(),
    );
    home.apply(HOME);
    home.apply(&queue("admissionChecksStrategy: {admissionChecks: [{name: west}]}"));
    home.wait_for("the queue is active", TIMEOUT, || {
        let queue = home.get_json(&["clusterqueue", "jobs"]);
        let mut conditions = queue["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Active" && condition["status"] == "True")
    });
}

/// The only Workload of a place; null if there is none.
fn workload(place: &Place) -> Value {
    let all = place.cluster.get_json(&["workloads.kueue.x-k8s.io", "-n", TEAM]);
    let all = all["items"].as_array().unwrap();
    assert!(all.len() <= 1, "{all:#?}");
    all.first().cloned().unwrap_or_default()
}

fn is_finished(workload: &Value) -> bool {
    let mut conditions = workload["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Finished" && condition["status"] == "True")
}

/// Submits a job of MultiKueue at home.
fn submit(lab: &Lab, name: &str, script: &str, more: &Value) {
    let mut job = lab.job(name, 100, script, more);
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue".into();
    job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "jobs"});
    lab.home.apply(&[job]);
}

#[test]
#[ignore = "needs Kueue, which takes a quarter of an hour to build: tests/cluster/kueue.sh install"]
fn multikueue_moves_a_job_and_its_status_is_seen_at_home() {
    let lab = Lab::start();
    let (home, west) = (&lab.home, &lab.west);
    let far = lab.put_dataset("far", &["west"]);
    join(&lab);

    // It runs there until a file tells it to end, and reads its data from the cache there.
    let script = format!(
        "echo it runs in $SITE; cd /set && {SUMS}; until [ -e /shared/end ]; do sleep 1; done; cp /shared/end /shared/ended"
    );
    submit(&lab, "moved", &script, &json!({"datasets": [{"name": "far", "mountPath": "/set", "minWarm": 100}]}));
    lab.wait_for_phase("moved", "Running");
    assert_eq!(home.live_pods("moved"), [""; 0]);
    let pods = west.live_pods("moved");
    assert_eq!(pods.len(), 1);
    assert_eq!(workload(home)["status"]["clusterName"], "west");
    assert!(workload(home)["status"]["nominatedClusterNames"].is_null(), "Kueue can clear what Larder nominates");
    let there = workload(west);
    assert_eq!(there["metadata"]["name"], workload(home)["metadata"]["name"]);
    assert_eq!(there["metadata"]["ownerReferences"][0]["uid"], west.job("moved")["metadata"]["uid"]);
    let explained = lab.larder(&["explain", "job", "moved", "-n", TEAM]);
    assert!(explained.contains(" runs: ") && explained.contains("MultiKueue chooses its cluster"), "{explained}");
    let logs = || west.cluster.kubectl_ok(&["logs", "-n", TEAM, &pods[0]]);
    west.cluster.wait_for("it has read its data", TIMEOUT, || sums(&logs()) == far);
    assert!(logs().starts_with("it runs in west\n"), "{}", logs());
    assert!(lab.gets(home, "far").iter().all(|gets| *gets == 0), "no byte of it was brought to the home");

    // Its end is seen at home. The copy goes, and is not made again.
    std::fs::write(lab.shared.path().join("end"), "").unwrap();
    lab.wait_for_phase("moved", "Succeeded");
    home.cluster.wait_for("its Workload is finished", TIMEOUT, || is_finished(&workload(home)));
    west.cluster.wait_for("its copy is gone", TIMEOUT, || west.job("moved").is_null() && workload(west).is_null());
    assert!(lab.shared.path().join("ended").exists());
    home.cluster.kubectl_ok(&["delete", "tj", "-n", TEAM, "moved", "--timeout=120s"]);
    home.cluster.wait_for("its Workload is gone", TIMEOUT, || workload(home).is_null());

    // Suspension and deletion at home end the pods over there.
    submit(&lab, "stopped", "sleep 3600", &json!({}));
    lab.wait_for_phase("stopped", "Running");
    let suspend = |suspend: bool| {
        let patch = json!({"spec": {"suspend": suspend}}).to_string();
        home.cluster.kubectl_ok(&["patch", "tj", "-n", TEAM, "stopped", "--type=merge", "-p", &patch]);
    };
    suspend(true);
    west.cluster.wait_for("it has no pods", TIMEOUT, || west.live_pods("stopped").is_empty());
    lab.wait_for_phase("stopped", "Suspended");
    suspend(false);
    lab.wait_for_phase("stopped", "Running");
    assert_eq!(west.live_pods("stopped").len(), 1);
    home.cluster.kubectl_ok(&["delete", "tj", "-n", TEAM, "stopped", "--timeout=120s"]);
    west.cluster.wait_for("nothing of it is left", TIMEOUT, || {
        west.live_pods("stopped").is_empty() && west.job("stopped").is_null() && workload(west).is_null()
    });
    assert_eq!(home.live_pods("stopped"), [""; 0]);
}
