//! Elastic jobs are preempted by more important jobs.

use std::collections::BTreeMap;
use std::time::Instant;

use larder_api::Phase;
use serde_json::json;

use crate::bed::{PRODUCTION, Role, in_cluster, runs_for};
use crate::pods::Pod;

/// The seed: "an experiment uses all 100 GPUs, a production job needs 50 of them".
// SEMANTICS: J4
#[test]
fn seed_003_production_takes_workers_50_to_99_of_the_experiment_and_no_other() {
    in_cluster(&[4; 25], async |bed| {
        bed.queue("lab", json!({"nominal": 100}), None).await;
        let _controller = bed.start("a");
        let leaves = json!({"test.larder.dev/leaves-after": "1s"});
        let experiment = Role {
            name: "worker",
            replicas: 100,
            min: 50,
            gpus: 1,
            queue: "lab",
            annotations: leaves,
            ..Role::default()
        };
        bed.job("experiment", experiment.job("pytorch-elastic")).await;
        bed.wait_for("the experiment uses all", async || bed.pods.are_ready("experiment", 100)).await;
        bed.wait_for_phase("experiment", Phase::Running).await;
        let all = bed.pods.live("experiment");
        assert_eq!(indexes(&all), (0..100).collect::<Vec<_>>());
        // These pods stay in any case.
        let kept: BTreeMap<String, u32> = all[..50].iter().map(|pod| (pod.uid.clone(), pod.index)).collect();
        bed.pods.require(move |pods, _| {
            let lost = kept.iter().find(|(uid, _)| !pods[*uid].is_live())?;
            Some(format!("worker {} has ended", lost.1))
        });

        let began = Instant::now();
        let production =
            Role { name: "worker", replicas: 50, gpus: 1, priority: PRODUCTION, queue: "lab", ..Role::default() };
        bed.job("production", production.job("single")).await;
        let is_bound = |pod: &Pod| pod.is_bound();
        let all_bound = async || {
            let pods = bed.pods.live("production");
            pods.len() == 50 && pods.iter().all(is_bound)
        };
        bed.wait_for("production has its 50", all_bound).await;
        eprintln!("from the production job to its last bound pod: {:?}", began.elapsed());
        assert_eq!(indexes(&bed.pods.live("experiment")), (0..50).collect::<Vec<_>>());
        bed.wait_for_phase("production", Phase::Running).await;
        bed.wait_for_phase("experiment", Phase::Running).await;
        let status = bed.status("experiment").await;
        assert_eq!((status.roles[0].desired, status.restarts.crashed), (50, 0), "{status:#?}");

        bed.annotate(&bed.pods.live("production"), &runs_for("0s")).await;
        bed.wait_for_phase("production", Phase::Succeeded).await;
        bed.wait_for("the experiment uses all again", async || bed.pods.are_ready("experiment", 100)).await;
        assert_eq!(indexes(&bed.pods.live("experiment")), (0..100).collect::<Vec<_>>());
        // Each index from 50 up had two pods, and each index of the production job had one.
        let ever = |job: &str| bed.pods.ever().iter().filter(|pod| pod.job == job).count();
        assert_eq!((ever("experiment"), ever("production")), (150, 50));
    });
}

fn indexes(pods: &[Pod]) -> Vec<u32> {
    pods.iter().map(|pod| pod.index).collect()
}
