//! Jobs in other clusters: two and three API servers, each with a controller and a simulated cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use larder_api::ClusterReason;
use larder_controller::clusters::link::{Connect, Lost};
use larder_kube::Client;
use larder_testkit::fake_api::{Cable, Mode};
use larder_testkit::scaled;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::World;
use super::super::api::{Api, client};
use super::super::kubelet::set_fates;
use super::queues::queue;
use super::{condition, job, phase, pods, waiting_for};

/// The clusters that a controller can reach, by the names of their Secrets.
#[derive(Clone, Default)]
pub(crate) struct Others(BTreeMap<String, (Api, Cable)>);

impl Connect for Others {
    fn connect<'a>(&'a self, secret: &'a str) -> BoxFuture<'a, Result<(Client, String), Lost>> {
        let account = "system:serviceaccount:larder-system:home-hq".to_owned();
        let found = self.0.get(secret).map(|(api, link)| (Client::new(api.service_over(link), "default"), account));
        let missing = || (ClusterReason::SecretMissing, format!("there is no Secret larder-system/{secret}"));
        std::future::ready(found.ok_or_else(missing)).boxed()
    }
}

fn cluster(name: &str) -> Value {
    let spec = if name == "here" { json!({}) } else { json!({"kubeconfig": {"secret": name}}) };
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec})
}

/// Two clusters, and a home without nodes that knows them. Pods run until a test says otherwise.
struct Places {
    home: World,
    west: World,
    cloud: World,
    to_west: Cable,
    to_cloud: Cable,
}

impl Places {
    fn new() -> Self {
        let worlds = [World::with_jobs(0), World::with_jobs(2), World::with_jobs(2)];
        for world in &worlds {
            world.api.put("clusters", cluster("here"));
            set_fates(&world.api, &[("", "running")]);
        }
        let [mut home, west, cloud] = worlds;
        let (to_west, to_cloud) = (Cable::default(), Cable::default());
        home.others.0.insert("west".to_owned(), (west.api.clone(), to_west.clone()));
        home.others.0.insert("cloud".to_owned(), (cloud.api.clone(), to_cloud.clone()));
        home.api.put("clusters", cluster("west"));
        home.api.put("clusters", cluster("cloud"));
        let mut places = Self { home, west, cloud, to_west, to_cloud };
        places.home.start();
        places.west.start();
        places.cloud.start();
        places
    }

    /// Cordons all nodes of `cloud`, or none, and waits until that is known.
    async fn fill_cloud(&self, is_full: bool) {
        for name in ["n1", "n2"] {
            self.cloud.api.change("nodes", "", name, |node| node["spec"]["unschedulable"] = is_full.into());
        }
        let nodes = if is_full { 0 } else { 2 };
        let has = |name| move |api: &Api| api.get("clusters", "", name).unwrap()["status"]["nodes"] == nodes;
        self.cloud.until("it says so", has("here")).await;
        self.home.until("it is known", has("cloud")).await;
    }

    fn submit(&self, name: &str, clusters: &[&str], fields: Value) {
        let mut job = job(name, "single", &[("worker", 1)]);
        job["spec"]["clusters"] = json!(clusters);
        for (field, value) in fields.as_object().unwrap() {
            job["spec"][field] = value.clone();
        }
        self.home.api.put("trainingjobs", job);
    }
}

/// Another home that knows the same clusters. The uids of its objects are others.
fn second_home(places: &Places) -> World {
    let mut second = World::with_jobs(0);
    for at in 0..50 {
        second.api.put("configmaps", json!({"metadata": {"namespace": "test", "name": format!("c-{at}")}}));
    }
    second.others = places.home.others.clone();
    for name in ["here", "west", "cloud"] {
        second.api.put("clusters", cluster(name));
    }
    second
}

/// The jobs of which pods run in both clusters at the same time, at any moment from now on.
fn twins(places: &Places) -> Arc<Mutex<BTreeSet<String>>> {
    let (west, cloud, found) = (places.west.api.clone(), places.cloud.api.clone(), Arc::default());
    let seen: Arc<Mutex<BTreeSet<String>>> = Arc::clone(&found);
    let jobs = |api: &Api| -> BTreeSet<String> {
        let running = |pod: &Value| pod["status"]["phase"] == "Running";
        let name = |pod: &Value| pod["metadata"]["labels"]["larder.dev/job"].as_str().map(str::to_owned);
        api.list("pods").iter().filter(|pod| running(pod)).filter_map(name).collect()
    };
    tokio::spawn(async move {
        let (mut of_west, mut of_cloud) = (west.changes(), cloud.changes());
        loop {
            seen.lock().unwrap().extend(jobs(&west).intersection(&jobs(&cloud)).cloned());
            let changed = tokio::select! {
                changed = of_west.changed() => changed,
                changed = of_cloud.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
    found
}

fn placement(api: &Api, name: &str) -> Value {
    api.get("trainingjobs", "team-a", name).unwrap_or_default()["status"]["placement"].clone()
}

fn reachable(api: &Api, name: &str) -> (String, String) {
    let cluster = api.get("clusters", "", name).unwrap_or_default();
    let text = |key: &str| cluster["status"]["conditions"][0][key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

// SEMANTICS: J18
#[tokio::test(start_paused = true)]
async fn a_job_runs_in_the_cluster_that_has_room_and_its_status_is_seen_here() {
    let places = Places::new();
    let (home, west) = (&places.home, &places.west);
    places.submit("train", &["any"], json!({"ttlAfterFinished": "10m"}));
    home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&home.api, "train")["cluster"], "cloud", "the first of two that are alike");
    assert_eq!((pods(&home.api), pods(&places.cloud.api)), (vec![], vec!["train-worker-0-1".to_owned()]));
    // The next two fill it, and others go where there is room.
    for name in ["second", "third"] {
        let mut wide = job(name, "single", &[("worker", 4)]);
        wide["spec"]["clusters"] = json!(["any"]);
        home.api.put("trainingjobs", wide);
        home.until("it runs", |api| phase(api, name) == "Running").await;
    }
    assert_eq!(placement(&home.api, "second")["cluster"], "cloud");
    assert_eq!(placement(&home.api, "third")["cluster"], "west");
    let terms = placement(&home.api, "third")["terms"].to_string();
    assert!(terms.contains("its pods do not fit there now"), "{terms}");
    // The copy over there has the uid of the job, and is an ordinary job.
    let copy = west.api.get("trainingjobs", "team-a", "third").unwrap();
    let own = home.api.get("trainingjobs", "team-a", "third").unwrap();
    assert_eq!(copy["metadata"]["labels"]["larder.dev/home-job"], own["metadata"]["uid"]);
    assert!(copy["spec"]["clusters"].is_null() && copy["spec"]["ttlAfterFinished"].is_null(), "{copy:#}");
    // It ends, and is deleted here and there after its time.
    set_fates(&places.cloud.api, &[("train", "succeeded"), ("second", "running")]);
    home.until("it succeeds", |api| phase(api, "train") == "Succeeded").await;
    assert_eq!(condition(&home.api, "train", "Complete"), ("True".into(), "Succeeded".into()));
    home.until("it is gone", |api| api.get("trainingjobs", "team-a", "train").is_none()).await;
    assert!(places.cloud.api.get("trainingjobs", "team-a", "train").is_none());
}

#[tokio::test(start_paused = true)]
async fn suspending_and_deleting_a_job_ends_its_pods_over_there() {
    let places = Places::new();
    let (home, west) = (&places.home, &places.west);
    places.submit("train", &["west"], json!({}));
    home.until("it runs", |api| phase(api, "train") == "Running").await;
    let suspend = |is: bool| {
        home.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = is.into());
    };
    suspend(true);
    home.until("it is suspended", |api| phase(api, "train") == "Suspended").await;
    west.until("its pods are gone", |api| pods(api).is_empty()).await;
    suspend(false);
    home.until("it runs again", |api| phase(api, "train") == "Running").await;
    home.api.delete("trainingjobs", "team-a", "train");
    assert!(home.api.get("trainingjobs", "team-a", "train").is_some(), "it stays until its copy is gone");
    home.until("it is gone", |api| api.list("trainingjobs").is_empty()).await;
    assert!(west.api.list("trainingjobs").is_empty());
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_lost_link_neither_ends_a_job_nor_starts_it_again_even_if_both_controllers_die() {
    let mut places = Places::new();
    places.submit("train", &["any"], json!({}));
    places.submit("west", &["west"], json!({}));
    places.home.until("it runs", |api| phase(api, "west") == "Running").await;
    for _ in 0..5 {
        places.to_west.cut(true);
        places.home.until("it is unknown", |api| !placement(api, "west")["unknownSince"].is_null()).await;
        let own = places.home.api.get("trainingjobs", "team-a", "west").unwrap();
        assert_eq!(own["status"]["shown"]["why"], "Unknown");
        places.home.until("the cluster says so", |api| reachable(api, "west").1 == "NoAnswer").await;
        assert_eq!(reachable(&places.home.api, "cloud"), ("True".into(), "Answers".into()), "others are untouched");
        places.home.kill();
        places.west.kill();
        tokio::time::sleep(Duration::from_secs(600)).await;
        places.west.start();
        places.home.start();
        places.to_west.cut(false);
        places.home.until("it is known", |api| placement(api, "west")["unknownSince"].is_null()).await;
    }
    // No pod was replaced, and no copy was created again.
    assert_eq!(pods(&places.west.api), ["west-worker-0-1"]);
    assert_eq!(pods(&places.cloud.api), ["train-worker-0-1"]);
    let lost = places.home.api.list("events").into_iter().filter(|event| event["reason"] == "NoAnswer").count();
    assert!((1..=5).contains(&lost), "{lost} events");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_answers_but_lists_no_jobs_holds_up_nobody() {
    let mut places = Places::new();
    places.home.until("it is known", |api| reachable(api, "west").0 == "True").await;
    places.home.kill();
    places.west.api.turn(&["trainingjobs"], Mode::Refuses(403));
    places.home.start();
    places.submit("train", &["any"], json!({}));
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&places.home.api, "train")["cluster"], "cloud");
    places.home.until("it says so", |api| reachable(api, "west") == ("False".into(), "NoAnswer".into())).await;
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_job_with_failover_starts_elsewhere_after_its_pods_have_ended_and_never_runs_twice() {
    let places = Places::new();
    let (home, west) = (&places.home, &places.west);
    places.submit("filler", &["cloud"], json!({}));
    home.until("it runs", |api| phase(api, "filler") == "Running").await;
    places.fill_cloud(true).await;
    places.submit("train", &["any"], json!({"failover": "2m"}));
    home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&home.api, "train")["cluster"], "west");
    places.fill_cloud(false).await;
    places.to_west.cut(true);
    // The pods there have ended before another cluster is chosen.
    west.until("its pods have ended", |api| pods(api).is_empty()).await;
    assert_eq!(placement(&home.api, "train")["cluster"], "west");
    home.until("it has left", |api| placement(api, "train")["cluster"] == "cloud").await;
    assert_eq!(placement(&home.api, "train")["left"], json!(["west"]));
    home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(pods(&west.api), [""; 0]);
    // The link is back: the copy that was left behind goes, and its pods do not come back.
    let created = west.api.writes().iter().filter(|write| write.starts_with("POST pods/")).count();
    places.to_west.cut(false);
    west.until("it is gone", |api| api.list("trainingjobs").is_empty()).await;
    home.until("it is forgotten", |api| placement(api, "train")["left"].is_null()).await;
    assert_eq!(west.api.writes().iter().filter(|write| write.starts_with("POST pods/")).count(), created);
    assert_eq!(phase(&home.api, "train"), "Running");
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_made_invalid_over_there_has_ended_before_its_job_starts_elsewhere() {
    let places = Places::new();
    let twins = twins(&places);
    places.fill_cloud(true).await;
    places.submit("train", &["any"], json!({"failover": "2m"}));
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    places.fill_cloud(false).await;
    // A priority is that of a queue, and the job is in none.
    places.west.api.change("trainingjobs", "team-a", "train", |copy| copy["spec"]["priority"] = "high".into());
    places.west.until("it is invalid", |api| condition(api, "train", "Valid").0 == "False").await;
    assert_eq!(pods(&places.west.api), ["train-worker-0-1"], "a job that runs goes on");
    places.to_west.cut(true);
    places.west.until("its pods have ended", |api| pods(api).is_empty()).await;
    assert_eq!(placement(&places.home.api, "train")["cluster"], "west");
    places.home.until("it runs elsewhere", |api| placement(api, "train")["cluster"] == "cloud").await;
    places.cloud.until("it runs", |api| !pods(api).is_empty()).await;
    assert_eq!(*twins.lock().unwrap(), BTreeSet::new());
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_home_that_has_just_begun_does_not_know_when_a_cluster_had_its_last_lease() {
    let mut places = Places::new();
    places.fill_cloud(true).await;
    places.submit("train", &["any"], json!({"failover": "2m"}));
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    places.to_west.cut(true);
    places.home.until("it has left", |api| placement(api, "train")["left"] == json!(["west"])).await;
    places.home.kill();
    places.home.start();
    places.fill_cloud(false).await;
    places.home.until("it waits", |api| waiting_for(api, "train").contains("may still have pods")).await;
    assert_eq!(placement(&places.home.api, "train")["cluster"], Value::Null);
    places.home.until("it runs", |api| placement(api, "train")["cluster"] == "cloud").await;
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_job_whose_status_was_lost_is_not_started_beside_its_copy() {
    let mut places = Places::new();
    let twins = twins(&places);
    places.submit("train", &["any"], json!({}));
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&places.home.api, "train")["cluster"], "cloud");
    places.fill_cloud(true).await;
    places.home.kill();
    places.home.api.change("trainingjobs", "team-a", "train", |job| job["status"] = Value::Null);
    places.cloud.api.deny("DELETE team-a/trainingjobs", 500);
    places.home.start();
    places.home.until("it waits", |api| waiting_for(api, "train").contains("is being deleted")).await;
    places.cloud.api.allow();
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&places.home.api, "train")["cluster"], "west");
    assert_eq!(*twins.lock().unwrap(), BTreeSet::new());
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_copy_that_no_watch_reports_is_known_from_its_creation_to_its_end() {
    let mut places = Places::new();
    places.home.until("it is known", |api| reachable(api, "west").0 == "True").await;
    places.home.kill();
    places.west.api.turn(&["trainingjobs"], Mode::RefusesWatches(500));
    places.home.start();
    places.submit("train", &["west"], json!({"failover": "2m"}));
    places.west.until("it runs", |api| pods(api) == ["train-worker-0-1"]).await;
    // The controller over there stops, so that the job leaves. The API still answers.
    places.west.kill();
    places.west.until("the copy is deleted", |api| api.list("trainingjobs").is_empty()).await;
    places.home.until("it is forgotten", |api| waiting_for(api, "train").contains("does not answer")).await;
    assert_eq!(placement(&places.home.api, "train")["left"], Value::Null);
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn jobs_with_failover_never_run_twice_however_often_links_break_and_the_home_dies() {
    let mut places = Places::new();
    let twins = twins(&places);
    let names: Vec<String> = (0..8).map(|at| format!("job-{at}")).collect();
    for name in &names {
        places.submit(name, &["any"], json!({"failover": "2m"}));
    }
    let run = |api: &Api| names.iter().all(|name| phase(api, name) == "Running");
    places.home.until("all run", run).await;
    let mut seed = 7_u64;
    let mut draw = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    for _ in 0..20 {
        places.to_west.cut(draw(3) > 0);
        places.to_cloud.cut(draw(3) > 1);
        tokio::time::sleep(Duration::from_secs(1 + draw(600))).await;
        if draw(4) == 0 {
            places.home.kill();
            tokio::time::sleep(Duration::from_secs(draw(200))).await;
            places.home.start();
        }
    }
    places.to_west.cut(false);
    places.to_cloud.cut(false);
    let is_settled = |api: &Api| {
        let rests = |placement: Value| placement["unknownSince"].is_null() && placement["left"].is_null();
        run(api) && names.iter().all(|name| rests(placement(api, name)))
    };
    places.home.until("all run, and nothing is left behind", is_settled).await;
    assert_eq!(*twins.lock().unwrap(), BTreeSet::new());
    // Each job has one copy, in its cluster.
    for (world, cluster) in [(&places.west, "west"), (&places.cloud, "cloud")] {
        for copy in world.api.list("trainingjobs") {
            let name = copy["metadata"]["name"].as_str().unwrap();
            assert_eq!(placement(&places.home.api, name)["cluster"], cluster, "{name}");
        }
    }
    let copies = places.west.api.list("trainingjobs").len() + places.cloud.api.list("trainingjobs").len();
    assert_eq!(copies, names.len());
}

// SEMANTICS: J19
#[tokio::test(start_paused = true)]
async fn a_short_outage_suspends_a_job_with_failover_at_most_and_it_goes_on_where_it_was() {
    let places = Places::new();
    places.submit("train", &["west"], json!({"failover": "10m"}));
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    places.to_west.cut(true);
    places.west.until("its pods have ended", |api| pods(api).is_empty()).await;
    places.to_west.cut(false);
    places.west.until("they are back", |api| pods(api) == ["train-worker-0-2"]).await;
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&places.home.api, "train")["cluster"], "west");
}

// SEMANTICS: J21
#[tokio::test(start_paused = true)]
async fn another_home_takes_over_the_jobs_of_one_that_is_gone() {
    let mut places = Places::new();
    let mut train = job("train", "single", &[("worker", 1)]);
    train["spec"]["clusters"] = json!(["any"]);
    places.home.api.put("trainingjobs", train.clone());
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    places.home.kill();
    let mut second = second_home(&places);
    train["spec"]["failover"] = "10m".into();
    second.api.put("trainingjobs", train);
    second.start();
    second.until("it waits", |api| waiting_for(api, "train").contains("for another home")).await;
    second.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&second.api, "train")["cluster"], "cloud");
    // The first home comes back, and finds that the job is not its own any more.
    places.home.start();
    places.home.until("it says so", |api| waiting_for(api, "train").contains("for another home")).await;
    assert_eq!(pods(&places.cloud.api), ["train-worker-0-1"]);
    assert_eq!(pods(&places.west.api), [""; 0]);
    let copy = places.cloud.api.get("trainingjobs", "team-a", "train").unwrap();
    let own = second.api.get("trainingjobs", "team-a", "train").unwrap();
    assert_eq!(copy["metadata"]["labels"]["larder.dev/home-job"], own["metadata"]["uid"]);
    assert_eq!(copy["metadata"]["annotations"]["larder.dev/fence-after"], "300", "the failover of the new home counts");
}

// SEMANTICS: J21
#[tokio::test(start_paused = true)]
async fn a_home_that_has_long_stood_by_with_suspended_jobs_takes_them_over() {
    let mut places = Places::new();
    let mut train = job("train", "single", &[("worker", 1)]);
    train["spec"]["clusters"] = json!(["any"]);
    places.home.api.put("trainingjobs", train.clone());
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    let mut second = second_home(&places);
    train["spec"]["suspend"] = true.into();
    second.api.put("trainingjobs", train);
    second.start();
    tokio::time::sleep(Duration::from_secs(1_200)).await;
    places.home.kill();
    second.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = false.into());
    second.until("it waits", |api| waiting_for(api, "train").contains("for another home")).await;
    second.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(placement(&second.api, "train")["cluster"], "cloud");
    assert_eq!((pods(&places.west.api), pods(&places.cloud.api)), (vec![], vec!["train-worker-0-1".to_owned()]));
}

// SEMANTICS: J20
#[tokio::test(start_paused = true)]
async fn two_names_of_one_cluster_do_not_delete_the_jobs_of_each_other() {
    let mut places = Places::new();
    places.home.kill();
    places.home.others.0.insert("again".to_owned(), (places.west.api.clone(), Cable::default()));
    places.home.api.put("clusters", cluster("again"));
    places.home.start();
    for (name, cluster) in [("one", "west"), ("two", "again")] {
        places.submit(name, &[cluster], json!({"failover": "2m"}));
        places.home.until("it runs", |api| phase(api, name) == "Running").await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(pods(&places.west.api), ["one-worker-0-1", "two-worker-0-1"]);
    // A job that has left one of them runs no longer there, although the cluster answers under its other name.
    places.to_west.cut(true);
    places.west.until("its pods have ended", |api| pods(api) == ["two-worker-0-1"]).await;
}

// SEMANTICS: J18
#[tokio::test(start_paused = true)]
async fn a_queue_counts_what_runs_in_other_clusters() {
    let places = Places::new();
    let home = &places.home;
    home.api.put("nodes", super::super::cluster::node("n1"));
    home.api.put("queues", queue("vision", 1));
    places.west.api.put("queues", queue("vision", 1));
    places.submit("away", &["west"], json!({"queue": "vision"}));
    home.until("it runs", |api| phase(api, "away") == "Running").await;
    let mut near = job("near", "single", &[("worker", 1)]);
    near["spec"]["queue"] = "vision".into();
    home.api.put("trainingjobs", near);
    home.until("it waits", |api| waiting_for(api, "near").contains("1 of 1 GPU")).await;
    places.submit("next", &["cloud"], json!({"queue": "vision"}));
    home.until("it waits", |api| condition(api, "next", "QuotaReserved").1 == "QuotaUsed").await;
    assert!(placement(&home.api, "next")["cluster"].is_null());
    home.api.delete("trainingjobs", "team-a", "away");
    home.until("there is quota", |api| phase(api, "near") == "Running").await;
}

/// How often clients have written jobs or their pods.
fn writes(api: &Api) -> usize {
    let is_of_jobs = |write: &&String| ["trainingjobs/", "pods/"].iter().any(|of| write.contains(of));
    api.writes().iter().filter(is_of_jobs).count()
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_elsewhere_takes_few_writes_on_each_side_however_many_there_are() {
    let places = Places::new();
    let all = [&places.home, &places.west, &places.cloud];
    for world in all {
        set_fates(&world.api, &[]);
        world.api.put("queues", queue("vision", 16));
    }
    for name in ["west", "cloud"] {
        places.home.until("it is known", |api| reachable(api, name).0 == "True").await;
    }
    let jobs = scaled(100).min(1_000) as usize;
    let names: Vec<String> = (0..jobs).map(|at| format!("job-{at:04}")).collect();
    for name in &names {
        places.submit(name, &["any"], json!({"queue": "vision"}));
    }
    // Those that end last are asked about first.
    let all_ended = |api: &Api| names.iter().rev().all(|name| phase(api, name) == "Succeeded");
    places.home.until("all have ended", all_ended).await;
    // Statuses that were delayed are written.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let copies = [&places.west, &places.cloud].map(|world| world.api.list("trainingjobs").len());
    assert!(copies.iter().sum::<usize>() == jobs && copies.iter().all(|of_one| *of_one > 0), "{copies:?}");
    let [home, west, cloud] = all.map(|world| writes(&world.api));
    assert!(home <= 6 * jobs, "{home} writes at home for {jobs} jobs");
    assert!(west <= 6 * copies[0] && cloud <= 6 * copies[1], "{west} and {cloud} writes for {copies:?} copies");
}

// SEMANTICS: J20
#[tokio::test(start_paused = true)]
async fn a_cluster_that_lies_harms_no_job_of_others() {
    let mut places = Places::new();
    places.submit("train", &["cloud"], json!({}));
    places.home.until("it runs", |api| phase(api, "train") == "Running").await;
    let uid = places.home.api.get("trainingjobs", "team-a", "train").unwrap()["metadata"]["uid"].clone();
    let of_west = places.home.api.get("clusters", "", "west").unwrap()["metadata"]["uid"].clone();
    let id = format!("hq_{}", of_west.as_str().unwrap());
    places.west.kill();
    let lie = |namespace: &str, name: &str, uid: &Value| {
        json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"namespace": namespace, "name": name,
                "labels": {"larder.dev/home": id, "larder.dev/home-job": uid}},
            "spec": {"type": "single", "roles": []},
            "status": {"phase": "Failed"},
        })
    };
    // A status of a job that it never got, and many jobs that nobody gave to it.
    places.west.api.put("trainingjobs", lie("team-a", "train", &uid));
    for at in 0..50 {
        places.west.api.put("trainingjobs", lie("team-a", &format!("lie-{at}"), &format!("uid-of-{at}").into()));
    }
    places.west.until("they are deleted", |api| api.list("trainingjobs").is_empty()).await;
    assert_eq!(phase(&places.home.api, "train"), "Running");
    assert_eq!(placement(&places.home.api, "train")["cluster"], "cloud");
    assert_eq!(pods(&places.cloud.api), ["train-worker-0-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_says_which_cluster_is_missing_refuses_it_or_does_not_answer() {
    let places = Places::new();
    let home = &places.home;
    home.api.put("clusters", cluster("unjoined"));
    home.until("it is known", |api| reachable(api, "unjoined") == ("False".into(), "SecretMissing".into())).await;
    places.submit("nowhere", &["mars"], json!({}));
    home.until("it says so", |api| condition(api, "nowhere", "Valid") == ("False".into(), "ClusterMissing".into()))
        .await;
    assert!(waiting_for(&home.api, "nowhere").contains("mars"), "{}", waiting_for(&home.api, "nowhere"));
    places.submit("unlinked", &["unjoined"], json!({}));
    home.until("it says so", |api| waiting_for(api, "unlinked").contains("unjoined: does not answer")).await;
    // A tenant reaches no namespace there that the home may not write to.
    places.west.api.deny_saying("POST team-a/trainingjobs", 403, "no rights in team-a");
    places.submit("denied", &["west"], json!({}));
    home.until("it says so", |api| waiting_for(api, "denied").contains("refuses the job: no rights in team-a")).await;
    places.west.api.allow();
    home.until("it runs", |api| phase(api, "denied") == "Running").await;
    // A job of the other cluster with the name stays as it is.
    places.west.api.put("trainingjobs", job("taken", "single", &[("worker", 1)]));
    places.submit("taken", &["west"], json!({}));
    home.until("it says so", |api| waiting_for(api, "taken").contains("another TrainingJob of that name")).await;
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_has_ended_writes_nothing_at_home_or_in_other_clusters() {
    // No controller runs in the other cluster: all writes there are those of the leader.
    let [mut home, west] = [World::with_jobs(0), World::with_jobs(0)];
    home.others.0.insert("west".to_owned(), (west.api.clone(), Cable::default()));
    home.api.put("clusters", cluster("here"));
    home.api.put("clusters", cluster("west"));
    let mut here = cluster("here");
    here["status"] = json!({"heartbeat": west.api.now()});
    west.api.put("clusters", here);
    let written = || [&home, &west].map(|world| world.api.writes().len());
    let (others, minute) = (Arc::new(home.others.clone()), Duration::from_secs(60));
    let mut runs = pin!(larder_controller::run(client(&home.api), others, home.config(), CancellationToken::new()));
    assert!(tokio::time::timeout(minute, &mut runs).await.is_err(), "it leads");
    let (before, lease) = (written(), home.api.list("leases"));
    assert!(tokio::time::timeout(minute, &mut runs).await.is_err(), "it leads");
    let now = written();
    assert!(now[0] > before[0] && now[1] > before[1] && home.api.list("leases") != lease, "{before:?}, {now:?}");
    // The lease ends 10 s after its last renewal. Nothing asks what became of it, so nothing ends the other tasks.
    home.api.hold_leases();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let ended = written();
    tokio::time::sleep(10 * minute).await;
    assert_eq!(written(), ended);
    assert!(runs.await.unwrap_err().to_string().contains("could not be renewed"));
}
