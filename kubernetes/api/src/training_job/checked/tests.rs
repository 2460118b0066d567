use serde_json::{Value, json};

use super::*;
use crate::job_type::JobTypeSpec;

fn object(mut base: Value, fields: Value) -> Value {
    base.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    base
}

fn template() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "i"}]}})
}

/// A valid job, with these fields in its spec.
fn with(fields: Value) -> Value {
    let spec = object(json!({"type": "single", "roles": [{"name": "worker", "template": template()}]}), fields);
    let metadata = json!({"name": "job", "namespace": "team-a"});
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec})
}

/// A valid job, with these fields in its role.
fn role(fields: Value) -> Value {
    with(json!({"roles": [object(json!({"name": "worker", "template": template()}), fields)]}))
}

/// A valid job, with these fields in its container.
fn container(fields: Value) -> Value {
    let container = object(json!({"name": "main", "image": "i"}), fields);
    role(json!({"template": {"spec": {"containers": [container]}}}))
}

fn checked(job: Value) -> Result<CheckedJob, InvalidField> {
    serde_json::from_value::<TrainingJob>(job).expect("of the schema's form").check()
}

#[test]
fn what_is_left_out_has_its_default() {
    let got = checked(with(json!({}))).expect("valid");
    let role = &got.roles[0];
    assert_eq!((role.replicas, role.min, role.max, role.processes), (1, 1, 1, None));
    assert!(role.defaults.guaranteed && role.defaults.shared_memory);
    assert_eq!((got.backend, got.gang_timeout), (GangBackend::Auto, GANG_TIMEOUT));
    assert_eq!((got.queueing, got.keep_pods), (Queueing::None, KeepPods::Ended));
    assert_eq!((got.scope, got.max_crashes, got.suspend, got.active_deadline), (None, None, false, None));
    assert_eq!((got.node_lost_after, got.at_most_once), (None, false));
    assert_eq!((got.forgive_after, got.in_place), (FORGIVE_AFTER, 0));
    assert!(got.rules.is_empty() && got.parameters.is_empty() && got.sweep.is_none());
}

#[test]
fn a_full_spec_is_understood() {
    let annotated = json!({
        "metadata": {"annotations": {
            "larder.dev/processes-per-pod": "8", "larder.dev/defaults-off": "guaranteed, shared-memory"
        }},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}
    });
    let got = checked(with(json!({
        "roles": [{"name": "worker", "replicas": 4, "min": 2, "max": 6, "template": annotated}],
        "datasets": [
            {"name": "pets", "mountPath": "/data/pets"},
            {"name": "team-b/coco", "mountPath": "/data/coco", "minWarm": 0, "warmTimeout": "1h"},
        ],
        "queue": "vision",
        "gang": {"backend": "native", "timeout": "2m", "topologyKey": "topology.kubernetes.io/zone"},
        "restart": {"scope": "worker", "maxCrashes": 0, "nodeLostAfter": "5m", "atMostOnce": true},
        "suspend": true, "activeDeadline": "7d", "ttlAfterFinished": "0s", "keepPods": "none",
    })))
    .expect("valid");
    let role = &got.roles[0];
    assert_eq!((role.replicas, role.min, role.max, role.processes), (4, 2, 6, Some(8)));
    assert!(!role.defaults.guaranteed && !role.defaults.shared_memory && role.defaults.whole_cpus);
    assert_eq!(got.datasets[0].dataset, DatasetKey::new("team-a", "pets"));
    assert_eq!((got.datasets[0].min_warm, got.datasets[0].warm_timeout), (MIN_WARM, WARM_TIMEOUT));
    assert_eq!(got.datasets[1].dataset, DatasetKey::new("team-b", "coco"));
    assert_eq!((got.datasets[1].min_warm, got.datasets[1].warm_timeout), (0, Duration::from_secs(3600)));
    assert_eq!(got.queueing, Queueing::Queue("vision".into()));
    assert_eq!((got.backend, got.gang_timeout), (GangBackend::Native, Duration::from_secs(120)));
    assert_eq!((got.scope, got.max_crashes), (Some(RestartScope::Worker), Some(0)));
    assert_eq!((got.node_lost_after, got.at_most_once), (Some(Duration::from_secs(300)), true));
    assert_eq!((got.ttl_after_finished, got.keep_pods), (Some(Duration::ZERO), KeepPods::None));
    let mut labelled = with(json!({}));
    labelled["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "main"});
    assert_eq!(checked(labelled).expect("valid").queueing, Queueing::Kueue("main".into()));
}

#[test]
fn every_mistake_is_named_by_its_field() {
    let named = |name: &str| object(with(json!({})), json!({"metadata": {"name": name}}));
    let mut two_queues = with(json!({"queue": "vision"}));
    two_queues["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "main"});
    let limits = |limits: Value| container(json!({"resources": {"limits": limits}}));
    let annotated = |name: &str, value: &str| {
        role(json!({"template": object(template(), json!({"metadata": {"annotations": {name: value}}}))}))
    };
    let pod =
        |fields: Value| role(json!({"template": {"spec": object(json!({"containers": [{"name": "main"}]}), fields)}}));
    let dataset = |fields: Value| with(json!({"datasets": [object(json!({"name": "d", "mountPath": "/d"}), fields)]}));
    for (field, job) in [
        ("metadata.name", named("a.b")),
        ("metadata.name", named("1a")),
        ("metadata.name", named(&"n".repeat(64))),
        ("spec.type", with(json!({"type": "Single"}))),
        ("spec.roles", with(json!({"roles": []}))),
        (
            "spec.roles",
            with(json!({"roles": [{"name": "a", "template": template()}, {"name": "a", "template": template()}]})),
        ),
        ("spec.roles[].name", role(json!({"name": "a-name-of-16-let"}))),
        ("spec.roles[worker].replicas", role(json!({"replicas": 0}))),
        ("spec.roles[worker].replicas", role(json!({"replicas": 10_001}))),
        ("spec.roles[worker].min", role(json!({"replicas": 2, "min": 0}))),
        ("spec.roles[worker].min", role(json!({"replicas": 2, "min": 3}))),
        ("spec.roles[worker].max", role(json!({"replicas": 2, "max": 1}))),
        ("spec.roles[worker].template.spec.containers", role(json!({"template": {}}))),
        ("spec.roles[worker].template.spec.containers", role(json!({"template": {"spec": {"containers": []}}}))),
        ("spec.roles[worker].template.spec.restartPolicy", pod(json!({"restartPolicy": "OnFailure"}))),
        ("spec.roles[worker].template.spec.hostname", pod(json!({"hostname": "h"}))),
        ("spec.roles[worker].template.spec.nodeName", pod(json!({"nodeName": "n1"}))),
        (
            "spec.roles[worker].template.spec.containers[main].resources.limits[nvidia.com/gpu]",
            limits(json!({"nvidia.com/gpu": -1})),
        ),
        (
            "spec.roles[worker].template.spec.containers[main].resources.limits[nvidia.com/gpu]",
            limits(json!({"nvidia.com/gpu": "0.5"})),
        ),
        (
            "spec.roles[worker].template.spec.containers[main].resources.limits[amd.com/gpu]",
            limits(json!({"amd.com/gpu": "500m"})),
        ),
        ("spec.roles[worker].template.spec.containers[main].resources.limits[cpu]", limits(json!({"cpu": "many"}))),
        (
            "spec.roles[worker].template.metadata.annotations[larder.dev/processes-per-pod]",
            annotated("larder.dev/processes-per-pod", "0"),
        ),
        (
            "spec.roles[worker].template.metadata.annotations[larder.dev/defaults-off]",
            annotated("larder.dev/defaults-off", "all"),
        ),
        ("spec.datasets[].name", dataset(json!({"name": "A"}))),
        ("spec.datasets[d].mountPath", dataset(json!({"mountPath": "data"}))),
        ("spec.datasets[d].mountPath", dataset(json!({"mountPath": "/a/../b"}))),
        ("spec.datasets[d].minWarm", dataset(json!({"minWarm": 101}))),
        ("spec.datasets[d].warmTimeout", dataset(json!({"warmTimeout": "0s"}))),
        (
            "spec.datasets",
            with(json!({"datasets": [{"name": "d", "mountPath": "/a"}, {"name": "team-a/d", "mountPath": "/b"}]})),
        ),
        (
            "spec.datasets[e].mountPath",
            with(json!({"datasets": [{"name": "d", "mountPath": "/a"}, {"name": "e", "mountPath": "/a"}]})),
        ),
        (
            "spec.datasets[e].split",
            with(json!({"datasets": [
                {"name": "d", "mountPath": "/a", "split": true}, {"name": "e", "mountPath": "/b", "split": true},
            ]})),
        ),
        (
            "spec.datasets[d].split",
            with(json!({
                "datasets": [{"name": "d", "mountPath": "/a", "split": true}],
                "roles": [{"name": "worker", "replicas": 2, "min": 1, "template": template()}],
            })),
        ),
        ("spec.parameters", with(json!({"parameters": [{"name": "a-b", "value": "1"}]}))),
        ("spec.parameters", with(json!({"parameters": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}))),
        ("spec.restart.forgiveAfter", with(json!({"restart": {"forgiveAfter": "soon"}}))),
        ("spec.queue", with(json!({"queue": "Vision"}))),
        ("spec.queue", two_queues),
        ("spec.gang.timeout", with(json!({"gang": {"timeout": "soon"}}))),
        ("spec.activeDeadline", with(json!({"activeDeadline": "0s"}))),
        ("spec.ttlAfterFinished", with(json!({"ttlAfterFinished": "1w"}))),
    ] {
        let error = checked(job.clone()).expect_err(field);
        assert_eq!(error.field, field, "{job}: {error}");
    }
}

#[test]
fn a_job_runs_here_unless_it_names_other_clusters() {
    let clusters = |names: Value| checked(with(json!({"clusters": names}))).map(|job| job.clusters);
    assert_eq!(checked(with(json!({}))).map(|job| job.clusters), Ok(Clusters::Here));
    assert_eq!(clusters(json!(["here"])), Ok(Clusters::Here));
    assert_eq!(clusters(json!(["any"])), Ok(Clusters::Any));
    let names = clusters(json!(["here", "west"])).expect("valid");
    assert!(names.allow("here") && names.allow("west") && !names.allow("cloud"));
    assert!(Clusters::Any.allow("cloud") && Clusters::Here.allow("here") && !Clusters::Here.allow("west"));
    for bad in [json!(["any", "west"]), json!(["West"]), json!(vec!["west"; 21])] {
        assert_eq!(clusters(bad.clone()).expect_err("a mistake").field, "spec.clusters", "{bad}");
    }
    let mut queued = with(json!({"clusters": ["west"]}));
    queued["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "team"});
    assert_eq!(checked(queued).expect_err("Kueue moves it").field, "spec.clusters");
}

#[test]
fn failover_leaves_time_for_pods_to_end() {
    let failover = |time: &str, grace: Option<i64>| {
        let mut template = template();
        if let Some(grace) = grace {
            template["spec"]["terminationGracePeriodSeconds"] = grace.into();
        }
        let fields =
            json!({"clusters": ["west"], "failover": time, "roles": [{"name": "worker", "template": template}]});
        checked(with(fields)).map(|job| job.failover).map_err(|error| error.field)
    };
    assert_eq!(failover("2m", None), Ok(Some(FAILOVER_MIN)));
    assert_eq!(failover("119s", None), Err("spec.failover".into()));
    assert_eq!(failover("10m", Some(270)), Ok(Some(Duration::from_secs(600))));
    assert_eq!(failover("10m", Some(271)), Err("spec.failover".into()));
}

#[test]
fn a_job_is_of_another_controller_only_if_it_says_so() {
    let of = |name: &str| serde_json::from_value::<TrainingJob>(with(json!({"managedBy": name}))).expect("a job");
    let moved = of("kueue.x-k8s.io/multikueue");
    assert!(moved.is_of_others() && moved.is_of_multikueue());
    assert!(of("example.org/other").is_of_others() && !of("example.org/other").is_of_multikueue());
    assert!(!of(MANAGED_BY).is_of_others());
    assert!(!serde_json::from_value::<TrainingJob>(with(json!({}))).expect("a job").is_of_others());
}

#[test]
fn roles_must_be_those_of_the_type() {
    let kind = serde_json::from_value::<JobTypeSpec>(json!({
        "roles": [
            {"name": "chief", "most": 1}, {"name": "worker", "elastic": true}, {"name": "ps", "required": true},
            {"name": "evaluator"},
        ],
        "success": {"roles": ["chief", "worker"]},
    }))
    .expect("of the schema's form")
    .check()
    .expect("valid");
    let fits = |roles: Value| {
        let mut roles = roles;
        roles.as_array_mut().expect("a list").iter_mut().for_each(|role| role["template"] = template());
        checked(with(json!({"roles": roles}))).expect("valid").fit(&kind)
    };
    assert_eq!(fits(json!([{"name": "chief"}, {"name": "ps"}])), Ok(()));
    assert_eq!(fits(json!([{"name": "worker", "replicas": 2, "min": 1, "max": 3}, {"name": "ps"}])), Ok(()));
    let after = |role: &str, until: &str| json!([{"role": role, "until": until}]);
    let worker = |after: Value| json!({"name": "worker", "startsAfter": after});
    assert_eq!(fits(json!([{"name": "ps"}, worker(after("ps", "done"))])), Ok(()));
    assert_eq!(fits(json!([{"name": "ps"}, {"name": "chief"}, worker(after("chief", "ready"))])), Ok(()));
    for (field, roles) in [
        // The chief decides, so the job is done before its workers would start.
        ("spec.roles[worker].startsAfter", json!([{"name": "ps"}, {"name": "chief"}, worker(after("chief", "done"))])),
        ("spec.roles[master].name", json!([{"name": "master"}, {"name": "ps"}])),
        ("spec.roles[chief].replicas", json!([{"name": "chief", "replicas": 2}, {"name": "ps"}])),
        ("spec.roles[ps].max", json!([{"name": "chief"}, {"name": "ps", "max": 2}])),
        ("spec.roles[ps].min", json!([{"name": "chief"}, {"name": "ps", "replicas": 2, "min": 1}])),
        ("spec.roles", json!([{"name": "chief"}])),
        ("spec.roles", json!([{"name": "ps"}, {"name": "evaluator"}])),
    ] {
        let error = fits(roles.clone()).expect_err(field);
        assert_eq!(error.field, field, "{roles}: {error}");
    }
}

#[test]
fn no_role_that_a_launcher_waits_for_starts_after_it() {
    let kind = serde_json::from_value::<JobTypeSpec>(json!({
        "roles": [{"name": "launcher"}, {"name": "cache"}, {"name": "worker"}],
        "service": {}, "launcher": {"role": "launcher", "starts": ["worker"], "port": 7422},
        "success": {"roles": ["launcher"]},
    }))
    .expect("of the schema's form")
    .check()
    .expect("valid");
    let fits = |names: [(&str, &[&str]); 3]| {
        let role = |(name, after): (&str, &[&str])| {
            let after: Vec<Value> = after.iter().map(|role| json!({"role": role})).collect();
            json!({"name": name, "startsAfter": after, "template": template()})
        };
        checked(with(json!({"roles": names.map(role)}))).expect("valid").fit(&kind)
    };
    assert_eq!(fits([("cache", &[]), ("worker", &["cache"]), ("launcher", &["worker"])]), Ok(()));
    assert_eq!(fits([("launcher", &[]), ("cache", &["launcher"]), ("worker", &[])]), Ok(()));
    for roles in [
        [("launcher", &[][..]), ("worker", &["launcher"][..]), ("cache", &[][..])],
        [("launcher", &[][..]), ("cache", &["launcher"][..]), ("worker", &["cache"][..])],
    ] {
        let error = fits(roles).expect_err("it would wait forever");
        assert!(error.field == "spec.roles[worker].startsAfter" && error.what.contains("launcher"), "{error}");
    }
}

#[test]
fn the_timeouts_of_a_job_are_bounded_most_of_all_without_a_queue() {
    let waits = |fields: Value| {
        let datasets = json!([{"name": "pets", "mountPath": "/data", "warmTimeout": "999999d"}]);
        let spec = object(json!({"datasets": datasets, "gang": {"timeout": "999999d"}}), fields);
        let got = checked(with(spec)).expect("valid");
        (got.datasets[0].warm_timeout, got.gang_timeout)
    };
    assert_eq!(waits(json!({})), (UNQUEUED_TIMEOUT_MAX, UNQUEUED_TIMEOUT_MAX));
    assert_eq!(waits(json!({"queue": "vision"})), (TIMEOUT_MAX, TIMEOUT_MAX));
}
