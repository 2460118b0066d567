//! All required pods of a job start together, or none of them.

use std::time::Duration;

use larder_api::Phase;
use larder_api::training_job::conditions::JobConditionKind;
use larder_kube::api::ListParams;
use larder_kube::kinds::Kind;
use larder_testkit::scaled;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::bed::{Bed, Role, in_cluster, in_cluster_with_gangs, runs_for};
use crate::pods::Pod;
use crate::rules::bound_together;
use crate::running::Running;

/// The `spec.gang.timeout` of the gangs here, and the most that they may be bound in part: it passes twice, and the
/// requirement adds 5 s.
const GANG_TIMEOUT: &str = "10s";
const PARTLY_BOUND_MOST: Duration = Duration::from_secs(25);

/// The number of gangs that must complete in an ordinary run, and the number of concurrent gangs.
const GANGS: u32 = 20;
const AT_A_TIME: usize = 20;

/// The pods of a gang that are not all created and bound within 5 s.
const LARGE: u32 = 700;

/// The pods of a gang for which a kube-scheduler with its own limits, 50 requests a second, needs longer than the
/// default `spec.gang.timeout`; and nodes for them.
const THOUSANDS: u32 = 5_000;
const NODES_FOR_THOUSANDS: usize = 60;

const SEED: u64 = 16;

/// The seed: "the servers without GPUs have started, and the workers wait for GPUs for ever".
// SEMANTICS: J1
#[test]
fn seed_001_servers_without_and_workers_with_gpus_start_at_once_or_not_at_all() {
    in_cluster(&[4], async |bed| {
        bed.foreign("foreign", 1, json!({})).await;
        bed.wait_for("the foreign pod is bound", async || bed.pods.ever().iter().any(|pod| pod.is_bound())).await;
        let _controller = bed.start("a");
        let servers = Role { name: "server", replicas: 2, ..Role::default() };
        let workers = Role { name: "worker", replicas: 4, gpus: 1, ..Role::default() };
        bed.pods.require(bound_together(6, PARTLY_BOUND_MOST));
        bed.pods.require(|pods, _| {
            let foreign = pods.values().any(|pod| pod.job.is_empty() && !pod.is_leaving && !pod.is_gone);
            let early = pods.values().find(|pod| foreign && pod.job == "gang")?;
            Some(format!("{} was made although there is no room for all", early.name))
        });
        let spec = json!({"type": "parameter-server", "roles": [servers.json(), workers.json()]});
        bed.job("gang", spec).await;
        let says =
            async || bed.status("gang").await.waiting_for.is_some_and(|why| why.contains("GPU") || why.contains("gpu"));
        bed.wait_for("it says that it waits for GPUs", says).await;
        // Meanwhile a job that was created later, and that fits, runs.
        let small = Role { name: "worker", replicas: 1, gpus: 1, annotations: runs_for("1s"), ..Role::default() };
        bed.job("small", small.job("single")).await;
        bed.wait_for_phase("small", Phase::Succeeded).await;
        assert!(bed.is_in("gang", Phase::Queued).await);
        bed.delete(Kind::Pod, "foreign").await;
        bed.wait_for("all six are ready", async || bed.pods.are_ready("gang", 6)).await;
        bed.wait_for_phase("gang", Phase::Running).await;
        assert_eq!(bed.pods.ever().iter().filter(|pod| pod.job == "gang").count(), 6);
    });
}

/// The seed: "my job acquired 8 GPUs and needs 8 more, and so does yours".
// SEMANTICS: J1
#[test]
fn seed_000_two_jobs_of_which_each_needs_most_of_the_cluster_run_one_after_the_other() {
    in_cluster(&[4; 4], async |bed| {
        let _controller = bed.start("a");
        bed.pods.require(bound_together(12, PARTLY_BOUND_MOST));
        // The last four pods of the one leave room for all of the other.
        bed.pods.require(|pods, _| {
            let live = |job: &str| pods.values().filter(|pod| pod.job == job && pod.is_live()).count();
            let (mine, yours) = (live("mine"), live("yours"));
            (mine > 4 && yours > 4).then(|| format!("mine has {mine} pods and yours has {yours}"))
        });
        let gang = Role { name: "worker", replicas: 12, gpus: 1, annotations: runs_for("2s"), ..Role::default() };
        bed.job("mine", gang.job("single")).await;
        bed.job("yours", gang.job("single")).await;
        bed.wait_for_phase("mine", Phase::Succeeded).await;
        bed.wait_for_phase("yours", Phase::Succeeded).await;
        assert_eq!(bed.pods.ever().len(), 24);
    });
}

// SEMANTICS: J1
#[test]
fn a_gang_that_the_scheduler_cannot_place_is_released_in_time_and_keeps_no_other_waiting() {
    in_cluster(&[8], async |bed| {
        let _controller = bed.start("a");
        bed.pods.require(bound_together(2, Duration::from_secs(15)));
        let pair = Role { name: "worker", replicas: 2, gpus: 4, annotations: runs_for("0s"), ..Role::default() };
        // The plan considers host ports only within a role, so it keeps planning the second of these pods onto the node
        // where the first has taken the port.
        let role = |name| {
            let mut role = Role { name, replicas: 1, gpus: 4, annotations: json!({}), ..Role::default() }.json();
            role["template"]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
            role
        };
        let roles = [role("server"), role("worker")];
        let clash = json!({"type": "parameter-server", "roles": roles, "gang": {"timeout": "5s"}});
        bed.job("clash", clash).await;
        let is_in_part = async || bed.pods.live("clash").iter().filter(|pod| pod.is_bound()).count() == 1;
        bed.wait_for("one of two is bound", is_in_part).await;
        bed.job("good", pair.job("single")).await;
        bed.wait_for_phase("good", Phase::Succeeded).await;
        let status = bed.status("clash").await;
        let placed = JobConditionKind::Placed.find(&status.conditions).expect("a condition");
        assert_eq!((status.phase, placed.status.as_str()), (Some(Phase::Queued), "False"), "{status:#?}");
        assert!(bed.pods.live("clash").is_empty());
    });
}

// SEMANTICS: J1
#[test]
fn a_gang_starts_although_the_scheduler_needs_longer_for_all_of_it_than_its_timeout() {
    in_cluster(&[100; 8], async |bed| {
        let _controller = bed.start("a");
        let workers = Role { name: "worker", replicas: LARGE, gpus: 1, ..Role::default() };
        let mut spec = workers.job("single");
        spec["gang"] = json!({"backend": "builtin", "timeout": "5s"});
        bed.job("large", spec).await;
        bed.wait_for("all of it is ready", async || bed.pods.are_ready("large", LARGE as usize)).await;
        bed.wait_for_phase("large", Phase::Running).await;
    });
}

#[test]
#[ignore = "takes some minutes: make soak"]
fn a_gang_of_five_thousand_starts_with_default_settings_and_a_scheduler_with_its_own() {
    in_cluster(&[100; NODES_FOR_THOUSANDS], async |bed| {
        let folder = tempfile::tempdir().expect("a folder");
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": bed.kubeconfig()},
            "leaderElection": {"leaderElect": false},
            "profiles": [{"schedulerName": "unhurried"}],
        });
        let _scheduler = Running::scheduler(bed, &config, folder.path());
        let _controller = bed.start("a");
        let mut role = Role { name: "worker", replicas: THOUSANDS, gpus: 1, ..Role::default() }.json();
        role["template"]["spec"]["schedulerName"] = "unhurried".into();
        bed.job("large", json!({"type": "single", "roles": [role]})).await;
        let first = std::cell::OnceCell::new();
        for part in [1, 2, 3, 4, 5] {
            let enough = (THOUSANDS / 5 * part) as usize;
            let are_bound = async || {
                let live = bed.pods.live("large");
                let bound: Vec<&Pod> = live.iter().filter(|pod| pod.is_bound()).collect();
                if let Some(pod) = bound.first() {
                    first.get_or_init(|| pod.uid.clone());
                }
                bound.len() >= enough
            };
            bed.wait_for(&format!("{enough} pods are bound"), are_bound).await;
        }
        bed.wait_for("all of it is ready", async || bed.pods.are_ready("large", THOUSANDS as usize)).await;
        bed.wait_for_phase("large", Phase::Running).await;
        let live = bed.pods.live("large");
        assert!(live.iter().any(|pod| Some(&pod.uid) == first.get()), "the gang was released and started again");
    });
}

// SEMANTICS: J1
#[test]
fn gangs_that_need_most_of_the_cluster_come_and_go_between_foreign_pods() {
    in_cluster(&[4; 5], async |bed| come_and_go(bed, "builtin").await);
}

#[test]
#[ignore = "needs Kubernetes 1.37, which takes a quarter of an hour to build: make platform-peers"]
fn gangs_of_the_scheduler_come_and_go_between_foreign_pods() {
    in_cluster_with_gangs(&[4; 5], async |bed| {
        come_and_go(bed, "native").await;
        bed.wait_for("their PodGroups are gone", async || bed.list(Kind::PodGroup).await.is_empty()).await;
    });
}

/// Gangs that need 60 % of the cluster.
async fn come_and_go(bed: &Bed, backend: &str) {
    let (gangs, mut random) = (scaled(GANGS), StdRng::seed_from_u64(SEED));
    eprintln!("{gangs} gangs, seed {SEED}");
    let _controller = bed.start("a");
    bed.pods.require(bound_together(12, PARTLY_BOUND_MOST));
    let (mut made, mut done, mut foreign) = (0, 0, 0);
    while done < gangs {
        while made < gangs && ((made - done) as usize) < AT_A_TIME {
            let gang = Role { name: "worker", replicas: 12, gpus: 1, annotations: runs_for("0s"), ..Role::default() };
            let mut spec = gang.job("single");
            spec["gang"] = json!({"backend": backend, "timeout": GANG_TIMEOUT});
            bed.job(&format!("gang-{made}"), spec).await;
            made += 1;
        }
        // They take room that was free when the gang was planned.
        if random.random_bool(0.5) {
            let seconds = format!("{}s", random.random_range(0..3));
            bed.foreign(&format!("foreign-{foreign}"), random.random_range(1..=4), runs_for(&seconds)).await;
            foreign += 1;
        }
        let before = done;
        bed.wait_for("one more gang is done", async || has_ended(bed).await.is_some()).await;
        while let Some(name) = has_ended(bed).await {
            assert!(bed.is_in(&name, Phase::Succeeded).await, "{name} has failed");
            bed.delete(Kind::TrainingJob, &name).await;
            done += 1;
        }
        assert!(done > before);
        for pod in bed.pods.ever().iter().filter(|pod| pod.job.is_empty() && pod.has_ended() && !pod.is_gone) {
            bed.delete(Kind::Pod, &pod.name).await;
        }
    }
    let bound = bed.pods.ever();
    let gangs_bound = bound.iter().filter(|pod| !pod.job.is_empty() && pod.phase == "Succeeded").count();
    assert_eq!(gangs_bound, 12 * gangs as usize);
}

/// The name of a job that has ended and is not deleted.
async fn has_ended(bed: &Bed) -> Option<String> {
    let jobs = bed.jobs().list(&ListParams::default()).await.expect("a list");
    let ended = jobs
        .into_iter()
        .filter(|job| job.metadata.deletion_timestamp.is_none())
        .find(|job| job.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_terminal));
    ended.and_then(|job| job.metadata.name)
}
