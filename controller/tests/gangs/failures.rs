//! Nodes that fail under a job.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use larder_api::Phase;
use larder_kube::api::ListParams;
use larder_kube::kinds::Kind;
use serde_json::json;

use crate::bed::{Bed, Role, TEAM, in_cluster, runs_for};
use crate::pods::Pod;

/// The live pod of an index.
fn at(bed: &Bed, job: &str, role: &str, index: u32) -> Pod {
    let pod = bed.pods.live(job).into_iter().find(|pod| pod.role == role && pod.index == index);
    pod.unwrap_or_else(|| panic!("{job} has no {role} {index}"))
}

// SEMANTICS: J5
#[test]
fn an_outage_of_most_nodes_costs_no_pod_and_a_node_that_stays_away_is_lost_afterwards() {
    in_cluster(&[1; 6], async |bed| {
        let _controller = bed.start("a");
        let mut spec = Role { name: "worker", replicas: 4, gpus: 1, ..Role::default() }.job("single");
        spec["restart"] = json!({"nodeLostAfter": "10s"});
        bed.job("train", spec).await;
        bed.wait_for_phase("train", Phase::Running).await;
        let before = bed.pods.live("train");
        let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.uid.clone()).collect::<BTreeSet<String>>();
        for pod in &before {
            bed.lose(&pod.node).await;
        }
        // Longer than one node may be away, and longer than a new controller waits.
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(uids(&bed.pods.live("train")), uids(&before));
        for pod in &before[1..] {
            bed.find(&pod.node).await;
        }
        let is_replaced =
            async || bed.pods.are_ready("train", 4) && !uids(&bed.pods.live("train")).contains(&before[0].uid);
        bed.wait_for("the pod of the node that stays away runs elsewhere", is_replaced).await;
        assert!(uids(&bed.pods.live("train")).is_superset(&uids(&before[1..])), "the others go on");
    });
}

// SEMANTICS: J5
#[test]
fn pods_of_a_dead_node_are_replaced_elsewhere_and_one_stuck_there_blocks_nothing() {
    // A pod fills a node, and two nodes are spare.
    in_cluster(&[1; 6], async |bed| {
        let controller = bed.start("a");
        let stuck = json!({"test.larder.dev/leaves-after": "24h"});
        let role = |name| Role { name, replicas: 1, gpus: 1, annotations: stuck.clone(), ..Role::default() };
        let loose = Role { replicas: 2, ..role("worker") };
        bed.job("loose", loose.job("single")).await;
        let gang = json!({"type": "pytorch", "roles": [role("master").json(), role("worker").json()]});
        bed.job("gang", gang).await;
        for job in ["loose", "gang"] {
            bed.wait_for_phase(job, Phase::Running).await;
        }
        let (lost_loose, lost_gang) = (at(bed, "loose", "worker", 1), at(bed, "gang", "worker", 0));
        let (kept, master) = (at(bed, "loose", "worker", 0), at(bed, "gang", "master", 0));
        for pod in [&lost_loose, &lost_gang] {
            bed.lose(&pod.node).await;
        }
        let began = Instant::now();
        // The gang's other pod is stuck like the lost one. The test terminates it, as its kubelet would.
        let is_new = |job: &str, count: usize| {
            bed.pods.are_ready(job, count)
                && bed
                    .pods
                    .live(job)
                    .iter()
                    .all(|pod| ![&lost_loose, &lost_gang, &master].iter().any(|old| old.uid == pod.uid))
        };
        bed.wait_for("the loose pod runs elsewhere", async || is_new("loose", 2)).await;
        eprintln!("replaced {:?} after the node was not ready", began.elapsed());
        assert_eq!(at(bed, "loose", "worker", 0).uid, kept.uid);
        bed.wait_for("the gang's master ends", async || !bed.pods.live("gang").iter().any(|pod| pod.uid == master.uid))
            .await;
        bed.annotate(std::slice::from_ref(&master), &json!({"test.larder.dev/leaves-after": "0s"})).await;
        bed.wait_for("the gang runs elsewhere", async || is_new("gang", 2)).await;
        for job in ["loose", "gang"] {
            bed.wait_for_phase(job, Phase::Running).await;
            let restarts = bed.status(job).await.restarts;
            assert_eq!((restarts.node_lost, restarts.total()), (1, 1), "{job}: {restarts:?}");
            let dead = [&lost_loose.node, &lost_gang.node];
            assert!(bed.pods.live(job).iter().all(|pod| !dead.contains(&&pod.node)), "{:#?}", bed.pods.live(job));
        }
        // The lost pods still exist. This also holds after a restart of the controller.
        let only_the_lost_are_stuck = async || {
            let pods = bed.api(Kind::Pod, TEAM).list(&ListParams::default()).await.expect("a list");
            pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count() == 2
        };
        bed.wait_for("the lost pods alone still exist", only_the_lost_are_stuck).await;
        controller.kill();
        let _controller = bed.start("a");
        for job in ["loose", "gang"] {
            // The controller deletes a worker that runs longer than its master.
            let live = bed.pods.live(job);
            bed.annotate(&live, &json!({"test.larder.dev/leaves-after": "0s"})).await;
            bed.annotate(&live, &runs_for("0s")).await;
            bed.wait_for_phase(job, Phase::Succeeded).await;
        }
        bed.wait_for("the lost pods alone still exist", only_the_lost_are_stuck).await;
        bed.delete(Kind::TrainingJob, "loose").await;
        bed.wait_for("the job is gone", async || bed.jobs().get_opt("loose").await.expect("an answer").is_none()).await;
        // The node returns and accepts pods again.
        bed.find(&lost_loose.node).await;
        let next = Role { name: "worker", replicas: 5, gpus: 1, annotations: runs_for("0s"), ..Role::default() };
        bed.annotate(std::slice::from_ref(&lost_loose), &json!({"test.larder.dev/leaves-after": "0s"})).await;
        bed.job("next", next.job("single")).await;
        bed.wait_for_phase("next", Phase::Succeeded).await;
    });
}
