use serde_json::{Value, json};

use super::*;

fn job(name: &str, more: Value) -> TrainingJob {
    let mut job = json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"namespace": "team-a", "name": name, "creationTimestamp": "2026-01-31T09:00:00Z"},
        "spec": {"type": "pytorch", "queue": "vision", "activeDeadline": "2h", "roles": [{
            "name": "worker", "replicas": 4, "min": 2,
            "template": {"spec": {
                "priorityClassName": "batch",
                "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
                "containers": [
                    {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "8"}}},
                    {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1", "rdma/hca": "x"}}},
                ],
            }},
        }]},
    });
    for (pointer, value) in more.as_object().unwrap() {
        let (at, field) = pointer.rsplit_once('/').unwrap();
        job.pointer_mut(at).unwrap()[field] = value.clone();
    }
    serde_json::from_value(job).unwrap()
}

fn names(jobs: &[&TrainingJob]) -> Vec<String> {
    jobs.iter().map(|job| job.metadata.name.clone().unwrap()).collect()
}

#[test]
fn jobs_wait_by_priority_and_then_in_the_order_in_which_they_came() {
    let classes = [("high".to_owned(), 100), ("batch".to_owned(), -5)].into();
    let priorities = Priorities { classes, default: 1, ..Priorities::default() };
    let class = "/spec/roles/0/template/spec/priorityClassName";
    let jobs = [
        job("second", json!({"/metadata/creationTimestamp": "2026-01-31T09:00:02Z"})),
        job("first", json!({"/metadata/creationTimestamp": "2026-01-31T09:00:01Z"})),
        job("unknown-class", json!({class: "none"})),
        job("urgent", json!({class: "high", "/metadata/creationTimestamp": "2026-01-31T10:00:00Z"})),
    ];
    assert_eq!(names(&waiting(&jobs, "vision", &priorities)), ["urgent", "unknown-class", "first", "second"]);
    assert_eq!(names(&waiting(&jobs, "speech", &priorities)), Vec::<String>::new());
}

#[test]
fn the_priorities_of_a_queue_replace_those_of_pods() {
    let of_queue = BTreeMap::from([("urgent".to_owned(), 7), ("idle".to_owned(), -7)]);
    let priorities = Priorities::new([("batch".to_owned(), 1_000, false)]).with_queues([("vision", &of_queue)]);
    let named = |name: Value| priorities.of_job(&job("a", json!({"/spec/priority": name})));
    assert_eq!(
        [named(json!("urgent")), named(json!("idle")), named(json!("other")), named(Value::Null)],
        [7, -7, 0, 0]
    );
    let elsewhere = job("a", json!({"/spec/queue": "speech", "/spec/priority": "urgent"}));
    assert_eq!(priorities.of_job(&elsewhere), 1_000, "a queue without priorities");
}

#[test]
fn a_job_has_the_highest_priority_of_its_roles_and_pods_without_a_class_the_default() {
    let class = |name: &str, value, is_default| (name.to_owned(), value, is_default);
    let classes = [class("high", 100, false), class("usual", 5, true), class("batch", -5, false)];
    let priorities = Priorities::new(classes);
    let pods = |classes: &[Option<&str>]| -> i32 {
        let template = |class: &Option<&str>| {
            serde_json::from_value(json!({"spec": {"containers": [], "priorityClassName": class}}))
        };
        priorities.of(&classes.iter().map(template).collect::<Result<Vec<_>, _>>().unwrap())
    };
    assert_eq!(pods(&[Some("batch"), Some("high"), None]), 100);
    assert_eq!((pods(&[Some("batch")]), pods(&[Some("batch"), None]), pods(&[Some("none")])), (-5, 5, 5));
}

#[test]
fn only_jobs_that_can_start_wait() {
    let invalid = json!([{"type": "Valid", "status": "False", "reason": "TypeMissing", "message": "",
        "lastTransitionTime": "2026-01-31T09:00:00Z"}]);
    for (more, waits, is_admitted) in [
        (json!({}), true, false),
        (json!({"/status": {"phase": "Queued"}}), true, false),
        (json!({"/status": {"phase": "Queued", "conditions": invalid}}), false, false),
        (json!({"/status": {"phase": "DataWarming"}}), false, true),
        (json!({"/status": {"phase": "Running"}}), false, true),
        (json!({"/status": {"phase": "Suspended"}}), false, false),
        (json!({"/status": {"phase": "Failed"}}), false, false),
        (json!({"/spec/suspend": true}), false, false),
        (json!({"/spec/managedBy": "example.com/other"}), false, false),
        (json!({"/metadata/labels": {"kueue.x-k8s.io/queue-name": "q"}}), false, false),
        (json!({"/metadata/deletionTimestamp": "2026-01-31T09:00:00Z"}), false, false),
    ] {
        let job = job("a", more.clone());
        assert_eq!((is_waiting_in(&job, "vision"), is_admitted_in(&job, "vision")), (waits, is_admitted), "{more}");
    }
}

#[test]
fn the_next_to_end_is_the_one_with_the_first_deadline() {
    let running = |name: &str, started: &str, deadline: Value| {
        job(name, json!({"/status": {"phase": "Running", "started": started}, "/spec/activeDeadline": deadline}))
    };
    let jobs = [
        running("late", "2026-01-31T12:00:00Z", "2h".into()),
        running("soon", "2026-01-31T12:30:00Z", "1h".into()),
        running("for-ever", "2026-01-31T12:30:00Z", Value::Null),
        running("odd", "2026-01-31T12:30:00Z", "999999999d".into()),
        job("not-started", json!({"/status": {"phase": "Running"}})),
    ];
    let ending = ending(&jobs, "vision");
    let shown: Vec<String> =
        ending.iter().map(|(ends, job)| format!("{} {ends}", job.metadata.name.as_ref().unwrap())).collect();
    assert_eq!(shown, ["soon 2026-01-31T13:30:00Z", "late 2026-01-31T14:00:00Z"]);
}

#[test]
fn a_job_needs_its_least_pods_and_holds_those_that_it_is_to_have() {
    let one = job("a", json!({}));
    // Each pod requests 3 GPUs in its containers together, or 4 in the init container before them.
    assert_eq!(needs(&one), [("nvidia.com/gpu".to_owned(), 8)].into());
    assert_eq!(holds(&one), [("nvidia.com/gpu".to_owned(), 16)].into());
    let status = json!({"roles": [{"name": "worker", "desired": 3, "active": 3, "ready": 3, "done": 0}]});
    assert_eq!(holds(&job("a", json!({"/status": status}))), [("nvidia.com/gpu".to_owned(), 12)].into());
}
