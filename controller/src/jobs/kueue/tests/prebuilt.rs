//! Workloads that MultiKueue has made here, for its copies of jobs.

use super::*;
use crate::jobs::kueue::names::{for_kueue, is_elastic, is_of_origin, prebuilt};
use crate::jobs::read::training_job;

/// A Workload as MultiKueue makes it: without an owner, the job's uid and a finalizer.
fn bare(status: Value) -> Value {
    let mut object = served(&sample(), status);
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("ownerReferences");
    metadata.remove("finalizers");
    metadata["labels"].as_object_mut().unwrap().remove("kueue.x-k8s.io/job-uid");
    metadata["labels"]["kueue.x-k8s.io/multikueue-origin"] = "multikueue".into();
    object
}

fn copy(workload: Option<JobWorkload>) -> Case {
    Case { is_prebuilt: true, ..Case::queued(workload) }
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

// SEMANTICS: J22
#[test]
fn a_copy_waits_for_its_workload_and_makes_none() {
    let (_, why, writes) = copy(None).held_up();
    let expected = format!("waits for its Workload {NAME}, which MultiKueue makes in this cluster");
    assert_eq!((why, writes), (expected, Vec::new()));
}

// SEMANTICS: J22
#[test]
fn a_copy_becomes_the_owner_of_its_workload_and_runs_with_it() {
    let mut object = bare(admission(8));
    let (_, why, writes) = copy(find(object.clone())).held_up();
    assert_eq!(why, "asks Kueue's queue gpus for quota");
    let [Write { change: Change::Merge(patch), name, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!((name.as_str(), &patch["metadata"]["resourceVersion"]), (NAME, &json!("71")));
    assert_eq!(patch["spec"], Value::Null, "MultiKueue deletes a Workload whose spec differs");
    for field in ["ownerReferences", "labels"] {
        let given = &patch["metadata"][field];
        match object["metadata"].get_mut(field).and_then(Value::as_object_mut) {
            Some(fields) => fields.extend(given.as_object().unwrap().clone()),
            None => object["metadata"][field] = given.clone(),
        }
    }
    let owned = read(object);
    assert_eq!(owned.owner.as_ref().map(|owner| (&*owner.name, &*owner.uid)), Some(("train", "11ce-d00d")));
    let decision = copy(Some(owned)).decide();
    let start = Verdict::Start { granted: vec![1, 8], nodes: Vec::new(), flavors: Vec::new() };
    assert_eq!((decision.verdict, decision.writes), (start, Vec::new()));
}

// SEMANTICS: J22
#[test]
fn a_workload_of_another_object_is_not_taken_over() {
    let mut object = bare(admission(8));
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": true}]);
    let (_, why, writes) = copy(find(object)).held_up();
    assert_eq!((why, writes), (format!("the Workload {NAME} belongs to something else: delete it"), Vec::new()));
    // Nor is one that MultiKueue deletes, or any by a job that makes its own.
    let mut deleted = find(bare(admission(8))).unwrap();
    deleted.meta.deleting = true;
    assert_eq!(copy(Some(deleted)).held_up().2, []);
    assert_eq!(Case::queued(find(bare(admission(8)))).held_up().2, []);
}

// SEMANTICS: J22
#[test]
fn a_copy_with_other_pods_than_its_workload_says_so_and_has_none() {
    let resources = "/spec/podSets/1/template/spec/containers/0/resources";
    for (pointer, value, what) in [
        ("/spec/podSets/1/count", json!(9), "9 pods of worker, the job 8"),
        ("/spec/podSets/1/name", json!("other"), "0 pods of worker, the job 8"),
        (resources, json!({"limits": {"nvidia.com/gpu": "2"}}), "2 GPUs in each pod of worker, the job 1 GPU"),
    ] {
        let mut object = served(&sample(), admission(8));
        *object.pointer_mut(pointer).expect(pointer) = value;
        let (stops, why, writes) = copy(find(object)).held_up();
        let expected = format!(
            "its Workload {NAME} has {what}; apply the same JobType parameter-server in its home and in the cluster \
             that runs it"
        );
        assert_eq!((stops, why, writes), (false, expected, Vec::new()));
    }
    let mut object = served(&sample(), admission(8));
    object["spec"]["podSets"].as_array_mut().unwrap().pop();
    assert!(copy(find(object)).held_up().1.contains("has 1 roles, the job 2"));
    // An image of another registry uses the same quota.
    let mut object = served(&sample(), admission(8));
    object["spec"]["podSets"][1]["template"]["spec"]["containers"][0]["image"] = "mirror.example.org/train".into();
    assert!(matches!(copy(find(object)).decide().verdict, Verdict::Start { .. }));
}

/// A Workload for more workers than the sample job has.
fn for_other_pods(status: Value) -> Option<JobWorkload> {
    let mut object = served(&sample(), status);
    object["spec"]["podSets"][1]["count"] = 9.into();
    find(object)
}

// SEMANTICS: J22
#[test]
fn a_workload_for_other_pods_is_finished_once_the_job_has_said_why_for_a_minute() {
    let mut case = copy(for_other_pods(admission(8)));
    let (_, why, writes) = case.held_up();
    assert_eq!(writes, [], "its status does not say why yet");
    case.said = Some(("asks Kueue's queue gpus for quota".to_owned(), NOW - 3_600));
    assert_eq!(case.held_up().2, []);
    case.said = Some((why.clone(), NOW - 59));
    let Verdict::Wait(waiting) = case.decide().verdict else { panic!() };
    assert_eq!((case.held_up().2, waiting.again_at), (Vec::new(), Some(NOW + 1)));
    case.said = Some((why.clone(), NOW - 60));
    let (conditions, status) = status_of(&case.held_up().2);
    assert_eq!(conditions["Finished"], pair("True", "OutOfSync"));
    assert_eq!(conditions.len(), 3, "Kueue's own are as they were");
    // Kueue frees the quota of a finished Workload. The status of the job stays as MultiKueue has copied it.
    let finished = json!({"conditions": status["conditions"], "admission": admission(8)["admission"]});
    case.workloads = for_other_pods(finished).into_iter().collect();
    assert_eq!(case.held_up(), (false, why.clone(), Vec::new()));
    // Without quota, there is nothing to free.
    let mut case = copy(for_other_pods(json!({})));
    case.said = Some((why, NOW - 3_600));
    assert_eq!(case.held_up().2, []);
}

// SEMANTICS: J9, J22
#[test]
fn a_workload_for_other_pods_is_not_finished_while_earlier_pods_of_its_job_run() {
    let mut case = copy(for_other_pods(admission(8)));
    let (_, why, _) = case.held_up();
    case.said = Some((why.clone(), NOW - 60));
    let node = Some(NodeHealth::default());
    case.observed.pods = vec![Pod { stage: PodStage::Ready, leaving: Some(NOW + 300), node, ..Pod::default() }];
    assert_eq!(case.held_up(), (false, why, Vec::new()), "Kueue would give its quota to others");
    case.observed.pods.clear();
    assert_eq!(status_of(&case.held_up().2).0["Finished"], pair("True", "OutOfSync"));
}

// SEMANTICS: J22
#[test]
fn the_spec_of_a_copys_workload_is_left_as_it_is() {
    let mut object = served(&sample(), json!({}));
    object["metadata"]["annotations"]["larder.dev/spec-digest"] = "of another version".into();
    let workload = read(object);
    assert_eq!(Case::queued(Some(workload.clone())).held_up().2.len(), 1, "of its own, a job updates the spec");
    assert_eq!(copy(Some(workload)).held_up().2, []);
}

#[test]
fn the_name_of_a_prebuilt_workload_is_in_an_annotation_or_in_a_label() {
    let named = [("kueue.x-k8s.io/prebuilt-workload-name", "w")];
    for (labels, annotations) in [(texts(&named), texts(&[])), (texts(&[]), texts(&named))] {
        let (labels, annotations) = for_kueue(false, Some(labels), Some(annotations));
        assert_eq!(prebuilt(&labels, &annotations), Some("w"));
    }
    assert_eq!(prebuilt(&texts(&[]), &texts(&[("kueue.x-k8s.io/prebuilt-workload-name", "")])), None);
    assert!(is_of_origin(&texts(&[("kueue.x-k8s.io/multikueue-origin", "multikueue")])) && !is_of_origin(&texts(&[])));
}

// SEMANTICS: J22
#[test]
fn an_annotation_does_not_make_a_moved_job_use_another_workload() {
    let named = texts(&[("kueue.x-k8s.io/prebuilt-workload-name", "w")]);
    let (labels, annotations) = for_kueue(true, Some(named.clone()), Some(named));
    assert_eq!(prebuilt(&labels, &annotations), None);
}

// SEMANTICS: J11
#[test]
fn a_label_alone_does_not_keep_an_ended_job() {
    let queue = ("kueue.x-k8s.io/queue-name", "gpus");
    let origin = ("kueue.x-k8s.io/multikueue-origin", "multikueue");
    let named = ("kueue.x-k8s.io/prebuilt-workload-name", NAME);
    let is_copy = |labels: &[(&str, &str)]| {
        let metadata = json!({"name": "train", "namespace": "team-a", "uid": "11ce-d00d", "labels": texts(labels)});
        let spec = json!({"type": "parameter-server", "roles": [role("server", 1, 1), role("worker", 8, 4)]});
        let object =
            json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec});
        training_job(serde_json::from_value(object).unwrap()).unwrap().unwrap().is_copy()
    };
    assert!(is_copy(&[queue, origin, named]));
    for labels in [[origin, named], [queue, origin], [queue, named]] {
        assert!(!is_copy(&labels), "{labels:?}");
    }
}

#[test]
fn neither_a_moved_job_nor_its_copy_is_elastic() {
    let elastic = ("kueue.x-k8s.io/elastic-job", "true");
    let read = |is_moved: bool, pairs: &[(&str, &str)]| for_kueue(is_moved, None, Some(texts(pairs))).1;
    assert!(is_elastic(&read(false, &[elastic])));
    assert!(!is_elastic(&read(true, &[elastic])));
    assert!(!is_elastic(&read(false, &[elastic, ("kueue.x-k8s.io/prebuilt-workload-name", "w")])));
}
