//! The Workloads that jobs request.

use super::*;
use crate::jobs::sample::golden;

#[test]
fn the_workload_of_a_job_is_that_of_its_golden_file() {
    let write = wanted(&sample()).create();
    assert_eq!((write.namespace.as_str(), write.name.as_str(), write.verb()), ("team-a", NAME, "create"));
    let Change::Create(fields) = write.change else { panic!() };
    golden("kueue-workload.yaml", &fields);
}

#[test]
fn one_role_may_be_admitted_in_part_and_it_is_the_one_with_most_surplus() {
    let min_counts = |roles: Value| {
        let sample = Sample::of("parameter-server", json!({"roles": roles}));
        let Change::Create(fields) = wanted(&sample).create().change else { panic!() };
        let sets = fields["spec"]["podSets"].as_array().unwrap().clone();
        sets.iter().map(|set| (set["count"].clone(), set["minCount"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(
        min_counts(json!([role("server", 2, 2), role("worker", 8, 1)])),
        [(json!(2), Value::Null), (json!(8), json!(1))]
    );
    assert_eq!(
        min_counts(json!([role("server", 2, 2), role("worker", 8, 8)])),
        [(json!(2), Value::Null), (json!(8), Value::Null)]
    );
}

#[test]
fn the_priority_is_that_of_the_label_then_of_the_pods_then_the_default() {
    let classes = Classes {
        workloads: [("research".to_owned(), 7)].into(),
        pods: [("high".to_owned(), 1000), ("usual".to_owned(), 5)].into(),
        default: Some("usual".to_owned()),
    };
    let of = |sample: &Sample, labels: &[(&str, &str)], classes: &Classes| {
        let Change::Create(fields) = wanted_with(sample, labels, classes)?.create().change else { panic!() };
        let spec = &fields["spec"];
        Ok::<_, NoWorkload>(json!([spec["priority"], spec["priorityClassName"], spec["priorityClassSource"]]))
    };
    let mut sample = sample();
    let label = [("kueue.x-k8s.io/priority-class", "research")];
    let (of_kueue, of_pods) = ("kueue.x-k8s.io/workloadpriorityclass", "scheduling.k8s.io/priorityclass");
    assert_eq!(of(&sample, &[], &Classes::default()), Ok(json!([0, null, ""])));
    assert_eq!(of(&sample, &[], &classes), Ok(json!([5, "usual", of_pods])));
    sample.pods[1].spec.as_mut().unwrap().priority_class_name = Some("high".to_owned());
    assert_eq!(of(&sample, &[], &classes), Ok(json!([1000, "high", of_pods])));
    assert_eq!(of(&sample, &label, &classes), Ok(json!([7, "research", of_kueue])));
    let missing = of(&sample, &label, &Classes::default()).unwrap_err().to_string();
    assert_eq!(missing, "there is no WorkloadPriorityClass research (kueue.x-k8s.io/priority-class)");
}

#[test]
fn a_later_version_has_its_own_field_for_the_class() {
    let classes =
        Classes { pods: [("high".to_owned(), 9)].into(), default: Some("high".to_owned()), ..Classes::default() };
    let priority = crate::jobs::kueue::priority::priority(&BTreeMap::new(), &[], &classes).unwrap();
    let reference = json!({"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"});
    assert_eq!(priority.fields(KueueVersion::V1beta2), json!({"priority": 9, "priorityClassRef": reference}));
}

#[test]
fn a_job_of_more_roles_than_kueue_takes_says_so() {
    let mut sample = sample();
    let worker = sample.job.roles[1].clone();
    sample.job.roles.extend(std::iter::repeat_n(worker, 7));
    let why = wanted_with(&sample, &[], &Classes::default()).unwrap_err().to_string();
    assert_eq!(why, "Kueue takes jobs of at most 8 roles; this one has 9");
    let why = wanted_with(&super::sample(), &[("kueue.x-k8s.io/max-exec-time-seconds", "1h")], &Classes::default());
    assert_eq!(
        why.unwrap_err().to_string(),
        "the label kueue.x-k8s.io/max-exec-time-seconds is not a number of seconds: \"1h\""
    );
}

#[test]
fn the_spec_follows_the_job_until_there_is_quota() {
    let waits = there(&sample(), json!({}));
    assert_eq!(wanted(&sample()).update(&waits), None, "it is as it should be");
    let more = Sample::of("parameter-server", json!({"roles": [role("server", 1, 1), role("worker", 16, 4)]}));
    let write = wanted(&more).update(&waits).expect("a write");
    let Change::Merge(fields) = &write.change else { panic!("{write:?}") };
    assert_eq!(
        (&fields["spec"]["podSets"][1]["count"], &fields["spec"]["podSets"][1]["minCount"]),
        (&json!(16), &json!(4))
    );
    assert_eq!(fields["metadata"]["resourceVersion"], "71");
    // With quota, the pods of a Workload are fixed.
    assert_eq!(wanted(&more).update(&there(&sample(), admission(8))), None);
    // Fields that the API server adds, and another order of fields, are not a change.
    let mut odd = served(&sample(), json!({}));
    odd["spec"]["podSets"][0]["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
    assert_eq!(wanted(&sample()).update(&read(odd)), None);
}

#[test]
fn topology_requests_reach_kueue() {
    let mut sample = sample();
    let annotation = ("kueue.x-k8s.io/podset-required-topology".to_owned(), "cloud.com/rack".to_owned());
    sample.pods[1].metadata.annotations = Some([annotation].into());
    let Change::Create(fields) = wanted(&sample).create().change else { panic!() };
    assert_eq!(fields["spec"]["podSets"][1]["topologyRequest"], json!({"required": "cloud.com/rack"}));
    assert_eq!(fields["spec"]["podSets"][0].get("topologyRequest"), None);
}
