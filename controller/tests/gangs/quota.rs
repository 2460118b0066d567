//! No queue ever exceeds its quota.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_api::{Phase, TrainingJob};
use larder_kube::api::{DeleteParams, ListParams, PropagationPolicy};
use larder_kube::kinds::Kind;
use larder_testkit::scaled;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::bed::{Bed, PRODUCTION, Role, in_cluster, runs_for};
use crate::killed::left;
use crate::pods::Pod;

/// Changes in an ordinary run, and the most concurrent jobs.
const STEPS: u32 = 40;
const AT_A_TIME: usize = 12;

const SEED: u64 = 17;

/// The GPUs of each of the two queues, the borrowing limit, and the total.
const NOMINAL: u64 = 8;
const BORROW: u64 = 4;
const COHORT: u64 = 2 * NOMINAL;

/// Kills in an ordinary run, jobs that are created between two of them, and the most concurrent jobs.
const KILLS: u32 = 10;
const JOBS_A_LIFE: u32 = 4;
const AT_A_TIME_OF_KILLS: usize = 24;

/// The longest life of a process before it is killed.
const LIFE: Duration = Duration::from_millis(3000);

/// The usage of the two queues of a cohort if one exceeds `most`, or both exceed the cohort. Pods count until they have
/// ended or are deleted.
fn excess_of([a, b]: [&str; 2], pods: &BTreeMap<String, Pod>, most: u64) -> Option<String> {
    let used = |queue: &str| -> u64 {
        let counts = |pod: &&Pod| pod.queue == queue && !pod.is_gone && !pod.has_ended();
        pods.values().filter(counts).map(|pod| pod.gpus).sum()
    };
    let (of_a, of_b) = (used(a), used(b));
    let is_over = of_a > most || of_b > most || of_a + of_b > COHORT;
    is_over.then(|| format!("{a} uses {of_a} and {b} {of_b}"))
}

fn excess(pods: &BTreeMap<String, Pod>, most: u64) -> Option<String> {
    excess_of(["a", "b"], pods, most)
}

/// A job of random size, priority and duration, for the queue.
fn some_job(random: &mut StdRng, queue: &str) -> Value {
    let replicas = random.random_range(1..=6);
    let is_elastic = random.random_bool(0.4);
    let mut annotations = runs_for(&format!("{}s", random.random_range(0..4)));
    annotations["test.larder.dev/leaves-after"] = format!("{}s", random.random_range(0..2)).into();
    let role = Role {
        name: "worker",
        replicas,
        min: if is_elastic { 1 } else { replicas },
        gpus: random.random_range(1..=2),
        priority: if random.random_bool(0.3) { PRODUCTION } else { "" },
        queue,
        annotations,
    };
    role.job(if is_elastic { "pytorch-elastic" } else { "single" })
}

/// The names of all jobs, and of those that have not succeeded.
async fn names(bed: &Bed) -> (Vec<String>, Vec<String>) {
    let jobs = bed.jobs().list(&ListParams::default()).await.expect("a list");
    let phase = |job: &TrainingJob| job.status.as_ref().and_then(|status| status.phase);
    let name = |job: &TrainingJob| job.metadata.name.clone().unwrap_or_default();
    let unfinished = jobs.iter().filter(|job| phase(job) != Some(Phase::Succeeded)).map(name).collect();
    (jobs.iter().map(name).collect(), unfinished)
}

// SEMANTICS: J3
#[test]
fn pods_of_a_deleted_job_use_quota_until_they_are_gone() {
    leaving_pods_count(async |bed| bed.delete(Kind::TrainingJob, "first").await);
}

// SEMANTICS: J3
#[test]
fn pods_of_a_job_that_is_deleted_without_them_use_quota_until_they_are_gone() {
    leaving_pods_count(async |bed| {
        let orphans = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        bed.jobs().delete("first", &orphans).await.expect("a job can be deleted");
    });
}

// SEMANTICS: J3
#[test]
fn pods_of_a_suspended_job_use_quota_until_they_are_gone() {
    leaving_pods_count(async |bed| bed.change("first", json!({"suspend": true})).await);
}

// SEMANTICS: J3
#[test]
fn pods_of_a_job_that_has_succeeded_use_quota_until_they_are_gone() {
    leaving_pods_count(async |bed| {
        let mut master = bed.pods.live("first");
        master.retain(|pod| pod.role == "master");
        bed.annotate(&master, &runs_for("0s")).await;
    });
}

/// The job `first` uses a whole queue, and ends while its workers still exist. The next job waits for them.
fn leaving_pods_count(end: impl AsyncFn(&Bed) + Sync) {
    in_cluster(&[4; 8], async |bed| {
        bed.queue("a", json!({"nominal": NOMINAL}), None).await;
        bed.pods.require(|pods, _| excess(pods, NOMINAL));
        let _controller = bed.start("one");
        let leaves = json!({"test.larder.dev/leaves-after": "3s"});
        let role = Role { gpus: 1, queue: "a", annotations: leaves, ..Role::default() };
        let (master, workers) = (
            Role { name: "master", replicas: 1, ..role.clone() },
            Role { name: "worker", replicas: 7, ..role.clone() },
        );
        let first = json!({"type": "pytorch", "queue": "a", "roles": [master.json(), workers.json()]});
        bed.job("first", first).await;
        bed.wait_for_phase("first", Phase::Running).await;
        bed.job("second", Role { name: "worker", replicas: 8, ..role }.job("single")).await;
        end(bed).await;
        bed.wait_for("the second one runs", async || bed.pods.are_ready("second", 8)).await;
    });
}

// SEMANTICS: J3
#[test]
fn queues_of_a_cohort_never_use_more_than_they_may_as_jobs_come_and_go() {
    in_cluster(&[4; 8], async |bed| {
        for queue in ["a", "b"] {
            bed.queue(queue, json!({"nominal": NOMINAL, "borrow": BORROW}), Some("cohort")).await;
        }
        bed.pods.require(|pods, _| excess(pods, NOMINAL + BORROW));
        let _controller = bed.start("one");
        // The first job uses the most that it may, and gives back what it has borrowed.
        let leaves = json!({"test.larder.dev/leaves-after": "1s"});
        let borrower =
            Role { name: "worker", replicas: 32, min: 1, gpus: 1, queue: "a", annotations: leaves, ..Role::default() };
        bed.job("borrower", borrower.job("pytorch-elastic")).await;
        bed.wait_for("it borrows", async || bed.pods.are_ready("borrower", 12)).await;
        let owner = Role { name: "worker", replicas: 8, gpus: 1, queue: "b", ..Role::default() };
        bed.job("owner", owner.job("single")).await;
        bed.wait_for("the owner has its own", async || bed.pods.are_ready("owner", 8)).await;
        assert_eq!(bed.pods.live("borrower").len(), 8);
        bed.delete(Kind::TrainingJob, "borrower").await;
        bed.delete(Kind::TrainingJob, "owner").await;

        let (steps, mut random) = (scaled(STEPS), StdRng::seed_from_u64(SEED));
        eprintln!("{steps} steps, seed {SEED}");
        for nth in 0..steps {
            let (there, _) = names(bed).await;
            if there.len() >= AT_A_TIME || random.random_bool(0.3) {
                if let Some(name) = there.choose(&mut random) {
                    bed.delete(Kind::TrainingJob, name).await;
                }
                continue;
            }
            let queue = *["a", "b"].choose(&mut random).expect("two");
            let name = format!("job-{nth}");
            let spec = some_job(&mut random, queue);
            bed.job(&name, spec).await;
            if random.random_bool(0.5) {
                let starts = async || {
                    let jobs = bed.jobs().get_opt(&name).await.expect("an answer");
                    jobs.is_none_or(|job| {
                        job.status.and_then(|status| status.phase).is_some_and(|phase| phase != Phase::Queued)
                    })
                };
                bed.wait_for("the job starts", starts).await;
            }
        }
        bed.wait_for("all that are left have succeeded", async || names(bed).await.1.is_empty()).await;
    });
}

/// Two cohorts of two queues each. Foreign pods take room, and an autoscaler adds and removes nodes.
// SEMANTICS: J2, J3
#[test]
fn killed_at_random_moments_it_lets_no_queue_exceed_its_quota_and_no_job_starve() {
    in_cluster(&[4; 8], async |bed| {
        let cohorts = [["a", "b"], ["c", "d"]];
        for [one, other] in cohorts {
            let cohort = format!("{one}-{other}");
            for queue in [one, other] {
                bed.queue(queue, json!({"nominal": NOMINAL, "borrow": BORROW}), Some(&cohort)).await;
            }
        }
        bed.pods.require(move |pods, _| cohorts.iter().find_map(|cohort| excess_of(*cohort, pods, NOMINAL + BORROW)));
        let (kills, mut random) = (scaled(KILLS), StdRng::seed_from_u64(SEED));
        eprintln!("{kills} kills, seed {SEED}");
        let (mut made, mut foreign, mut is_added) = (0, 0, false);
        for _ in 0..kills {
            let process = bed.start("one");
            let (there, unfinished) = names(bed).await;
            // A job that has ended is deleted, and now and then one that has not.
            for name in there.iter().filter(|name| !unfinished.contains(name) || random.random_bool(0.1)) {
                bed.delete(Kind::TrainingJob, name).await;
            }
            for _ in 0..JOBS_A_LIFE.min(AT_A_TIME_OF_KILLS.saturating_sub(unfinished.len()) as u32) {
                let queue = *cohorts.as_flattened().choose(&mut random).expect("four");
                let spec = some_job(&mut random, queue);
                bed.job(&format!("job-{made}"), spec).await;
                made += 1;
            }
            let seconds = format!("{}s", random.random_range(0..3));
            bed.foreign(&format!("foreign-{foreign}"), random.random_range(1..=4), runs_for(&seconds)).await;
            foreign += 1;
            if random.random_bool(0.4) {
                match is_added {
                    false => bed.add_node("added", 4).await,
                    true => bed.remove_node("added").await,
                }
                is_added = !is_added;
            }
            tokio::time::sleep(LIFE.mul_f64(random.random())).await;
            process.kill();
        }
        let _process = bed.start("one");
        bed.wait_for("no job starves", async || names(bed).await.1.is_empty()).await;
        let all = (DeleteParams::default(), ListParams::default());
        bed.jobs().delete_collection(&all.0, &all.1).await.expect("the jobs are deleted");
        bed.wait_for("nothing is left of them", async || left(bed).await.is_empty()).await;
    });
}
