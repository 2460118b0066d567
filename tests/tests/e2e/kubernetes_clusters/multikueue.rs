//! Jobs that a real MultiKueue moves: Kueue in all clusters, and Larder in all, as its users deploy it.

use std::time::Duration;

use larder_e2e::platform::{SUMS, TIMEOUT, sums};
use serde_json::{Value, json};

use super::lab::{Lab, Place, TEAM, Worker};

/// How long a Workload may wait for the second cluster, which is nominated after five minutes.
const SECOND_ROUND: Duration = TIMEOUT.saturating_mul(2);

/// The account of MultiKueue in a worker, with the rights that the documentation names and those to Workloads.
const ACCOUNT: &str = "
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

/// The AdmissionCheck of the home's queue, which moves its Workloads to these clusters.
fn check(workers: &[&str]) -> String {
    format!(
        "
apiVersion: kueue.x-k8s.io/v1beta2
kind: MultiKueueConfig
metadata: {{name: workers, annotations: {{larder.dev/dispatcher: 'true'}}}}
spec: {{clusters: [{}]}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {{name: workers}}
spec:
  controllerName: kueue.x-k8s.io/multikueue
  parameters: {{apiGroup: kueue.x-k8s.io, kind: MultiKueueConfig, name: workers}}
",
        workers.join(", ")
    )
}

/// The queue `jobs` of the team, with a quota of CPUs. `checks` is a line of its ClusterQueue.
fn queue(cpus: &str, checks: &str) -> String {
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
    flavors: [{{name: any, resources: [{{name: cpu, nominalQuota: {cpus}}}, {{name: memory, nominalQuota: 10Gi}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: jobs, namespace: {TEAM}}}
spec: {{clusterQueue: jobs}}
"
    )
}

/// Starts Kueue in all clusters, and joins the workers to the home's MultiKueue over the same links as to Larder's
/// home.
fn join(lab: &Lab) {
    let home = &lab.home.cluster;
    let places: Vec<&Place> = lab.places().collect();
    // Two at a time, so that Kueue answers in time for any number of clusters.
    for pair in places.chunks(2) {
        std::thread::scope(|scope| {
            for place in pair {
                scope.spawn(move || place.cluster.start_kueue(&["multikueue"]));
            }
        });
    }
    for Worker { place, .. } in &lab.workers {
        let (name, cluster) = (place.name, &place.cluster);
        cluster.apply(&queue("10", ""));
        cluster.apply(ACCOUNT);
        let token = cluster.kubectl_ok(&["create", "token", "multikueue", "-n", "kueue-system", "--duration=2h"]);
        let kubeconfig = lab.kubeconfig_of(name, token.trim()).to_string();
        lab.home.apply(&[
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "kueue-system"},
                "stringData": {"kubeconfig": kubeconfig}}),
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "MultiKueueCluster", "metadata": {"name": name},
                "spec": {"clusterSource": {"kubeConfig": {"locationType": "Secret", "location": name}}}}),
        ]);
    }
    let workers: Vec<&str> = lab.workers.iter().map(|worker| worker.place.name).collect();
    home.apply(&check(&workers));
    home.apply(&queue("10", "admissionChecksStrategy: {admissionChecks: [{name: workers}]}"));
    for name in workers {
        home.wait_for(&format!("MultiKueue reaches {name}"), TIMEOUT, || {
            holds(&lab.home.get(&["multikueueclusters.kueue.x-k8s.io", name]), "Active")
        });
    }
    home.wait_for("the queue is active", TIMEOUT, || holds(&lab.home.get(&["clusterqueue", "jobs"]), "Active"));
}

/// True if an object has this condition.
fn holds(object: &Value, condition: &str) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|found| found["type"] == condition && found["status"] == "True")
}

/// The Workload of a job in a place; null if there is none.
fn workload(place: &Place, job: &str) -> Value {
    let of_job = format!("larder.dev/job={job}");
    let all = place.cluster.get_json(&["workloads.kueue.x-k8s.io", "-n", TEAM, "-l", &of_job]);
    let all = all["items"].as_array().unwrap();
    assert!(all.len() <= 1, "{all:#?}");
    all.first().cloned().unwrap_or_default()
}

/// A job of MultiKueue.
fn moved(lab: &Lab, name: &str, millis: u64, script: &str, more: &Value) -> Value {
    let mut job = lab.job(name, millis, script, more);
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue".into();
    job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "jobs"});
    job
}

/// Submits such a job at home.
fn submit(lab: &Lab, name: &str, millis: u64, script: &str, more: &Value) {
    lab.home.apply(&[moved(lab, name, millis, script, more)]);
}

/// The field of a job that reads all of a Dataset at /set.
fn reads(dataset: &str) -> Value {
    json!({"datasets": [{"name": dataset, "mountPath": "/set", "minWarm": 100}]})
}

#[test]
#[ignore = "needs Kueue, which takes a quarter of an hour to build: tests/cluster/kueue.sh install"]
fn multikueue_moves_a_job_and_its_status_is_seen_at_home() {
    let lab = Lab::start();
    let (home, west) = (&lab.home, lab.west());
    let far = lab.put_dataset("far", &["west"]);
    let has_left = |job: &str| west.job(job).is_null() && workload(west, job).is_null();
    join(&lab);

    // It runs there until a file tells it to end, and reads its data from the cache there.
    let script = format!(
        "echo it runs in $SITE; cd /set && {SUMS}; until [ -e /shared/end ]; do sleep 1; done; cp /shared/end /shared/ended"
    );
    submit(&lab, "moved", 100, &script, &reads("far"));
    lab.wait_for_phase("moved", "Running");
    assert_eq!(home.live_pods("moved"), [""; 0]);
    let pods = west.live_pods("moved");
    assert_eq!(pods.len(), 1);
    let here = workload(home, "moved");
    assert_eq!(here["status"]["clusterName"], "west");
    assert!(here["status"]["nominatedClusterNames"].is_null(), "Kueue can clear what Larder nominates");
    let there = workload(west, "moved");
    assert_eq!(there["metadata"]["name"], here["metadata"]["name"]);
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
    home.cluster.wait_for("its Workload is finished", TIMEOUT, || holds(&workload(home, "moved"), "Finished"));
    west.cluster.wait_for("its copy is gone", TIMEOUT, || has_left("moved"));
    assert!(lab.shared.path().join("ended").exists());
    home.cluster.kubectl_ok(&["delete", "tj", "-n", TEAM, "moved", "--timeout=120s"]);
    home.cluster.wait_for("its Workload is gone", TIMEOUT, || workload(home, "moved").is_null());

    // Suspension and deletion at home end the pods over there.
    submit(&lab, "stopped", 100, "sleep 3600", &json!({}));
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
    west.cluster
        .wait_for("nothing of it is left", TIMEOUT, || west.live_pods("stopped").is_empty() && has_left("stopped"));
    assert_eq!(home.live_pods("stopped"), [""; 0]);
}

/// The cluster that a job with the script [`notes_its_cluster`] has run in.
fn cluster_of(lab: &Lab, job: &str) -> String {
    std::fs::read_to_string(lab.shared.path().join(job)).unwrap().trim().to_owned()
}

/// A script that reads all data, and notes its cluster in the shared folder.
fn notes_its_cluster(job: &str) -> String {
    format!("cat /set/* >/dev/null; echo $SITE >/shared/{job}")
}

#[test]
#[ignore = "needs Kueue, which takes a quarter of an hour to build: tests/cluster/kueue.sh install"]
fn multikueue_moves_jobs_to_the_cluster_that_holds_their_data_and_to_the_other_one_if_that_is_full() {
    let lab = Lab::start_with(&["west", "east"]);
    let (home, west, east) = (&lab.home, lab.west(), &lab.worker("east").place);
    lab.put_dataset("western", &["west"]);
    lab.put_dataset("eastern", &["east"]);
    join(&lab);
    west.cluster.apply(&queue("500m", ""));
    let submit = |job: &str, millis: u64, dataset: &str| {
        submit(&lab, job, millis, &notes_its_cluster(job), &reads(dataset));
    };

    // Each job goes where its data is.
    for (job, dataset, holder) in [("goes-east", "eastern", east), ("goes-west", "western", west)] {
        submit(job, 100, dataset);
        lab.wait_for_phase(job, "Succeeded");
        assert_eq!(cluster_of(&lab, job), holder.name);
        for other in lab.places().filter(|other| other.name != holder.name) {
            let gets = lab.gets(other, dataset);
            assert!(gets.iter().all(|gets| *gets == 0), "no byte of {dataset} was brought to {}", other.name);
        }
    }

    // The cluster with the data has room on its node, and no quota. For five minutes, the job goes to no other one.
    submit("lacks-quota", 600, "western");
    home.cluster.wait_for("west is nominated", TIMEOUT, || {
        workload(home, "lacks-quota")["status"]["nominatedClusterNames"] == json!(["west"])
    });

    // The cluster with the data has quota, and no room on its node. The job goes to the other one first.
    lab.fill("east");
    submit("lacks-room", 400, "eastern");
    lab.wait_for_phase("lacks-room", "Succeeded");
    assert_eq!(cluster_of(&lab, "lacks-room"), "west");
    lab.larder(&["job", "cancel", "fill-east", "-n", TEAM, "--wait"]);

    home.cluster.wait_for("east admits the other job", SECOND_ROUND, || {
        workload(home, "lacks-quota")["status"]["clusterName"] == "east"
    });
    lab.wait_for_phase("lacks-quota", "Succeeded");
    assert_eq!(cluster_of(&lab, "lacks-quota"), "east");
    for place in [west, east] {
        place.cluster.wait_for("all copies are gone", TIMEOUT, || {
            let jobs = ["goes-east", "goes-west", "lacks-quota", "lacks-room"];
            jobs.iter().all(|job| place.job(job).is_null() && workload(place, job).is_null())
        });
    }
}

/// Sets the memory of pods that request none, in the JobType `single` of a place.
fn set_memory(place: &Place, memory: &str) {
    let patch = json!({"spec": {"performance": {"memory": memory}}}).to_string();
    place.cluster.kubectl_ok(&["patch", "jobtypes.larder.dev", "single", "--type=merge", "-p", &patch]);
}

/// The real Kueue shows four things. The home learns the difference from the status that MultiKueue copies. MultiKueue
/// takes a Workload that is finished as `OutOfSync` for a failed move, not for the end of the job. The quota goes to
/// the next job. The first job runs once the JobTypes are the same.
#[test]
#[ignore = "needs Kueue, which takes a quarter of an hour to build: tests/cluster/kueue.sh install"]
fn a_job_whose_type_differs_over_there_says_so_gives_its_quota_to_the_next_one_and_runs_once_they_are_the_same() {
    let lab = Lab::start();
    let (home, west) = (&lab.home, lab.west());
    // It is 2 GiB in `west`.
    set_memory(home, "128Mi");
    join(&lab);
    // For one of the two jobs.
    west.cluster.apply(&queue("100m", ""));

    let mut differs = moved(&lab, "differs", 100, "true", &json!({}));
    differs["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "100m"}});
    home.apply(&[differs]);
    let says_why = || {
        let status = home.job("differs")["status"].clone();
        let why = status["waitingFor"].as_str().unwrap_or_default();
        why.contains("the job 2 GiB of memory; apply the same JobType single in its home")
    };
    home.cluster.wait_for("the home says what differs", TIMEOUT, says_why);
    submit(&lab, "next", 100, "until [ -e /shared/end ]; do sleep 1; done", &json!({}));
    lab.wait_for_phase("next", "Running");
    home.cluster.wait_for("MultiKueue has given up the move", TIMEOUT, || {
        let events = home.cluster.get_json(&["events", "-n", TEAM]);
        let is_out_of_sync = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "MultiKueue" && message.contains("is out of sync with its user job")
        };
        events["items"].as_array().unwrap().iter().any(is_out_of_sync)
    });
    west.cluster.wait_for("its copy is gone", TIMEOUT, || west.job("differs").is_null());
    assert!(says_why() && !holds(&workload(home, "differs"), "Finished"));
    let pods = ["pods", "-n", TEAM, "-l", "larder.dev/job=differs"];
    assert_eq!(west.cluster.get_json(&pods)["items"], json!([]), "it has had no pods");

    set_memory(west, "128Mi");
    std::fs::write(lab.shared.path().join("end"), "").unwrap();
    lab.wait_for_phase("next", "Succeeded");
    lab.wait_for_phase("differs", "Succeeded");
}
