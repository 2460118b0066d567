//! The environments and files of every built-in type, compared with golden files.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;

/// The variables of every pod, and the files, as text.
fn shown(sample: &Sample, facts: &Facts) -> String {
    let rendered = sample.rendered();
    let renderer = Renderer::new(rendered, facts);
    let mut text = String::new();
    for role in &sample.job.roles {
        for index in 0..rendered.desired(role, facts) {
            let pod = renderer.pod(&role.name, index, 0, &Place::default()).expect("a pod");
            let spec = pod.spec.expect("a spec");
            writeln!(text, "== {}", spec.hostname.expect("a host name")).expect("a text");
            for one in spec.containers[0].env.iter().flatten() {
                writeln!(text, "{}={}", one.name, one.value.as_deref().unwrap_or("(from the pod)")).expect("a text");
            }
        }
    }
    let files = renderer.config_map().expect("files").and_then(|files| files.data).unwrap_or_default();
    for (key, content) in files {
        writeln!(text, "== file {key}\n{content}").expect("a text");
    }
    text
}

fn check(name: &str, kind: &str, fields: Value) {
    golden(&format!("{name}.env"), &shown(&Sample::of(kind, fields), &facts()));
}

#[test]
fn every_type_has_the_environment_of_its_golden_file() {
    check("single", "single", roles(&[("worker", 2, 2, 2)]));
    check("pytorch", "pytorch", roles(&[("worker", 3, 3, 3)]));
    let gpus = template(json!({"resources": {"limits": {"nvidia.com/gpu": 8}}, "ports": [
        {"name": "pytorchjob-port", "containerPort": 4000}
    ]}));
    let master = json!({"name": "master", "template": gpus});
    check("pytorch-master", "pytorch", json!({"roles": [{"name": "worker", "replicas": 2, "template": gpus}, master]}));
    check("pytorch-elastic", "pytorch-elastic", roles(&[("worker", 3, 2, 5)]));
    let all = [("chief", 1, 1, 1), ("ps", 2, 2, 2), ("worker", 2, 2, 2), ("evaluator", 1, 1, 1)];
    check("tensorflow", "tensorflow", roles(&all));
    check("tensorflow-worker", "tensorflow", roles(&[("worker", 2, 2, 2)]));
    check("tensorflow-sparse", "tensorflow", roles(&[("chief", 1, 1, 1), ("ps", 2, 2, 2), ("worker", 2, 1, 4)]));
    check("parameter-server", "parameter-server", roles(&[("server", 2, 2, 2), ("worker", 2, 1, 2)]));
    let scheduled = [("scheduler", 1, 1, 1), ("server", 1, 1, 1), ("worker", 2, 2, 2)];
    check("parameter-server-dmlc", "parameter-server", roles(&scheduled));
    check("mpi", "mpi", roles(&[("launcher", 1, 1, 1), ("worker", 2, 2, 2)]));
    check("horovod", "horovod", roles(&[("launcher", 1, 1, 1), ("worker", 3, 2, 4)]));
    check("deepspeed", "deepspeed", roles(&[("launcher", 1, 1, 1), ("worker", 2, 2, 2)]));
    check("jax", "jax", roles(&[("worker", 2, 2, 2)]));
    check("paddle", "paddle", roles(&[("worker", 2, 2, 2)]));
    check("xgboost", "xgboost", roles(&[("worker", 2, 2, 2)]));
    check("xgboost-master", "xgboost", roles(&[("master", 1, 1, 1), ("worker", 2, 2, 2)]));
    check("caffe2", "caffe2", roles(&[("worker", 2, 2, 2)]));
    check("caffe2-redis", "caffe2", roles(&[("redis", 1, 1, 1), ("worker", 2, 2, 2)]));
    check("notebook", "notebook", roles(&[("notebook", 1, 1, 1)]));
}

#[test]
fn files_follow_the_pods_that_there_are() {
    let sample = Sample::of("horovod", roles(&[("launcher", 1, 1, 1), ("worker", 4, 2, 4)]));
    let mut facts = facts();
    facts.desired.insert("worker".into(), 3);
    facts.ready.insert("worker".into(), BTreeSet::from([0, 2]));
    let files = Renderer::new(sample.rendered(), &facts).config_map().expect("rendered").expect("files");
    let files = files.data.expect("files");
    let hostfile = "train-worker-0.train.team-a.svc slots=1\ntrain-worker-1.train.team-a.svc slots=1\n\
                    train-worker-2.train.team-a.svc slots=1\n";
    assert_eq!(files["etc__mpi__hostfile"], hostfile);
    let ready = "#!/bin/sh\necho train-worker-0.train.team-a.svc:1\necho train-worker-2.train.team-a.svc:1\n";
    assert_eq!(files["etc__mpi__discover_hosts.sh"], ready);
    assert_eq!(files["larder-hosts"].lines().count(), 3);
}

#[test]
fn processes_are_those_that_the_template_says_or_its_gpus() {
    let processes = |container: Value, annotations: Value| {
        let template = object(template(container), json!({"metadata": {"annotations": annotations}}));
        let sample = Sample::of("pytorch", json!({"roles": [{"name": "worker", "replicas": 2, "template": template}]}));
        let facts = facts();
        let pod = Renderer::new(sample.rendered(), &facts).pod("worker", 1, 0, &Place::default()).expect("a pod");
        let env = pod.spec.expect("a spec").containers.remove(0).env.expect("variables");
        let of =
            |name: &str| env.iter().find(|one| one.name == name).and_then(|one| one.value.clone()).expect("a value");
        (of("PET_NPROC_PER_NODE"), of("WORLD_SIZE"), of("RANK"))
    };
    let texts = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(processes(json!({}), json!({})), texts("1", "2", "1"));
    let gpus = json!({"resources": {"limits": {"nvidia.com/gpu": "4", "rdma/hca": 1}}});
    assert_eq!(processes(gpus.clone(), json!({})), texts("4", "8", "1"));
    assert_eq!(processes(gpus, json!({"larder.dev/processes-per-pod": "2"})), texts("2", "4", "1"));
}

#[test]
fn variables_that_the_job_sets_itself_stay() {
    let container = json!({"env": [{"name": "MASTER_PORT", "value": "1"}, {"name": "A", "value": "$(RANK)"}]});
    let sample = Sample::of("pytorch", json!({"roles": [{"name": "worker", "template": template(container)}]}));
    let facts = facts();
    let pod = Renderer::new(sample.rendered(), &facts).pod("worker", 0, 0, &Place::default()).expect("a pod");
    let env = pod.spec.expect("a spec").containers.remove(0).env.expect("variables");
    let of = |name: &str| env.iter().position(|one| one.name == name).expect("a variable");
    assert_eq!(env[of("MASTER_PORT")].value.as_deref(), Some("1"));
    assert_eq!(env.iter().filter(|one| one.name == "MASTER_PORT").count(), 1);
    assert!(of("RANK") < of("A"), "a variable can refer to those before it");
}

#[test]
fn a_gang_of_thousands_is_rendered() {
    let sample = Sample::of("tensorflow", roles(&[("ps", 10, 10, 10), ("worker", 1_000, 1_000, 1_000)]));
    let facts = facts();
    let renderer = Renderer::new(sample.rendered(), &facts);
    let pod = renderer.pod("worker", 999, 0, &Place::default()).expect("a pod");
    let env = pod.spec.expect("a spec").containers.remove(0).env.expect("variables");
    let config = env.iter().find(|one| one.name == "TF_CONFIG").and_then(|one| one.value.as_deref()).expect("a value");
    let config: Value = serde_json::from_str(config).expect("JSON");
    assert_eq!(config["cluster"]["worker"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(config["task"], json!({"type": "worker", "index": 999}));
    let mpi = Sample::of("mpi", roles(&[("launcher", 1, 1, 1), ("worker", 5_000, 5_000, 5_000)]));
    let files = Renderer::new(mpi.rendered(), &facts).config_map().expect("rendered").expect("files");
    let bytes: usize = files.data.iter().flatten().map(|(_, text)| text.len()).sum();
    assert!(bytes < 1 << 20, "a ConfigMap holds {bytes} bytes");
}
