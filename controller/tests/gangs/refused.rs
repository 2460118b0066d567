//! Jobs that cannot run report why immediately, and delay no other job.

use larder_api::training_job::conditions::{JobConditionKind, JobReason};
use larder_api::{Phase, TrainingJob};
use larder_kube::api::Api;
use larder_kube::kinds::Kind;
use serde_json::{Value, json};

use crate::bed::{Role, TEAM, in_cluster, runs_for};

// SEMANTICS: J7
#[test]
fn a_bad_job_says_what_is_wrong_with_it_and_good_ones_beside_it_run() {
    in_cluster(&[4; 2], async |bed| {
        bed.namespace("restricted", json!({"pod-security.kubernetes.io/enforce": "restricted"})).await;
        bed.namespace("limited", json!({})).await;
        let limits = json!({"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}});
        bed.limit("limited", limits).await;
        bed.queue("lab", json!({"nominal": 8}), None).await;
        let _controller = bed.start("a");
        let role = Role { name: "worker", replicas: 1, gpus: 1, annotations: runs_for("0s"), ..Role::default() };
        let with = |fields: Value| {
            let mut spec = role.job("single");
            spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            spec
        };
        let mut privileged = role.job("single");
        privileged["roles"][0]["template"]["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        let dataset = json!({"datasets": [{"name": "nobody/has", "mountPath": "/d"}]});
        let bad = [
            ("restricted", privileged, JobReason::PodRefused, "privileged"),
            ("limited", role.job("single"), JobReason::PodRefused, "maximum memory usage per Container is 1Gi"),
            (TEAM, with(dataset), JobReason::DatasetNotGranted, "may not use the dataset nobody/has"),
            (TEAM, with(json!({"queue": "nowhere"})), JobReason::QueueNotGranted, "may not use the queue nowhere"),
            ("limited", with(json!({"queue": "lab"})), JobReason::QueueNotGranted, "may not use the queue lab"),
        ];
        for (nth, (namespace, spec, ..)) in bad.iter().enumerate() {
            bed.job(&format!("good-{nth}"), role.job("single")).await;
            let job = json!({"metadata": {"name": format!("bad-{nth}")}, "spec": spec});
            bed.create(Kind::TrainingJob, namespace, job).await.expect("the API server takes it");
        }
        for (nth, (namespace, _, reason, words)) in bad.iter().enumerate() {
            let jobs: Api<TrainingJob> = bed.jobs_of(namespace);
            let name = format!("bad-{nth}");
            let says = async || {
                let status = jobs.get(&name).await.expect("a job").status.unwrap_or_default();
                let valid = JobConditionKind::Valid.find(&status.conditions).cloned();
                valid.is_some_and(|valid| {
                    valid.status == "False" && valid.reason == reason.as_str() && valid.message.contains(words)
                })
            };
            bed.wait_for(&format!("{name} of {namespace} says {reason:?}: {words}"), says).await;
            bed.wait_for_phase(&format!("good-{nth}"), Phase::Succeeded).await;
        }
        assert!(bed.pods.ever().iter().all(|pod| !pod.job.starts_with("bad")));

        // The missing object is created, and the job runs.
        let queue = json!({"metadata": {"name": "nowhere"}, "spec": {"namespaces": ["*"]}});
        bed.create(Kind::JobQueue, "", queue).await.expect("a Queue");
        bed.wait_for_phase("bad-3", Phase::Succeeded).await;
    });
}
