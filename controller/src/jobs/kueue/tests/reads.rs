//! Workloads as they are read.

use super::*;

#[test]
fn a_workload_is_read_with_what_kueue_has_decided() {
    let workload = there(&sample(), admission(6));
    assert_eq!(workload.owner.as_ref().map(|owner| (&*owner.name, &*owner.uid)), Some(("train", "11ce-d00d")));
    assert_eq!(workload.asked, [("server".to_owned(), 1), ("worker".to_owned(), 8)].into());
    assert_eq!(workload.assigned["worker"].count, Some(6));
    assert_eq!((workload.cluster_queue.as_str(), workload.active, workload.generation), ("research", true, 1));
    assert_eq!(workload.holding("Admitted").map(|admitted| admitted.since()), Some(NOW - 480));
    assert_eq!(workload.holding("Evicted"), None);
}

#[test]
fn a_workload_without_any_field_is_one_that_kueue_has_not_seen() {
    let bare = |metadata: Value| {
        object(json!({"apiVersion": "kueue.x-k8s.io/v1beta9", "kind": "Workload", "metadata": metadata}))
    };
    let owner = json!([{"apiVersion": "larder.dev/v9", "kind": "TrainingJob", "name": "train", "uid": "u", "controller": true}]);
    let read = workload(&bare(json!({"name": "w", "namespace": "team-a", "ownerReferences": owner}))).unwrap().unwrap();
    assert!(read.active && read.assigned.is_empty() && read.conditions.is_empty());
    assert_eq!(read.owner.map(|owner| (owner.name, owner.uid)), Some(("train".to_owned(), "u".to_owned())));
    // Of other controllers' jobs nothing is kept, unless the name is one that a job needs.
    assert_eq!(workload(&bare(json!({"name": "job-x"}))).unwrap(), None);
    let foreign = workload(&bare(json!({"name": NAME}))).unwrap().expect("kept");
    assert_eq!(foreign.owner, None);
    let batch = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": true}]);
    assert_eq!(workload(&bare(json!({"name": "job-x", "ownerReferences": batch}))).unwrap(), None);
}

#[test]
fn conditions_and_checks_of_a_newer_version_stop_nothing() {
    let mut status = admission(8);
    status["conditions"].as_array_mut().unwrap().insert(0, json!({"type": "New", "status": {"is": "odd"}}));
    status["admission"]["podSetAssignments"][1]["topologyAssignment"] = json!({"levels": ["host"], "slices": []});
    status["admissionChecks"] = json!([{"name": "quota", "state": "Ready", "retryCount": 3}]);
    let workload = there(&sample(), status);
    assert!(workload.holding("Admitted").is_some());
    assert!(workload.assigned["worker"].is_placed_by_kueue() && !workload.assigned["server"].is_placed_by_kueue());
}
