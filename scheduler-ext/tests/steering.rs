//! Which nodes pods prefer, and which nodes exclude them, in a small cluster as the API describes it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use larder_scheduler_ext::admin::Counters;
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::verbs::Verbs;
use larder_scheduler_ext::index::{Event, FOLLOWED, Index, Kind};
use larder_scheduler_ext::read;
use larder_scheduler_ext::ring::Verb;
use serde_json::{Value, json};

/// A cluster of four nodes in two zones.
struct Cluster {
    index: Index,
    settings: Settings,
    version: u64,
}

fn snapshot(number: u8) -> String {
    format!("{number:02x}").repeat(32)
}

impl Cluster {
    fn new() -> Self {
        let mut index = Index::new(vec!["nvidia.com/gpu".into()]);
        for kind in FOLLOWED {
            index.apply(Event::All(kind, Vec::new()));
        }
        let mut cluster = Self { index, settings: Settings::default(), version: 0 };
        for (node, zone) in [("n1", "z1"), ("n2", "z1"), ("n3", "z2"), ("n4", "z2")] {
            let labels = json!({"topology.kubernetes.io/zone": zone});
            let status = json!({"allocatable": {"nvidia.com/gpu": "8"}});
            cluster.put(Kind::Node, json!({"metadata": {"name": node, "labels": labels}, "status": status}));
        }
        cluster
    }

    fn put(&mut self, kind: Kind, mut object: Value) -> &mut Self {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = serde_json::from_value(object).expect("an object");
        let object = read::object(kind, &self.settings, object).expect("an object of interest");
        self.index.apply(Event::Changed(kind, Box::new(object)));
        self
    }

    /// Dataset `number`, with 1,000 bytes, in the namespace a.
    fn dataset(&mut self, number: u8, placement: &str) -> &mut Self {
        self.put(
            Kind::Dataset,
            json!({
                "metadata": {"name": format!("d{number}"), "namespace": "a", "uid": format!("uid-{number}")},
                "spec": {"origin": {"source": "s3://b"}, "cache": {"placement": placement}, "namespaces": ["b"]},
                "status": {"snapshot": snapshot(number), "bytes": 1_000},
            }),
        )
    }

    fn cache(&mut self, node: &str, held: &[(u8, u64)], promised: &[u8]) -> &mut Self {
        let of = |(number, bytes): &(u8, u64)| json!({"snapshot": snapshot(*number), "bytes": bytes});
        let held: Vec<Value> = held.iter().map(of).collect();
        let of = |number: &u8| json!({"uid": "u", "name": "a/d", "snapshot": snapshot(*number), "bytes": 1_000});
        let promised: Vec<Value> = promised.iter().map(of).collect();
        self.put(
            Kind::NodeCache,
            json!({"metadata": {"name": node}, "spec": {"datasets": promised}, "status": {"snapshots": held}}),
        )
    }

    fn pod(&mut self, name: &str, node: &str, change: impl FnOnce(&mut Value)) -> &mut Self {
        let metadata = json!({"name": name, "namespace": "a", "uid": format!("uid-{name}"), "annotations": {}});
        let mut pod = json!({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}});
        change(&mut pod);
        self.put(Kind::Pod, pod)
    }

    fn answer(&mut self, verb: Verb, body: &Value) -> Value {
        let shown = Arc::new(ArcSwap::from(self.index.show()));
        let verbs = Verbs::new(Arc::new(self.settings.clone()), shown, Arc::new(Counters::default())).0;
        let answer = verbs.answer(verb, body.to_string().into()).expect("an answer");
        serde_json::from_slice(&answer).expect("JSON")
    }

    /// The scores of n1 to n4. An answer leaves out the nodes with the score 0.
    fn scores(&mut self, pod: &Value) -> [u64; 4] {
        let answer = self.answer(Verb::Prioritize, &json!({"Pod": pod, "NodeNames": ["n1", "n2", "n3", "n4"]}));
        let scored = answer.as_array().expect("a list");
        assert!(scored.iter().all(|one| one["Score"] != 0), "{answer}");
        ["n1", "n2", "n3", "n4"].map(|name| {
            let one = scored.iter().find(|one| one["Host"] == name);
            one.map_or(0, |one| one["Score"].as_u64().expect("a score"))
        })
    }

    /// Why n1 to n4 are excluded.
    fn refused(&mut self, pod: &Value) -> Vec<String> {
        let answer = self.answer(Verb::Filter, &json!({"Pod": pod, "NodeNames": ["n1", "n2", "n3", "n4"]}));
        let failed = answer["FailedAndUnresolvableNodes"].as_object().expect("a map").values();
        failed.map(|why| why.as_str().expect("a sentence").to_owned()).collect()
    }
}

/// A pod of `namespace` with these annotations.
fn pod(namespace: &str, annotations: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": namespace, "annotations": annotations}, "spec": {}})
}

#[test]
fn a_pod_goes_where_its_bytes_are_then_where_they_come() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local").cache("n1", &[(1, 1_000)], &[]).cache("n2", &[(1, 500)], &[]);
    cluster.cache("n3", &[], &[1]);
    let by_name = pod("a", json!({"larder.dev/datasets": "d1"}));
    assert_eq!(cluster.scores(&by_name), [10, 5, 3, 0]);
    // Another pod causes n4 to fetch the bytes.
    cluster.pod("reader", "n4", |pod| pod["metadata"]["annotations"]["larder.dev/datasets"] = "d1".into());
    assert_eq!(cluster.scores(&by_name), [10, 5, 3, 3]);
}

#[test]
fn a_claim_an_inline_volume_and_a_name_lead_to_the_same_dataset() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local").cache("n1", &[(1, 1_000)], &[]);
    // The second volume belongs to an earlier Dataset of the same name.
    for (volume, claim, uid) in [("v1", "mine", "uid-1"), ("v2", "old", "uid-0")] {
        let annotations = json!({"larder.dev/dataset": "a/d1"});
        let metadata = json!({"name": volume, "labels": {"larder.dev/dataset-uid": uid}, "annotations": annotations});
        let spec = json!({"claimRef": {"namespace": "c", "name": claim}});
        cluster.put(Kind::Volume, json!({"metadata": metadata, "spec": spec}));
    }
    let mut by_claim = pod("c", json!({}));
    by_claim["spec"]["volumes"] = json!([{"persistentVolumeClaim": {"claimName": "mine"}}]);
    let mut inline = pod("b", json!({}));
    let attributes = json!({"dataset": "a/d1"});
    inline["spec"]["volumes"] = json!([{"csi": {"driver": "csi.larder.dev", "volumeAttributes": attributes}}]);
    for asked in [by_claim, inline, pod("b", json!({"larder.dev/datasets": "a/d1"}))] {
        assert_eq!(cluster.scores(&asked), [10, 0, 0, 0], "{asked}");
    }
    for (namespace, claim) in [("a", "mine"), ("c", "old")] {
        let mut other_claim = pod(namespace, json!({}));
        other_claim["spec"]["volumes"] = json!([{"persistentVolumeClaim": {"claimName": claim}}]);
        assert_eq!(cluster.scores(&other_claim), [0; 4], "{namespace}/{claim}");
    }
}

#[test]
fn holders_of_a_shared_dataset_are_equal_and_zones_count() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "partitioned");
    cluster.cache("n1", &[(1, 700)], &[]).cache("n2", &[(1, 100)], &[]).cache("n3", &[(1, 200)], &[]);
    let [n1, n2, n3, n4] = cluster.scores(&pod("a", json!({"larder.dev/datasets": "d1"})));
    assert!(n1 == n2 && n2 > n3 && n3 > n4, "{:?}", [n1, n2, n3, n4]);
}

#[test]
fn of_equal_nodes_the_one_near_the_group_is_better() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local");
    for node in ["n1", "n3", "n4"] {
        cluster.cache(node, &[(1, 1_000)], &[]);
    }
    for name in ["other-0", "other-1"] {
        cluster.pod(name, "n4", |pod| pod["metadata"]["labels"] = json!({"batch.kubernetes.io/job-name": "j"}));
    }
    let mut member = pod("a", json!({"larder.dev/datasets": "d1"}));
    member["metadata"]["labels"] = json!({"batch.kubernetes.io/job-name": "j"});
    let [n1, n2, n3, n4] = cluster.scores(&member);
    assert!(n3 == n4 && n3 > n1 && n1 > n2, "{:?}", [n1, n2, n3, n4]);
}

#[test]
fn devices_that_jobs_wait_for_stay_together() {
    let mut cluster = Cluster::new();
    cluster.settings = Settings::parse("profiles: [{name: larder, weights: {whole: 80}}]").unwrap();
    cluster.dataset(1, "local").cache("n1", &[(1, 1_000)], &[]).cache("n2", &[(1, 1_000)], &[]);
    cluster.pod("worker", "n2", |pod| {
        pod["spec"]["containers"] = json!([{"resources": {"limits": {"nvidia.com/gpu": 6}}}]);
    });
    let mut one = pod("a", json!({"larder.dev/datasets": "d1"}));
    one["spec"] = json!({
        "schedulerName": "larder", "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}],
    });
    assert_eq!(cluster.scores(&one)[..2], [10, 10]);
    let status = json!({"phase": "Queued"});
    cluster.put(
        Kind::TrainingJob,
        json!({"metadata": {"name": "j", "namespace": "a"}, "spec": {"roles": []}, "status": status}),
    );
    let [n1, n2, ..] = cluster.scores(&one);
    assert!(n2 > n1, "{n1} {n2}");
}

// SEMANTICS: X2
#[test]
fn required_data_refuses_the_nodes_that_hold_less() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local").dataset(2, "local");
    cluster.cache("n1", &[(1, 900), (2, 1_000)], &[]).cache("n2", &[(1, 899), (2, 1_000)], &[]);
    cluster.cache("n3", &[(1, 1_000), (2, 120)], &[]);
    let required = pod("b", json!({"larder.dev/datasets": "a/d1, a/d2", "larder.dev/data": "required"}));
    assert_eq!(
        cluster.refused(&required),
        [
            "n2: holds 89 percent of a/d1, 90 percent is required",
            "n3: holds 12 percent of a/d2, 90 percent is required",
            "n4: holds 0 percent of a/d1, 90 percent is required",
        ]
    );
    let half = json!({"larder.dev/datasets": "a/d1", "larder.dev/data": "required", "larder.dev/min-warm": "50"});
    assert_eq!(cluster.refused(&pod("b", half)), ["n4: holds 0 percent of a/d1, 50 percent is required"]);
    let odd = json!({"larder.dev/datasets": "a/d1", "larder.dev/data": "required", "larder.dev/min-warm": "200"});
    assert_eq!(cluster.refused(&pod("b", odd)).len(), 2);
    assert!(cluster.refused(&pod("b", json!({"larder.dev/datasets": "a/d1"}))).is_empty());
    // With a shared dataset, each node holds a share.
    cluster.dataset(3, "partitioned");
    let share = json!({"snapshot": snapshot(3), "bytes": 250, "wantedBytes": 250});
    cluster.put(Kind::NodeCache, json!({"metadata": {"name": "n4"}, "status": {"snapshots": [share]}}));
    let shared = pod("a", json!({"larder.dev/datasets": "d3", "larder.dev/data": "required"}));
    assert_eq!(cluster.refused(&shared).len(), 3);
}

#[test]
fn many_refused_nodes_share_a_sentence() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local");
    let names: Vec<String> = (0..50).map(|number| format!("x{number}")).collect();
    let required = pod("a", json!({"larder.dev/datasets": "d1", "larder.dev/data": "required"}));
    let answer = cluster.answer(Verb::Filter, &json!({"Pod": required, "NodeNames": names}));
    let failed = answer["FailedAndUnresolvableNodes"].as_object().unwrap();
    assert_eq!(failed.len(), 50);
    assert!(failed.values().all(|why| why == "holds less than 90 percent of a/d1, which is required"), "{answer}");
}

// SEMANTICS: X6
#[test]
fn a_dataset_that_a_pod_may_not_read_makes_nodes_equal_and_refuses_them_where_data_is_required() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local").cache("n1", &[(1, 1_000)], &[]);
    for (namespace, datasets) in [("a", "none"), ("c", "a/d1"), ("a", "d1,none"), ("a", "Not A Name")] {
        let named = pod(namespace, json!({"larder.dev/datasets": datasets}));
        assert_eq!(cluster.scores(&named), [0; 4], "{datasets}");
        assert!(cluster.refused(&named).is_empty(), "{datasets}");
        let required = json!({"larder.dev/datasets": datasets, "larder.dev/data": "required"});
        assert_eq!(cluster.refused(&pod(namespace, required)).len(), 4, "{datasets}");
    }
    // The answer does not reveal whether the dataset exists.
    let required = json!({"larder.dev/datasets": "a/d1", "larder.dev/data": "required"});
    let why = &cluster.refused(&pod("c", required))[0];
    assert_eq!(why, "n1: there is no Dataset a/d1 that pods of c may read, and its data is required");
}

#[test]
fn a_cordoned_cache_takes_no_pod_that_reads() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local");
    cluster.put(
        Kind::NodeCache,
        json!({"metadata": {"name": "n2", "annotations": {"larder.dev/cordon": "its disk fails"}}}),
    );
    let reads = pod("a", json!({"larder.dev/datasets": "d1"}));
    assert_eq!(cluster.refused(&reads), ["n2: its cache is cordoned: its disk fails"]);
    assert!(cluster.refused(&pod("a", json!({}))).is_empty());
}

#[test]
fn a_node_without_its_larderd_takes_no_pod_that_reads() {
    let mut cluster = Cluster::new();
    cluster.dataset(1, "local");
    let reads = pod("a", json!({"larder.dev/datasets": "d1"}));
    // If no larderd runs as a pod, its state is unknown.
    assert!(cluster.refused(&reads).is_empty());
    for (node, ready) in [("n1", "True"), ("n2", "False"), ("n3", "True")] {
        cluster.pod(&format!("larderd-{node}"), node, |pod| {
            pod["metadata"]["namespace"] = "larder-system".into();
            pod["spec"]["serviceAccountName"] = "larderd".into();
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
        });
    }
    let away = ["n2: no larderd is ready there", "n4: no larderd is ready there"];
    assert_eq!(cluster.refused(&reads), away);
}

/// Workers 0 to 3 of a job, on n1 to n4.
fn with_gang(min: u32) -> Cluster {
    let mut cluster = Cluster::new();
    let roles = json!([{"name": "worker", "replicas": 4, "min": min}]);
    cluster.put(
        Kind::TrainingJob,
        json!({"metadata": {"name": "train", "namespace": "a", "uid": "j"}, "spec": {"roles": roles}}),
    );
    for index in 0..4 {
        worker(&mut cluster, index, |_| {});
    }
    cluster
}

fn worker(cluster: &mut Cluster, index: usize, change: impl FnOnce(&mut Value)) {
    cluster.pod(&format!("w{index}"), ["n1", "n2", "n3", "n4"][index], |pod| {
        let label = json!({"larder.dev/job": "train", "larder.dev/job-role": "worker", "larder.dev/job-index": index.to_string()});
        pod["metadata"]["labels"] = label;
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": "j", "controller": true}]);
        change(pod);
    });
}

/// One victim on a node.
fn victim(uid: &str) -> Value {
    json!({"Pods": [{"UID": uid}], "NumPDBViolations": 0})
}

/// The request of a pod that needs one of these nodes.
fn preempt(name: &str, victims: &Value) -> String {
    let metadata = json!({"name": name, "namespace": "b", "uid": name});
    let pod = json!({"metadata": metadata, "spec": {"priority": 100}});
    json!({"Pod": pod, "NodeNameToMetaVictims": victims}).to_string()
}

/// The nodes that an answer to preempt leaves.
fn left(answer: &[u8]) -> Vec<String> {
    let answer: Value = serde_json::from_slice(answer).expect("JSON");
    answer["NodeNameToMetaVictims"].as_object().expect("a map").keys().cloned().collect()
}

#[test]
fn two_preemptions_in_a_row_do_not_take_the_same_worker_twice() {
    let mut cluster = with_gang(3);
    let shown = Arc::new(ArcSwap::from(cluster.index.show()));
    let verbs = Verbs::new(Arc::new(Settings::default()), shown, Arc::new(Counters::default())).0;
    let ask = |name: &str, victims: Value| left(&verbs.answer(Verb::Preempt, preempt(name, &victims).into()).unwrap());
    let all = json!({"n1": victim("uid-w0"), "n2": victim("uid-w1"), "n3": victim("uid-w2")});
    // Index 0 stays. Of the others, one may be preempted, on any node.
    assert_eq!(ask("first", all.clone()), ["n2", "n3"]);
    assert_eq!(ask("second", all.clone()), Vec::<String>::new());
    // A repeated request of the same pod gets the same answer.
    assert_eq!(ask("first", all), ["n2", "n3"]);
}

// SEMANTICS: X5
#[tokio::test(start_paused = true)]
async fn a_preemption_waits_for_a_moment_until_it_is_seen_what_became_of_earlier_ones() {
    let mut cluster = with_gang(2);
    let shown = Arc::new(ArcSwap::from(cluster.index.show()));
    let settings = Arc::new(Settings::default());
    let verbs = Verbs::new(settings, Arc::clone(&shown), Arc::new(Counters::default())).0;
    let ask = |name: &'static str, victims: Value| {
        let verbs = verbs.clone();
        let body = preempt(name, &victims);
        tokio::spawn(async move { left(&verbs.settled(Verb::Preempt, body.into()).await.expect("an answer")) })
    };
    let others = || json!({"n3": victim("uid-w2"), "n4": victim("uid-w3")});
    let all = json!({"n2": victim("uid-w1"), "n3": victim("uid-w2"), "n4": victim("uid-w3")});
    assert_eq!(ask("first", all).await.unwrap(), ["n2", "n3", "n4"]);
    // w1 ends before it is seen that n2 was chosen: the scheduler may still end w2 or w3.
    worker(&mut cluster, 1, |pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    shown.store(cluster.index.show());
    assert_eq!(ask("second", others()).await.unwrap(), Vec::<String>::new(), "it does not wait for ever");

    let third = ask("third", others());
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!third.is_finished(), "it waits");
    cluster.put(
        Kind::Pod,
        json!({
            "metadata": {"name": "first", "namespace": "b", "uid": "first"},
            "spec": {}, "status": {"phase": "Pending", "nominatedNodeName": "n2"},
        }),
    );
    shown.store(cluster.index.show());
    assert_eq!(third.await.unwrap(), ["n3", "n4"]);
}

// SEMANTICS: X5
#[test]
fn a_pod_that_names_a_job_that_there_is_not_is_spared_by_nobody() {
    let mut cluster = Cluster::new();
    let forged = |uid: &'static str| {
        move |pod: &mut Value| {
            pod["metadata"]["labels"] =
                json!({"larder.dev/job": "train", "larder.dev/job-role": "worker", "larder.dev/job-index": "0"});
            pod["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": uid, "controller": true,
            }]);
        }
    };
    cluster.pod("forged", "n1", forged("of-nothing"));
    let ask = |cluster: &mut Cluster| {
        let pod = json!({"metadata": {"name": "p", "namespace": "b", "uid": "p"}, "spec": {"priority": 100}});
        let victims = json!({"n1": {"Pods": [{"UID": "uid-forged"}], "NumPDBViolations": 0}});
        let answer = cluster.answer(Verb::Preempt, &json!({"Pod": pod, "NodeNameToMetaVictims": victims}));
        answer["NodeNameToMetaVictims"].as_object().expect("a map").len()
    };
    assert_eq!(ask(&mut cluster), 1);
    let roles = json!([{"name": "worker", "replicas": 1}]);
    let job = json!({"metadata": {"name": "train", "namespace": "a", "uid": "j"}, "spec": {"roles": roles}});
    cluster.put(Kind::TrainingJob, job);
    assert_eq!(ask(&mut cluster), 1, "another job of the name");
    cluster.pod("forged", "n1", forged("j"));
    assert_eq!(ask(&mut cluster), 0, "the job's first pod");
}
