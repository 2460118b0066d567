//! Sweeps: many jobs under one quota.

use std::time::Duration;

use larder_api::Phase;
use larder_kube::kinds::Kind;
use larder_testkit::scaled;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::bed::{Role, in_cluster, runs_for};
use crate::rules::run_once;

/// Kills in an ordinary run, and the longest life of a process before it is killed.
const KILLS: u32 = 10;
const LIFE: Duration = Duration::from_millis(3000);

const TRIALS: u32 = 40;

/// The GPUs of the queue. More trials than these wait in it.
const NOMINAL: u64 = 4;
const PARALLELISM: u32 = 6;

const SEED: u64 = 19;

// SEMANTICS: J33
#[test]
fn each_trial_runs_once_within_the_quota_while_controllers_are_killed() {
    in_cluster(&[4; 3], async |bed| {
        let (kills, mut random) = (scaled(KILLS), StdRng::seed_from_u64(SEED));
        eprintln!("{kills} kills, seed {SEED}");
        bed.queue("vision", json!({"nominal": NOMINAL}), None).await;
        bed.pods.require(run_once());
        bed.pods.require(|pods, _| {
            let used = pods.values().filter(|pod| !pod.job.is_empty() && !pod.is_gone && !pod.has_ended());
            let used: u64 = used.map(|pod| pod.gpus).sum();
            (used > NOMINAL).then(|| format!("{used} GPUs are used"))
        });
        let annotations = runs_for("1s");
        let worker = Role { name: "worker", replicas: 1, gpus: 1, queue: "vision", annotations, ..Role::default() };
        let mut spec = worker.job("single");
        let parameters = json!([{"name": "LR", "min": "1e-5", "max": "0.1", "scale": "log"}]);
        let trials = json!({"trials": TRIALS, "seed": SEED, "parameters": parameters});
        spec["sweep"] = json!({"random": trials, "parallelism": PARALLELISM});
        bed.job("tune", spec).await;
        for _ in 0..kills {
            let process = bed.start("a");
            tokio::time::sleep(LIFE.mul_f64(random.random())).await;
            process.kill();
        }
        let _process = bed.start("a");
        bed.wait_for_phase("tune", Phase::Succeeded).await;
        let sweep = bed.status("tune").await.sweep.expect("a sweep");
        assert_eq!((sweep.succeeded, sweep.failed, sweep.active), (TRIALS, 0, 0));
        let succeeded = bed.pods.ever().iter().filter(|pod| pod.phase == "Succeeded").count();
        assert_eq!(succeeded, TRIALS as usize);
        bed.delete(Kind::TrainingJob, "tune").await;
        bed.wait_for("nothing is left", async || {
            bed.list(Kind::TrainingJob).await.is_empty() && bed.list(Kind::Pod).await.is_empty()
        })
        .await;
    });
}
