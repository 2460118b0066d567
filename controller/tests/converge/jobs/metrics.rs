//! The counters of training jobs for operators.

use std::sync::Arc;
use std::time::Duration;

use larder_controller::admin::Status;
use larder_telemetry::admin::Admin;
use larder_telemetry::{Sample, Value};
use serde_json::json;

use super::super::World;
use super::super::kubelet::{failed, set_fates};
use super::queues::{classes, priority, queue, queued};
use super::{condition, job, phase, pods};

impl World {
    /// The value of a metric without labels, or with this value of its first label.
    fn metric(&self, name: &str, label: Option<&str>) -> u64 {
        let mut all = Status(Arc::clone(&self.counters)).named_samples().into_iter();
        let of = |sample: &Sample| sample.name == name && sample.labels.first().map(|(_, value)| &**value) == label;
        match all.find(of).map(|sample| sample.value) {
            Some(Value::Number(number)) => number,
            other => panic!("{name} {label:?}: {other:?}"),
        }
    }

    fn lost(&self, cause: &str) -> u64 {
        self.metric("controller_job_restarts_total", Some(cause))
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_counted_once_however_often_its_status_is_refused() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 2)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    world.rest().await;
    for (code, crashes) in [(500, 1), (403, 2)] {
        world.api.deny("PATCH team-a/trainingjobs/train", code);
        let name = pods(&world.api).into_iter().rfind(|pod| pod.starts_with("train-worker-1")).unwrap();
        world.api.change("pods", "team-a", &name, |pod| pod["status"] = failed());
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(world.lost("crashed"), crashes - 1, "it is not written");
        world.api.allow();
        world
            .until("it is written", |api| {
                let job = api.get("trainingjobs", "team-a", "train").unwrap();
                job["status"]["restarts"]["crashed"] == crashes && phase(api, "train") == "Running"
            })
            .await;
        world.rest().await;
        assert_eq!(world.lost("crashed"), crashes);
    }
    assert_eq!((world.lost("nodeLost"), world.lost("evicted"), world.lost("preempted")), (0, 0, 0));
    assert_eq!(world.metric("controller_job_preemptions_total", None), 0);
    // The next controller counts only what happens while it runs.
    world.kill();
    world.start();
    world.rest().await;
    assert_eq!((world.lost("crashed"), world.metric("controller_job_starts_total", None)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_valid_any_more_is_not_counted_as_waiting_longest() {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 4));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", queued("runs", "red", 4));
    world.until("it runs", |api| phase(api, "runs") == "Running").await;
    world.api.put("trainingjobs", queued("waits", "red", 4));
    tokio::time::sleep(Duration::from_secs(100)).await;
    let oldest = |world: &World| world.counters.oldest_waiting.load(std::sync::atomic::Ordering::Relaxed);
    assert!(oldest(&world) > 0);
    world.api.change("queues", "", "red", |queue| queue["spec"]["namespaces"] = json!(["team-b"]));
    world.until("it says so", |api| condition(api, "waits", "Valid").1 == "QueueNotGranted").await;
    assert_eq!((oldest(&world), world.metric("controller_jobs_waiting", None)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn waits_and_preemptions_are_counted_and_what_a_spec_gives_up_is_not() {
    let mut world = World::with_jobs(2);
    classes(&world.api);
    world.api.put("queues", queue("all", 8));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let mut elastic = priority(queued("elastic", "all", 6), "experiment");
    elastic["spec"]["roles"][0]["min"] = 2.into();
    world.api.put("trainingjobs", elastic);
    world.until("it runs", |api| phase(api, "elastic") == "Running").await;
    world.api.change("trainingjobs", "team-a", "elastic", |job| job["spec"]["roles"][0]["replicas"] = 4.into());
    world.until("it is smaller", |api| pods(api).len() == 4 && phase(api, "elastic") == "Running").await;
    assert_eq!(world.metric("controller_job_preemptions_total", None), 0, "it asks for fewer");
    world.api.put("trainingjobs", priority(queued("waits", "all", 8), "experiment"));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((phase(&world.api, "waits"), world.metric("controller_jobs_waiting", None)), ("Queued".into(), 1));
    assert!(world.counters.oldest_waiting.load(std::sync::atomic::Ordering::Relaxed) > 0);
    world.api.put("trainingjobs", priority(queued("production", "all", 6), "production"));
    world.until("its surplus goes", |api| phase(api, "production") == "Running").await;
    world.rest().await;
    assert_eq!((world.metric("controller_job_preemptions_total", None), world.lost("preempted")), (1, 0));
    assert_eq!(world.metric("controller_job_starts_total", None), 2);
    assert!(world.metric("controller_job_wait_seconds_total", None) < 60, "both had room at once");
    world.api.put("trainingjobs", priority(queued("next", "all", 2), "production"));
    world.until("all of it goes", |api| phase(api, "next") == "Running").await;
    world.rest().await;
    assert_eq!((world.metric("controller_job_preemptions_total", None), world.lost("preempted")), (2, 1));
    for name in ["production", "next", "elastic"] {
        world.api.delete("trainingjobs", "team-a", name);
    }
    world.until("it starts", |api| phase(api, "waits") == "Running").await;
    world.rest().await;
    assert_eq!(
        (world.metric("controller_job_starts_total", None), world.metric("controller_jobs_waiting", None)),
        (4, 0)
    );
    let waited = world.metric("controller_job_wait_seconds_total", None);
    assert!((600..20_000).contains(&waited), "{waited}");
    assert_eq!(world.metric("controller_job_oldest_wait_seconds", None), 0);
    // All of them were in one queue.
    let of_queue = |name: &str| world.metric(&format!("controller_queue_{name}"), Some("all"));
    assert_eq!(["starts_total", "preemptions_total", "jobs_running", "jobs_waiting"].map(of_queue), [4, 2, 1, 0]);
    assert_eq!(["quota", "used", "borrowed", "oldest_wait_seconds"].map(of_queue), [8, 8, 0, 0]);
    assert_eq!(of_queue("wait_seconds_total"), waited);
}
