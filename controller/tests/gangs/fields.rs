//! Pods of jobs have no managed fields.

use std::cell::Cell;

use larder_kube::ResourceExt;
use larder_kube::kinds::Kind;
use serde_json::json;

use crate::bed::{Role, TEAM, in_cluster};

#[test]
fn pods_of_jobs_have_no_managed_fields_even_after_others_have_changed_them() {
    in_cluster(&[8], async |bed| {
        let _controller = bed.start("a");
        // A policy takes effect some time after it was applied.
        let nth = Cell::new(0);
        let have_none = async || {
            nth.set(nth.get() + 1);
            let job = format!("job-{}", nth.get());
            bed.job(&job, Role { name: "worker", replicas: 1, ..Role::default() }.job("single")).await;
            bed.wait_for("its pod is ready", async || bed.pods.are_ready(&job, 1)).await;
            // kwok has written its status, and this changes its metadata.
            let pods = bed.pods.live(&job);
            bed.annotate(&pods, &json!({"changed": "true"})).await;
            let pod = bed.api(Kind::Pod, TEAM).get(&pods[0].name).await.expect("a pod");
            pod.managed_fields().is_empty()
        };
        bed.wait_for("a pod has none", have_none).await;
        bed.foreign("foreign", 0, json!({})).await;
        let foreign = bed.api(Kind::Pod, TEAM).get("foreign").await.expect("a pod");
        assert!(!foreign.managed_fields().is_empty(), "pods of others keep theirs");
    });
}
