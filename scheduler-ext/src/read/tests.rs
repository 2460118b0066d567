use serde_json::{Value, json};

use super::*;

fn facts(kind: Kind, value: Value) -> Option<Facts> {
    let object = serde_json::from_value(value).expect("an object");
    super::object(kind, &Settings::default(), object).map(|object| object.facts)
}

#[test]
fn of_a_node_its_place_and_devices_are_kept() {
    let node = json!({
        "metadata": {"name": "n1", "resourceVersion": "7", "labels": {
            "topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r1"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "4"}},
    });
    let object = object(Kind::Node, &Settings::default(), serde_json::from_value(node).unwrap()).unwrap();
    assert_eq!((&*object.key, object.version), ("n1", 7));
    let expected = NodeFacts { zone: "z1".into(), rack: "r1".into(), devices: [8].into() };
    assert_eq!(object.facts, Facts::Node(expected));
    let bare = facts(Kind::Node, json!({"metadata": {"name": "n1"}, "status": {"allocatable": 3}}));
    assert_eq!(bare, Some(Facts::Node(NodeFacts { devices: [0].into(), ..NodeFacts::default() })));
}

#[test]
fn of_a_cache_all_is_kept_that_is_there_or_promised() {
    let [one, two] = ["11".repeat(32), "22".repeat(32)];
    let cache = json!({
        "metadata": {"name": "n1", "annotations": {"larder.dev/cordon": "disk"}},
        "spec": {"datasets": [{"uid": "u", "name": "a/pets", "snapshot": two, "bytes": 50}]},
        "status": {"snapshots": [
            {"snapshot": one, "bytes": 10, "wantedBytes": 20, "mounts": 0},
            {"snapshot": "no snapshot", "bytes": 1},
        ]},
    });
    let held = |id, bytes, wanted, comes| Held { cache: CacheId([id; 32]), bytes, wanted, comes };
    let held = [held(0x11, 10, 20, false), held(0x22, 0, 0, true)];
    let expected = CacheFacts { held: held.into(), cordon: Some("disk".into()) };
    assert_eq!(facts(Kind::NodeCache, cache), Some(Facts::Cache(expected.clone())));
}

#[test]
fn a_dataset_says_how_it_is_read_and_who_may() {
    let dataset = json!({
        "metadata": {"name": "pets", "namespace": "a", "uid": "u"},
        "spec": {"origin": {"source": "s3://b"}, "cache": {"placement": "replicated:2"}, "namespaces": ["b"]},
        "status": {"snapshot": "11".repeat(32), "bytes": 100},
    });
    let Some(Facts::Dataset(facts)) = facts(Kind::Dataset, dataset) else { panic!("a dataset") };
    assert_eq!((facts.bytes, facts.copies, facts.is_folder), (100, Some(2), false));
    assert_eq!(facts.cache, Some(CacheId([0x11; 32])));
    assert_eq!(["a", "b", "c"].map(|namespace| facts.is_granted("a", namespace)), [true, true, false]);
}

// SEMANTICS: C19, X1
#[test]
fn what_a_node_holds_for_a_tenant_counts_for_that_tenants_dataset_alone() {
    let read = |namespace: &str, uid: &str, origin: Value| {
        let status = json!({"snapshot": "11".repeat(32), "bytes": 100});
        let metadata = json!({"name": "pets", "namespace": namespace, "uid": uid});
        let dataset = json!({"metadata": metadata, "spec": {"origin": origin}, "status": status});
        let Some(Facts::Dataset(facts)) = facts(Kind::Dataset, dataset) else { panic!("a dataset") };
        facts.cache.unwrap()
    };
    let with_secret = json!({"source": "s3://b", "secretRef": {"name": "keys"}});
    let dataset = |namespace: &str, uid: &str| read(namespace, uid, with_secret.clone());
    let held = |owner: &str| {
        let snapshots = json!([{"snapshot": "11".repeat(32), "owner": owner, "bytes": 10}]);
        let cache = json!({"metadata": {"name": "n1"}, "status": {"snapshots": snapshots}});
        let Some(Facts::Cache(facts)) = facts(Kind::NodeCache, cache) else { panic!("a cache") };
        facts.held[0].cache
    };
    let (one, other) = (dataset("a", "one"), dataset("b", "other"));
    assert_eq!((held("one"), held("other")), (one, other));
    assert_ne!(one, other);
    // An administrator's dataset is shared.
    assert_eq!(dataset(SYSTEM_NAMESPACE, "third"), held(""));
    // Those that are read without credentials share their bytes, but not with what is read with larderd's own.
    let anonymous = |namespace: &str| read(namespace, "fourth", json!({"source": "s3://b", "anonymous": true}));
    assert_eq!([anonymous("a"), anonymous(SYSTEM_NAMESPACE)], [held("anonymous"); 2]);
    assert_ne!(anonymous("a"), held(""));
}

#[test]
fn a_volume_counts_if_it_is_of_a_dataset() {
    let volume = |labels: Value| {
        let annotations = json!({"larder.dev/dataset": "a/pets"});
        let metadata = json!({"name": "v", "labels": labels, "annotations": annotations});
        facts(Kind::Volume, json!({"metadata": metadata, "spec": {"claimRef": {"namespace": "b", "name": "mine"}}}))
    };
    let expected = VolumeFacts { claim: "b/mine".into(), dataset: "a/pets".into(), uid: "u".into() };
    assert_eq!(volume(json!({"larder.dev/dataset-uid": "u"})), Some(Facts::Volume(expected)));
    assert_eq!(volume(json!({})), None);
}

#[test]
fn a_job_has_a_floor_for_each_role() {
    let job = json!({
        "metadata": {"name": "train", "namespace": "a"},
        "spec": {"roles": [{"name": "chief"}, {"name": "worker", "replicas": 8, "min": 2}, {"name": "ps", "replicas": 3}]},
        "status": {"phase": "Starting"},
    });
    let Some(Facts::Job(facts)) = facts(Kind::TrainingJob, job) else { panic!("a job") };
    assert_eq!(*facts.floors, [("chief".into(), 1), ("worker".into(), 2), ("ps".into(), 3)]);
    assert!(facts.waits && !facts.leaving);
}

fn pod(change: impl FnOnce(&mut Value)) -> Option<PodFacts> {
    let mut pod = json!({
        "metadata": {
            "name": "train-worker-3-0", "namespace": "a", "uid": "u",
            "labels": {"larder.dev/job": "train", "larder.dev/job-role": "worker", "larder.dev/job-index": "3"},
            "annotations": {"larder.dev/datasets": "pets, b/coco", "larder.dev/pinned": "true"},
            "ownerReferences": [{"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": "j", "controller": true}],
        },
        "spec": {
            "nodeName": "n1", "priority": 5,
            "volumes": [{"persistentVolumeClaim": {"claimName": "pets"}}, {"emptyDir": {}}],
            "containers": [{"resources": {"requests": {"cpu": "2"}}}],
        },
        "status": {"phase": "Running"},
    });
    change(&mut pod);
    match facts(Kind::Pod, pod) {
        None => None,
        Some(Facts::Pod(facts)) => Some(facts),
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn of_a_pod_that_is_kept_which_answers_depend_on() {
    let facts = pod(|_| {}).expect("a pod with a node");
    assert_eq!((&*facts.key, &*facts.node, facts.priority, facts.pinned), ("a/train-worker-3-0", "n1", 5, true));
    assert_eq!(facts.seat, Some(Seat { job: "a/train".into(), uid: "j".into(), role: "worker".into(), index: 3 }));
    assert_eq!(facts.group.as_deref(), Some("a/larder.dev/job=train"));
    assert_eq!(facts.requests.get("cpu"), 2_000);
    let reads = [Read::Claim("a/pets".into()), Read::Dataset("a/pets".into()), Read::Dataset("b/coco".into())];
    assert_eq!(*facts.reads, reads);
    assert!(!facts.leaving && !facts.entangled && facts.larderd.is_none());
}

#[test]
fn a_bound_pod_uses_its_room_even_if_a_field_cannot_be_read() {
    let odd = |pod: &mut Value| {
        pod["spec"]["containers"][0]["livenessProbe"] = "of a newer release".into();
        pod["status"]["startTime"] = 7.into();
    };
    let whole = pod(|_| {}).unwrap();
    // Only kube-scheduler knows whether the field constrains the pod.
    assert_eq!(pod(odd), Some(PodFacts { entangled: true, ..whole }));
}

#[test]
fn a_pod_without_a_node_or_that_has_ended_is_of_no_interest() {
    assert_eq!(pod(|pod| pod["spec"]["nodeName"] = Value::Null), None);
    assert_eq!(pod(|pod| pod["status"]["phase"] = "Failed".into()), None);
}

#[test]
fn of_a_pod_that_is_to_have_a_node_that_is_kept_for_which_room_is_made() {
    let pod = |status: Value| {
        let metadata = json!({"name": "p", "namespace": "a", "uid": "u"});
        facts(Kind::Pod, json!({"metadata": metadata, "spec": {}, "status": status}))
    };
    let nomination = Nomination { uid: "u".into(), node: "n1".into() };
    assert_eq!(pod(json!({"phase": "Pending", "nominatedNodeName": "n1"})), Some(Facts::Nominated(nomination)));
    assert_eq!(pod(json!({"phase": "Failed", "nominatedNodeName": "n1"})), None);
}

#[test]
fn a_pod_is_leaving_once_it_was_told_to_end() {
    let deleted = pod(|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    let conditions = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let preempted = pod(|pod| pod["status"]["conditions"] = conditions);
    assert!(deleted.unwrap().leaving && preempted.unwrap().leaving);
}

#[test]
fn labels_alone_make_no_place_in_a_job() {
    let without = |pod: &mut Value| pod["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(pod(without).unwrap().seat, None);
}

#[test]
fn no_other_owner_gives_a_place_in_a_job() {
    for (field, value) in [("apiVersion", json!("foo/v1")), ("controller", Value::Null), ("name", json!("other"))] {
        let of_other = |pod: &mut Value| pod["metadata"]["ownerReferences"][0][field] = value.clone();
        assert_eq!(pod(of_other).unwrap().seat, None, "{field}");
    }
}

// SEMANTICS: X3
#[test]
fn of_a_pod_with_endless_names_of_datasets_none_is_kept() {
    let names: String = (0..MOST_READS).map(|nth| format!("d{nth},")).collect();
    let named = |names: &str| {
        let of = |pod: &mut Value| pod["metadata"]["annotations"]["larder.dev/datasets"] = names.into();
        pod(of).unwrap().reads.len()
    };
    assert_eq!((named(&names), named(&names[3..])), (0, 0), "with its two volumes");
    assert_eq!(named("a,b,c"), 4);
    let why = reads("a", &PodSpec::default(), Some(&format!("{names}one-more"))).unwrap_err();
    assert_eq!(why, "the pod has more than 256 volumes and names of datasets");
}

#[test]
fn a_volume_that_its_claim_has_let_go_of_leads_nowhere() {
    let volume = |change: fn(&mut Value)| {
        let metadata = json!({
            "name": "v", "labels": {"larder.dev/dataset-uid": "u"}, "annotations": {"larder.dev/dataset": "a/pets"},
        });
        let spec = json!({"claimRef": {"namespace": "b", "name": "mine"}});
        let mut volume = json!({"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}});
        change(&mut volume);
        facts(Kind::Volume, volume)
    };
    assert!(volume(|_| {}).is_some());
    assert_eq!(volume(|volume| volume["status"]["phase"] = "Released".into()), None);
    assert_eq!(volume(|volume| volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()), None);
}

#[test]
fn a_larderd_is_told_by_its_account() {
    let larderd = |conditions: Value| {
        pod(|pod| {
            pod["metadata"]["namespace"] = "larder-system".into();
            pod["spec"]["serviceAccountName"] = "larderd".into();
            pod["status"]["conditions"] = conditions;
        })
    };
    let ready = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(larderd(ready).unwrap().larderd, Some(true));
    assert_eq!(larderd(json!([])).unwrap().larderd, Some(false));
}

#[test]
fn inline_volumes_name_datasets_of_the_administrator() {
    let volumes = json!([
        {"csi": {"driver": "csi.larder.dev", "volumeAttributes": {"dataset": "pets"}}},
        {"csi": {"driver": "csi.larder.dev", "volumeAttributes": {"dataset": "b/coco"}}},
        {"csi": {"driver": "another", "volumeAttributes": {"dataset": "other"}}},
        {"csi": {"driver": "csi.larder.dev"}},
    ]);
    let spec: PodSpec = serde_json::from_value(json!({"volumes": volumes})).unwrap();
    let expected = ["b/coco", "larder-system/pets"].map(|key| Read::Dataset(key.into()));
    assert_eq!(reads("a", &spec, None), Ok(expected.into()));
    let error = reads("a", &PodSpec::default(), Some("Not A Name")).unwrap_err();
    assert!(error.contains("not the place of a Dataset"), "{error}");
}

// SEMANTICS: X1
#[test]
fn the_pods_of_a_job_are_one_group_whichever_controller_made_them() {
    let groups = |pods: &[&[(&str, &str)]]| -> Vec<String> {
        let group_of = |labels: &&[(&str, &str)]| {
            let find = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
            group(&Settings::default(), "a", find).expect("a group").to_string()
        };
        pods.iter().map(group_of).collect()
    };
    let job = "batch.kubernetes.io/job-name";
    for (label, other) in [
        // The Jobs of a JobSet, and of a TrainJob's JobSet.
        ("jobset.sigs.k8s.io/jobset-name", job),
        // An MPIJob's launcher is a Job, and its workers are pods.
        ("training.kubeflow.org/job-name", job),
        ("ray.io/cluster", job),
        ("leaderworkerset.sigs.k8s.io/name", "kueue.x-k8s.io/pod-group-name"),
        ("kueue.x-k8s.io/pod-group-name", job),
    ] {
        let of_train = format!("a/{label}=train");
        assert_eq!(groups(&[&[(label, "train"), (other, "train-0")], &[(label, "train")]]), [&*of_train, &*of_train]);
    }
    assert_eq!(groups(&[&[(job, "train")], &[(job, "other")]]), [format!("a/{job}=train"), format!("a/{job}=other")]);
}
