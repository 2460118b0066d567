use larder_api::cluster::{ClusterStatus, HeldDataset};
use larder_api::names::DatasetKey;
use larder_kube::key::Meta;
use serde_json::Value;

use super::*;
use crate::clusters::objects::ClusterObject;
use crate::kueue::objects::Check;
use crate::kueue::workload::CheckState;

/// When quota was reserved: 10:40.
const RESERVED: Seconds = Seconds(1_767_264_000);

fn meta(key: Key) -> Meta {
    Meta { key, uid: "u".to_owned(), version: 7, ..Meta::default() }
}

fn train() -> Key {
    Key::new("team-a", "job-train")
}

/// The clusters `cloud` and `west`, of which `west` has the data of the Workload, and `other`, of which there is no
/// Cluster.
fn state() -> State {
    let mut state = State::default();
    for (name, held_bytes) in [("cloud", 0), ("west", 1000)] {
        let held = HeldDataset { name: "team-a/pets".to_owned(), bytes: 1000, held_bytes, percent: 0 };
        let status = ClusterStatus { datasets: vec![held], ..ClusterStatus::default() };
        let meta = meta(Key::cluster(name));
        state.clusters.objects.put(ClusterObject { meta, cost: 1, weight: 1, status, ..ClusterObject::default() });
    }
    let config = Some("all".to_owned());
    state.kueue.checks.put(Check { meta: meta(Key::cluster("moves")), config, ..Check::default() });
    state.kueue.checks.put(Check { meta: meta(Key::cluster("data")), ..Check::default() });
    let clusters = ["cloud", "other", "west"].map(str::to_owned).to_vec();
    state.kueue.configs.put(Config { meta: meta(Key::cluster("all")), clusters, is_dispatched: true });
    state.kueue.workloads.put(workload("Pending", "Ready"));
    state
}

fn workload(moves: &str, data: &str) -> Workload {
    let check = |name: &str, state: &str| CheckState {
        name: name.to_owned(),
        state: state.to_owned(),
        since: "2026-01-01T10:40:00Z".to_owned(),
        ..CheckState::default()
    };
    let datasets = vec![DatasetKey::within("team-a", "pets").unwrap()];
    let requests = [("cpu", 1000)].into_iter().collect();
    Workload {
        meta: meta(train()),
        reserved: Some(RESERVED),
        status: Some(Box::new(json!({"admission": {"clusterQueue": "vision"}, "conditions": []}))),
        checks: vec![check("moves", moves), check("data", data)],
        pod_sets: vec![PodSet { count: 1, datasets, requests, ..PodSet::default() }],
        ..Workload::default()
    }
}

/// The clusters that are nominated then, and when there are more.
fn nominated(state: &mut State, after: i64) -> (Option<Vec<String>>, Option<i64>) {
    let mut work = Vec::new();
    let again = state.nominate_clusters(RESERVED + after, &mut work);
    let write = state.nomination(&train());
    assert_eq!(work.contains(&Work::Nomination(train())), write.is_some());
    let clusters = write.map(|write| {
        let Change::ApplyStatusAs("kueue-admission", fields) = &write.change else { panic!("{write:?}") };
        let mut fields = fields.clone();
        assert_eq!(fields["metadata"], json!({"resourceVersion": "7"}));
        let nominated = fields["status"].as_object_mut().unwrap().remove("nominatedClusterNames").unwrap();
        let others = json!({"admission": {"clusterQueue": "vision"}, "conditions": []});
        assert_eq!(fields["status"], others, "Kueue loses the fields that are omitted");
        serde_json::from_value(nominated).unwrap()
    });
    (clusters, again.map(|again| again - RESERVED))
}

fn names(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

// SEMANTICS: J23
#[test]
fn the_cluster_with_the_data_is_nominated_first_and_others_follow() {
    let mut state = state();
    assert_eq!(nominated(&mut state, 0), (names(&["west"]), Some(300)));
    let with = |state: &mut State, clusters: &[&str]| {
        let nominated = names(clusters).unwrap_or_default();
        state.kueue.workloads.put(Workload { nominated, ..workload("Pending", "Ready") });
    };
    with(&mut state, &["west"]);
    assert_eq!(nominated(&mut state, 299), (None, Some(300)), "nothing is written at rest");
    assert_eq!(nominated(&mut state, 300), (names(&["west", "cloud"]), Some(600)));
    with(&mut state, &["west", "cloud"]);
    assert_eq!(nominated(&mut state, 600), (names(&["west", "cloud", "other"]), None));
    with(&mut state, &["west", "cloud", "other"]);
    assert_eq!(nominated(&mut state, 900), (None, None));
}

#[test]
fn the_status_of_a_workload_is_kept_only_while_clusters_may_be_nominated_for_it() {
    let waiting = json!({"admission": {"clusterQueue": "vision"}, "admissionChecks": [{"name": "moves"}]});
    let kept = |status: Value| {
        let object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {},
            "metadata": {"name": "job-train", "namespace": "team-a"}, "status": status});
        let read = crate::kueue::workload::workload(serde_json::from_value(object).unwrap());
        read.unwrap().unwrap().status.map(|status| *status)
    };
    assert_eq!(kept(waiting.clone()), Some(waiting.clone()));
    assert_eq!(kept(json!({"admissionChecks": [{"name": "moves"}]})), None);
    let mut moved = waiting;
    moved["clusterName"] = "west".into();
    assert_eq!(kept(moved), None);
}

// SEMANTICS: J23
#[test]
fn nothing_is_nominated_for_a_workload_that_waits_for_something_else_or_has_been_moved() {
    let of_others = |state: &mut State| {
        state.kueue.configs.take(&Key::cluster("all"));
        state.kueue.configs.put(Config { meta: meta(Key::cluster("all")), ..Config::default() });
    };
    let changes: [fn(&mut State); 4] = [
        |state| _ = state.kueue.workloads.put(workload("Pending", "Pending")),
        |state| _ = state.kueue.workloads.put(workload("Ready", "Ready")),
        |state| _ = state.kueue.workloads.put(Workload { is_moved: true, ..workload("Pending", "Ready") }),
        |state| _ = state.kueue.workloads.put(Workload { reserved: None, ..workload("Pending", "Ready") }),
    ];
    for change in changes {
        let mut state = state();
        change(&mut state);
        assert_eq!(nominated(&mut state, 0), (None, None));
    }
    let mut state = state();
    of_others(&mut state);
    assert_eq!(nominated(&mut state, 0), (None, None), "another dispatcher nominates");
}
