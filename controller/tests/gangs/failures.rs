//! Nodes that fail under a job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_api::Phase;
use larder_kube::api::ListParams;
use larder_kube::kinds::Kind;
use larder_testkit::scaled;
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
        tokio::time::sleep(Duration::from_secs(75)).await;
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

/// Nodes of an outage of all nodes, each with room for this many jobs of one pod.
const NODES: usize = 10;
const JOBS_OF_NODE: u32 = 5;

/// The jobs during such an outage and its seconds, in an ordinary run and at most.
const JOBS: (u32, u32) = (5, 50);
const OUTAGE_SECONDS: (u32, u32) = (30, 300);

// SEMANTICS: J5
#[test]
fn an_outage_of_all_nodes_replaces_no_pod_of_many_jobs() {
    in_cluster(&[JOBS_OF_NODE; NODES], async |bed| {
        let _controller = bed.start("a");
        let (jobs, seconds) = (scaled(JOBS.0).min(JOBS.1), scaled(OUTAGE_SECONDS.0).min(OUTAGE_SECONDS.1));
        eprintln!("{jobs} jobs, {seconds} s");
        let names: Vec<String> = (0..jobs).map(|nth| format!("job-{nth}")).collect();
        for (nth, name) in names.iter().enumerate() {
            let mut spec = Role { name: "worker", replicas: 1, gpus: 1, ..Role::default() }.job("single");
            // The others have the default, which is longer than an ordinary run of this test.
            if nth % 2 == 0 {
                spec["restart"] = json!({"nodeLostAfter": "10s"});
            }
            bed.job(name, spec).await;
        }
        for name in &names {
            bed.wait_for_phase(name, Phase::Running).await;
        }
        let before: BTreeSet<String> = names.iter().flat_map(|name| bed.pods.live(name)).map(|pod| pod.uid).collect();
        assert_eq!(before.len(), jobs as usize);
        let (is_over, firsts) = (Arc::new(AtomicBool::new(false)), before.clone());
        let may_end = Arc::clone(&is_over);
        bed.pods.require(move |pods, _| {
            let ended = firsts.iter().find(|uid| !pods[*uid].is_live());
            let other = pods.values().find(|pod| !firsts.contains(&pod.uid));
            let wrong = ended.map(|uid| format!("{} ended", pods[uid].name));
            let wrong = wrong.or_else(|| other.map(|pod| format!("{} was made", pod.name)));
            wrong.filter(|_| !may_end.load(Ordering::Relaxed))
        });
        let nodes: Vec<String> = (0..NODES).map(|nth| format!("f{nth}")).collect();
        for node in &nodes {
            bed.lose(node).await;
        }
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        bed.pods.assert_rules();
        for node in &nodes {
            bed.find(node).await;
        }
        let is_ready = |node: &serde_json::Value| node["status"]["conditions"].to_string().contains("KubeletReady");
        bed.wait_for("the nodes are back", async || bed.list(Kind::Node).await.iter().all(is_ready)).await;
        for name in &names {
            let status = bed.status(name).await;
            assert_eq!((status.phase, status.restarts.total()), (Some(Phase::Running), 0), "{name}: {status:#?}");
        }
        is_over.store(true, Ordering::Relaxed);
        for name in &names {
            bed.annotate(&bed.pods.live(name), &runs_for("0s")).await;
        }
        for name in &names {
            bed.wait_for_phase(name, Phase::Succeeded).await;
        }
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
