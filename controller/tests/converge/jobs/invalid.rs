//! Jobs that cannot run report why, and delay no other job.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::cluster::dataset;
use super::super::kubelet::set_fates;
use super::queues::{classes, priority, queue, queued};
use super::{condition, job, phase, pods, waiting_for};

fn refusals() -> Vec<(&'static str, &'static str, Value)> {
    let single = |name: &str| job(name, "single", &[("worker", 1)]);
    let with = |name: &str, field: &str, value: Value| {
        let mut job = single(name);
        job["spec"][field] = value;
        job
    };
    vec![
        ("no-type", "TypeMissing", job("no-type", "none", &[("worker", 1)])),
        ("bad-type", "TypeInvalid", job("bad-type", "nonsense", &[("worker", 1)])),
        ("no-role", "RolesUnfit", job("no-role", "single", &[("chief", 1)])),
        ("no-data", "DatasetNotGranted", with("no-data", "datasets", json!([{"name": "pets", "mountPath": "/data"}]))),
        ("no-queue", "QueueNotGranted", with("no-queue", "queue", "none".into())),
        ("no-pod", "PodRefused", job("no-pod", "single", &[("worker", 2)])),
        ("bad-spec", "InvalidSpec", with("bad-spec", "roles", json!([]))),
    ]
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn every_mistake_is_told_within_five_seconds_and_delays_no_other_job() {
    let mut world = World::with_jobs(2);
    let mut nonsense: Value = serde_yaml_ng::from_str(super::TYPES[0]).unwrap();
    nonsense["metadata"]["name"] = "nonsense".into();
    nonsense["spec"]["environment"][0]["value"] = "{{ nothing.at.all }}".into();
    world.api.put("jobtypes", nonsense);
    world.api.deny("TRY team-a/pods/no-pod", 403);
    world.start();
    world.rest().await;
    let api = &world.api;
    for (_, _, job) in refusals() {
        api.put("trainingjobs", job);
    }
    // A job that no version of this controller can parse.
    let mut unreadable = job("unreadable", "single", &[("worker", 1)]);
    unreadable["spec"]["roles"] = "none".into();
    api.put("trainingjobs", unreadable);
    api.put("trainingjobs", job("good", "single", &[("worker", 1)]));
    tokio::time::sleep(Duration::from_secs(5)).await;
    for (name, reason, _) in refusals() {
        assert_eq!(
            condition(api, name, "Valid"),
            ("False".into(), reason.into()),
            "{name}: {}",
            waiting_for(api, name)
        );
        assert!(api.list("events").iter().any(|event| event["reason"] == reason), "{reason}");
    }
    assert_eq!(phase(api, "good"), "Succeeded");
    assert_eq!(api.get("jobtypes", "", "nonsense").unwrap()["status"]["conditions"][0]["status"], "False");
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_starts_once_what_was_wrong_is_mended() {
    let mut world = World::with_jobs(2);
    world.api.deny("TRY team-a/pods/no-pod", 403);
    world.start();
    for (name, _, job) in refusals() {
        if ["no-data", "no-queue", "no-pod"].contains(&name) {
            world.api.put("trainingjobs", job);
        }
    }
    world
        .until("all are refused", |api| {
            ["no-data", "no-queue", "no-pod"].iter().all(|name| condition(api, name, "Valid").0 == "False")
        })
        .await;
    world.api.allow();
    world.api.put("datasets", dataset("team-a", "pets", 1));
    let queue = json!({"metadata": {"name": "none"}, "spec": {"namespaces": ["*"]}});
    world.api.put("queues", queue);
    world
        .until("all are done", |api| {
            ["no-data", "no-queue", "no-pod"].iter().all(|name| phase(api, name) == "Succeeded")
        })
        .await;
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_that_is_suspended_from_the_start_is_checked_like_any_other() {
    let mut world = World::with_jobs(2);
    let mut nonsense: Value = serde_yaml_ng::from_str(super::TYPES[0]).unwrap();
    nonsense["metadata"]["name"] = "nonsense".into();
    nonsense["spec"]["environment"][0]["value"] = "{{ nothing.at.all }}".into();
    world.api.put("jobtypes", nonsense);
    world.api.deny("TRY team-a/pods/no-pod", 403);
    world.api.deny("TRY team-a/pods/slow", 500);
    world.start();
    world.rest().await;
    let suspended = |mut job: Value| {
        job["spec"]["suspend"] = true.into();
        job
    };
    let api = &world.api.clone();
    for (_, _, job) in refusals() {
        api.put("trainingjobs", suspended(job));
    }
    for (name, workers) in [("good", 1), ("slow", 3)] {
        api.put("trainingjobs", suspended(job(name, "single", &[("worker", workers)])));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    for controller in 1..3 {
        // An unreadable job is not known to be suspended.
        for (name, reason, _) in refusals().into_iter().filter(|(name, ..)| *name != "bad-spec") {
            assert_eq!(condition(api, name, "Valid"), ("False".into(), reason.into()), "{name}, {controller}");
            assert_eq!(phase(api, name), "Suspended", "{name}");
        }
        assert_eq!(condition(api, "good", "Valid"), ("True".into(), "Accepted".into()));
        assert_eq!((phase(api, "slow"), condition(api, "slow", "Valid").0), ("Suspended".into(), String::new()));
        world.kill();
        world.start();
        tokio::time::sleep(Duration::from_secs(100)).await;
    }
    world.api.allow();
    world.until("the job is valid", |api| condition(api, "slow", "Valid").0 == "True").await;
    world.until("nor against its pods", |api| condition(api, "no-pod", "Valid").0 == "True").await;
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_about_whose_pods_the_api_server_says_nothing_says_that() {
    let mut world = World::with_jobs(2);
    let said = "failed calling webhook \"pods.example.org\": no endpoints available";
    world.api.deny_saying("TRY team-a/pods/train", 500, said);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.api.put("trainingjobs", job("train-too", "single", &[("worker", 1)]));
    world.api.put("trainingjobs", job("other", "single", &[("worker", 2)]));
    let why = format!("the API server has not answered yet whether it accepts the job's pods: {said}");
    for controller in 1..3 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        for name in ["train", "train-too"] {
            assert_eq!((phase(&world.api, name), waiting_for(&world.api, name)), ("Queued".into(), why.clone()));
            assert_eq!(condition(&world.api, name, "Valid"), (String::new(), String::new()), "{name}, {controller}");
            assert_eq!(condition(&world.api, name, "QuotaReserved"), ("False".into(), "Waiting".into()), "{name}");
        }
        assert_eq!(phase(&world.api, "other"), "Succeeded");
        world.kill();
        world.start();
    }
    world.api.allow();
    world.until("they are done", |api| ["train", "train-too"].iter().all(|name| phase(api, name) == "Succeeded")).await;
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_refused_after_all_is_named_and_made_once_it_is_admitted() {
    let mut world = World::with_jobs(2);
    world.api.deny("POST team-a/pods/train", 403);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it says so", |api| waiting_for(api, "train").contains("rejects one of the job's objects: Pod")).await;
    world.api.allow();
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_somebody_has_changed_stops_no_other_job() {
    let mut world = World::with_jobs(2);
    let slots = json!([[1, u32::MAX, "Seen", "n1"], [1, u32::MAX, "Placed", "n1"]]);
    let tampered = |name: &str, time: i64| {
        let record = json!({"phase": "Running", "since": time, "started": time, "roomSince": time, "bindingSince": time,
            "notBefore": time, "headSince": time, "attempts": u32::MAX, "roles": [slots, slots, slots]});
        let mut job = job(name, "single", &[("worker", 1)]);
        job["status"] = json!({"phase": "Running", "record": record.to_string()});
        job
    };
    for (name, time) in [("early", i64::MIN), ("late", i64::MAX)] {
        world.api.put("trainingjobs", tampered(name, time));
    }
    world.start();
    world.api.put("trainingjobs", job("other", "single", &[("worker", 1)]));
    world.until("the other is done", |api| phase(api, "other") == "Succeeded").await;
    world.until("its pods are made anew", |api| phase(api, "early") == "Succeeded").await;
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn a_job_that_a_newer_version_has_run_is_left_alone_with_its_pods() {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 2));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", queued("train", "red", 2));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    world.rest().await;
    world.kill();
    world.api.change("trainingjobs", "team-a", "train", |job| {
        let mut record: Value = serde_json::from_str(job["status"]["record"].as_str().unwrap()).unwrap();
        (record["version"], record["phase"]) = (99.into(), "Dreaming".into());
        (job["status"]["record"], job["status"]["phase"]) = (record.to_string().into(), "Dreaming".into());
    });
    let (before, running) = (world.api.get("trainingjobs", "team-a", "train"), pods(&world.api));
    world.start();
    world.api.put("trainingjobs", queued("next", "red", 1));
    world.rest().await;
    assert_eq!((world.api.get("trainingjobs", "team-a", "train"), pods(&world.api)), (before, running));
    let waits = waiting_for(&world.api, "next");
    assert!(waits.contains("queue red uses 2 of 2 GPUs"), "{waits}");
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn a_record_makes_no_pods_that_nobody_has_asked_for_and_keeps_those_that_run() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("", "running")]);
    let record =
        |node: &str| json!({"phase": "Starting", "attempts": 1, "roles": [[[9, 1, "Placed", node]]]}).to_string();
    for (name, node) in [("more", "n1".to_owned()), ("long", "n".repeat(254))] {
        let mut job = job(name, "pytorch", &[("worker", 2)]);
        job["status"] = json!({"phase": "Starting", "record": record(&node)});
        world.api.put("trainingjobs", job);
    }
    world.api.put("trainingjobs", job("fewer", "pytorch", &[("worker", 3)]));
    world.start();
    world.until("all run", |api| ["more", "long", "fewer"].iter().all(|name| phase(api, name) == "Running")).await;
    let of = |api: &Api, name: &str| pods(api).iter().filter(|pod| pod.starts_with(name)).count();
    assert_eq!((of(&world.api, "more"), of(&world.api, "long")), (2, 2));
    // The pods of a gang count each other, so they stay.
    world.api.change("trainingjobs", "team-a", "fewer", |job| job["spec"]["roles"][0]["replicas"] = 1.into());
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((phase(&world.api, "fewer"), of(&world.api, "fewer")), ("Running".into(), 3));
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_that_a_queue_cannot_count_or_an_api_server_cannot_store_is_refused() {
    let mut world = World::with_jobs(2);
    world.start();
    world.api.put("queues", json!({"metadata": {"name": "gpus"}, "spec": {"namespaces": ["*"]}}));
    let mut claiming = job("claiming", "single", &[("worker", 1)]);
    claiming["spec"]["roles"][0]["template"]["spec"]["resourceClaims"] =
        json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}]);
    let mut free = claiming.clone();
    free["metadata"]["name"] = "free".into();
    claiming["spec"]["queue"] = "gpus".into();
    for job in [claiming, free, job("large", "mpi", &[("launcher", 1), ("worker", 9_000)])] {
        world.api.put("trainingjobs", job);
    }
    world.until("one is done", |api| phase(api, "free") == "Succeeded").await;
    world.rest().await;
    let said = "pods of role worker have spec.resourceClaims, which the queue gpus cannot count";
    assert_eq!(condition(&world.api, "claiming", "Valid"), ("False".into(), "InvalidSpec".into()));
    assert!(waiting_for(&world.api, "claiming").starts_with(said), "{}", waiting_for(&world.api, "claiming"));
    assert_eq!(condition(&world.api, "large", "Valid"), ("False".into(), "RolesUnfit".into()));
    let said = "a job of 9001 pods does not fit the JobType mpi: spec.files would have ";
    assert!(waiting_for(&world.api, "large").starts_with(said), "{}", waiting_for(&world.api, "large"));
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn files_that_cannot_be_rendered_after_all_are_told_and_no_pods_wait_for_them() {
    let mut world = World::with_jobs(2);
    let mut odd: Value = serde_yaml_ng::from_str(super::TYPES[2]).unwrap();
    odd["metadata"]["name"] = "odd".into();
    // Neither a sample job nor the largest job has two pods.
    let content = "{{ nothing if roles.worker.replicas == 2 }}";
    odd["spec"]["files"] = json!([{"path": "/etc/odd/file", "content": content}]);
    world.api.put("jobtypes", odd.clone());
    world.start();
    let mut train = job("train", "odd", &[("worker", 2)]);
    (train["spec"]["roles"][0]["min"], train["spec"]["roles"][0]["max"]) = (2.into(), 3.into());
    world.api.put("trainingjobs", train);
    world.until("it says so", |api| condition(api, "train", "Valid") == ("False".into(), "TypeInvalid".into())).await;
    let said = "the JobType odd: spec.files[/etc/odd/file].content cannot be rendered";
    assert!(waiting_for(&world.api, "train").starts_with(said), "{}", waiting_for(&world.api, "train"));
    world.until("it gives its room back", |api| phase(api, "train") == "Queued").await;
    assert_eq!(pods(&world.api), [""; 0]);
    odd["spec"]["files"][0]["content"] = "mended".into();
    world.api.put("jobtypes", odd);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_of_which_one_pod_cannot_be_rendered_gets_none_and_is_not_tried_again_as_it_is() {
    let mut world = World::with_jobs(2);
    let mut odd: Value = serde_yaml_ng::from_str(super::TYPES[2]).unwrap();
    odd["metadata"]["name"] = "odd".into();
    // Neither the first pod nor the last one.
    odd["spec"]["environment"] = json!([{"name": "ODD", "value": "{{ nothing if index == 1 }}"}]);
    world.api.put("jobtypes", odd.clone());
    world.start();
    world.api.put("trainingjobs", job("train", "odd", &[("worker", 3)]));
    world.until("it says so", |api| condition(api, "train", "Valid") == ("False".into(), "TypeInvalid".into())).await;
    world.until("it gives its room back", |api| phase(api, "train") == "Queued").await;
    world.rest().await;
    let before = world.api.writes();
    assert!(!before.iter().any(|write| write.starts_with("POST pods")), "{before:#?}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes(), before);
    assert_eq!(condition(&world.api, "train", "Valid"), ("False".into(), "TypeInvalid".into()));
    odd["spec"]["environment"][0]["value"] = "mended".into();
    world.api.put("jobtypes", odd);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_whose_status_is_refused_keeps_no_pods_that_it_is_to_give_up() {
    let mut world = World::with_jobs(1);
    classes(&world.api);
    world.api.put("queues", queue("red", 4));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.api.put("trainingjobs", priority(queued("low", "red", 3), "experiment"));
    world.until("they run", |api| ["train", "low"].iter().all(|name| phase(api, name) == "Running")).await;
    world.rest().await;
    for name in ["train", "low"] {
        world.api.deny(&format!("PATCH team-a/trainingjobs/{name}"), 403);
    }
    world.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = true.into());
    world.until("it has no pods", |api| !pods(api).iter().any(|pod| pod.starts_with("train"))).await;
    world.api.put("trainingjobs", priority(queued("high", "red", 4), "production"));
    world.until("the other one has its room", |api| phase(api, "high") == "Running").await;
    assert_eq!((phase(&world.api, "train"), phase(&world.api, "low")), ("Running".into(), "Running".into()));
    world.api.allow();
    world.until("it is reported", |api| phase(api, "train") == "Suspended" && phase(api, "low") == "Queued").await;
}
