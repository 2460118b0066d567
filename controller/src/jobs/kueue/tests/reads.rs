//! Reading Workloads.

use super::*;

#[test]
fn a_workload_is_read_with_what_kueue_has_decided() {
    let workload = there(&sample(), admission(6));
    assert_eq!(workload.owner.as_ref().map(|owner| (&*owner.name, &*owner.uid)), Some(("train", "11ce-d00d")));
    assert_eq!(workload.asked, [("server".to_owned(), 1), ("worker".to_owned(), 8)].into());
    assert_eq!(workload.assigned["worker"].count, Some(6));
    assert_eq!((workload.cluster_queue.as_str(), workload.active, workload.generation), ("research", true, 1));
    assert_eq!(workload.holding("Admitted").as_ref().map(since), Some(NOW - 480));
    assert_eq!(workload.holding("Evicted"), None);
}

#[test]
fn a_workload_without_any_field_is_one_that_kueue_has_not_seen() {
    let bare = |metadata: Value| {
        find(json!({"apiVersion": "kueue.x-k8s.io/v1beta9", "kind": "Workload", "metadata": metadata}))
    };
    let owner = json!([{"apiVersion": "larder.dev/v9", "kind": "TrainingJob", "name": "train", "uid": "u", "controller": true}]);
    let read = bare(json!({"name": "w", "namespace": "team-a", "ownerReferences": owner})).unwrap();
    assert!(read.active && read.assigned.is_empty() && read.conditions.is_empty());
    assert_eq!(read.owner.map(|owner| (owner.name, owner.uid)), Some(("train".to_owned(), "u".to_owned())));
    // Workloads of other controllers are skipped, unless they have a name that a job needs.
    assert_eq!(bare(json!({"name": "job-x"})), None);
    let foreign = bare(json!({"name": NAME})).expect("kept");
    assert_eq!(foreign.owner, None);
    let batch = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": true}]);
    assert_eq!(bare(json!({"name": "job-x", "ownerReferences": batch})), None);
    for (field, value) in [("apiVersion", json!("kubeflow.org/v1")), ("controller", Value::Null)] {
        let mut strange = owner.clone();
        strange[0][field] = value;
        assert_eq!(bare(json!({"name": "job-x", "ownerReferences": strange})), None, "{field}");
    }
}

#[test]
fn a_workload_without_an_owner_belongs_to_the_job_in_its_labels() {
    let mut object = served(&sample(), admission(8));
    let of_job = |object: &Value| find(object.clone()).expect("kept").owner.map(|owner| (owner.name, owner.uid));
    object["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(of_job(&object), Some(("train".to_owned(), "11ce-d00d".to_owned())));
    let batch = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": true}]);
    let mut owned = object.clone();
    owned["metadata"]["ownerReferences"] = batch;
    assert_eq!(of_job(&owned), None);
    object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody".into();
    assert_eq!(of_job(&object), None);
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
