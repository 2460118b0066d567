//! Jobs that read datasets.

use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::cluster::{SNAPSHOT, dataset};
use super::super::is_ready;
use super::super::kubelet::set_fates;
use super::losses::set_ready;
use super::queues::{classes, priority, queue, queued};
use super::{condition, job, nodes_of, phase, waiting_for};

fn reader(name: &str, workers: u32, patience: &str) -> Value {
    let mut job = job(name, "pytorch", &[("worker", workers)]);
    job["spec"]["datasets"] = json!([{"name": "pets", "mountPath": "/data", "warmTimeout": patience}]);
    job
}

/// The nodes that have promised room to the dataset.
fn holders(api: &Api) -> Vec<String> {
    let holds = |cache: &&Value| cache["spec"].to_string().contains(SNAPSHOT);
    let name = |cache: &Value| cache["metadata"]["name"].as_str().unwrap().to_owned();
    api.list("nodecaches").iter().filter(holds).map(name).collect()
}

fn hold_warming(api: &Api, holds: bool) {
    let jobs = if holds { "warm" } else { "no-job" };
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": jobs}}));
}

// SEMANTICS: J6
#[tokio::test(start_paused = true)]
async fn a_job_starts_once_its_data_is_on_its_nodes_and_the_room_is_released_after_it() {
    let mut world = World::with_jobs(3);
    hold_warming(&world.api, true);
    set_fates(&world.api, &[("train", "running")]);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", reader("train", 2, "30h"));
    world.until("it waits", |api| phase(api, "train") == "DataWarming" && !holders(api).is_empty()).await;
    assert_eq!(condition(&world.api, "train", "DataWarm"), ("False".into(), "Warming".into()));
    let waits = waiting_for(&world.api, "train");
    assert!(waits.starts_with("data: team-a/pets 0 % on its nodes, enough at 90 %"), "{waits}");
    hold_warming(&world.api, false);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(condition(&world.api, "train", "DataWarm"), ("True".into(), "Cached".into()));
    let mut nodes = nodes_of(&world.api, "train");
    nodes.dedup();
    assert_eq!(holders(&world.api), nodes);
    set_fates(&world.api, &[("train", "succeeded")]);
    world.until("the room is released", |api| phase(api, "train") == "Succeeded" && holders(api).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_nodes_have_full_disks_says_so_while_it_waits() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "disks-are-full"}}));
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", reader("train", 2, "10m"));
    world.until("it waits", |api| phase(api, "train") == "DataWarming").await;
    let waits = waiting_for(&world.api, "train");
    assert!(waits.ends_with("(n1: the cache has no room: the disk is full)"), "{waits}");
    world.until("it runs after its time", |api| phase(api, "train") == "Running").await;
}

// SEMANTICS: J6
#[tokio::test(start_paused = true)]
async fn a_job_waits_for_cold_data_no_longer_than_it_says() {
    let mut world = World::with_jobs(2);
    hold_warming(&world.api, true);
    set_fates(&world.api, &[("train", "running")]);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", reader("train", 1, "5m"));
    world.until("it waits", |api| phase(api, "train") == "DataWarming").await;
    let began = tokio::time::Instant::now();
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert!((299..=302).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(condition(&world.api, "train", "DataWarm"), ("True".into(), "WarmTimeout".into()));
}

// SEMANTICS: J6
#[tokio::test(start_paused = true)]
async fn a_job_does_not_wait_for_data_on_a_lost_node_however_long_its_pods_would_wait_for_the_node() {
    for restart in [json!({"atMostOnce": true}), json!({"nodeLostAfter": "30h"})] {
        let mut world = World::with_jobs(2);
        hold_warming(&world.api, true);
        world.api.put("queues", queue("red", 4));
        world.api.put("datasets", dataset("team-a", "pets", 0));
        world.start();
        world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
        let mut train = reader("train", 1, "30h");
        (train["spec"]["queue"], train["spec"]["restart"]) = ("red".into(), restart);
        world.api.put("trainingjobs", train);
        world.until("it waits", |api| phase(api, "train") == "DataWarming" && !holders(api).is_empty()).await;
        let node = holders(&world.api).remove(0);
        set_ready(&world.api, &[node.as_str()], "Unknown");
        world.until("it waits elsewhere", |api| holders(api).iter().any(|holder| *holder != node)).await;
        assert_eq!(phase(&world.api, "train"), "DataWarming");
    }
}

// SEMANTICS: J15
#[tokio::test(start_paused = true)]
async fn no_job_ends_for_another_before_the_data_of_that_is_on_its_nodes() {
    let mut world = World::with_jobs(2);
    classes(&world.api);
    hold_warming(&world.api, true);
    world.api.put("queues", queue("all", 8));
    set_fates(&world.api, &[("", "running")]);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", priority(queued("experiment", "all", 8), "experiment"));
    world.until("it runs", |api| phase(api, "experiment") == "Running").await;
    let mut production = priority(queued("production", "all", 4), "production");
    production["spec"]["datasets"] = json!([{"name": "pets", "mountPath": "/data", "warmTimeout": "30h"}]);
    world.api.put("trainingjobs", production);
    world.until("its nodes have room for the data", |api| !holders(api).is_empty()).await;
    world.rest().await;
    assert_eq!(phase(&world.api, "experiment"), "Running");
    let waits = waiting_for(&world.api, "production");
    assert!(waits.ends_with("before other jobs are preempted for it"), "{waits}");
    hold_warming(&world.api, false);
    world.until("it runs", |api| phase(api, "production") == "Running").await;
    assert_eq!(condition(&world.api, "production", "DataWarm"), ("True".into(), "Cached".into()));
    assert_eq!(phase(&world.api, "experiment"), "Queued");
}

// SEMANTICS: J6
#[tokio::test(start_paused = true)]
async fn the_data_of_the_next_two_jobs_is_warmed_ahead_and_survives_a_restart() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("first", "running")]);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", job("first", "pytorch", &[("worker", 8)]));
    world.until("the cluster is full", |api| phase(api, "first") == "Running").await;
    world.api.put("trainingjobs", reader("next", 2, "30m"));
    world.until("its data is warmed", |api| holders(api).len() == 2).await;
    assert_eq!(phase(&world.api, "next"), "Queued");
    world.rest().await;
    let writes = world.api.writes();
    world.kill();
    world.start();
    world.rest().await;
    let more = world.api.writes().split_off(writes.len());
    assert!(!more.iter().any(|write| write.contains("nodecaches")), "{more:#?}");
    set_fates(&world.api, &[("first", "succeeded")]);
    world.until("it starts warm", |api| condition(api, "next", "DataWarm").1 == "Cached").await;
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn a_job_says_that_the_quota_keeps_its_data_from_its_nodes() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    let quota = |bytes: &str| {
        let spec = json!({"namespaces": ["team-a"], "promisedBytes": bytes});
        json!({"metadata": {"name": "research"}, "spec": spec})
    };
    world.api.put("cachequotas", quota("10KiB"));
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", reader("train", 1, "30h"));
    let says = |api: &Api| {
        waiting_for(api, "train").contains(
            "(the CacheQuota research allows the namespace team-a 10.0 KiB of promised room: 0 B are promised on 0 nodes, \
             and this dataset needs 41.6 KiB more on 1 node)",
        )
    };
    world.until("it says so", says).await;
    assert_eq!(condition(&world.api, "train", "DataWarm"), ("False".into(), "Warming".into()));
    assert!(holders(&world.api).is_empty() && is_ready(&world.api, "pets"));
    world.api.put("cachequotas", quota("100KiB"));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
}

// SEMANTICS: K21
#[tokio::test(start_paused = true)]
async fn a_job_with_gpus_does_not_wait_for_a_fill_that_has_all_other_slots() {
    let mut world = World::with_jobs(9);
    hold_warming(&world.api, true);
    set_fates(&world.api, &[("train", "running")]);
    let mut bulk = dataset("team-a", "bulk", 0);
    bulk["spec"]["nodes"]["count"] = "all".into();
    world.api.put("datasets", bulk);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    let jobs = |api: &Api, of: &str| {
        let is_of = |job: &&Value| job["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(of));
        api.list("jobs").iter().filter(is_of).count()
    };
    world.until("the fill has its slots", |api| jobs(api, "larder-warm-bulk") == 7).await;
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", reader("train", 1, "30h"));
    world.until("its data is fetched", |api| jobs(api, "larder-warm-pets") == 1).await;
    assert_eq!(jobs(&world.api, "larder-warm-bulk"), 7);
}

// SEMANTICS: J13
#[tokio::test(start_paused = true)]
async fn a_job_without_a_queue_that_waits_for_cold_data_keeps_no_other_from_its_nodes() {
    let mut world = World::with_jobs(1);
    hold_warming(&world.api, true);
    set_fates(&world.api, &[("", "running")]);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.api.put("queues", queue("red", 4));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("trainingjobs", reader("hog", 4, "1h"));
    world.until("it waits for its data", |api| phase(api, "hog") == "DataWarming").await;
    world.api.put("trainingjobs", queued("train", "red", 4));
    world.until("another job has the nodes", |api| phase(api, "train") == "Running").await;
    world.rest().await;
    assert_eq!((phase(&world.api, "hog"), phase(&world.api, "train")), ("Queued".into(), "Running".into()));
    assert!(waiting_for(&world.api, "hog").contains("need room"), "{}", waiting_for(&world.api, "hog"));
    set_fates(&world.api, &[("train", "succeeded"), ("", "running")]);
    world.until("it waits again", |api| phase(api, "hog") == "DataWarming").await;
    hold_warming(&world.api, false);
    world.until("it runs", |api| phase(api, "hog") == "Running").await;
}
