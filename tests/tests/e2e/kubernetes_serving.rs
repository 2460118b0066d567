//! A model server as `larder example model-server` prints it: it starts once its node has most of the model.

use std::process::Command;

use larder_e2e::BUCKET;
use larder_e2e::platform::{Platform, TIMEOUT};
use larder_testkit::{Cluster, larder_binary};
use serde_json::{Value, json};

/// Files of the model, each of one block, and its bytes of each tensor.
const SHARDS: usize = 10;
const TENSOR_BYTES: usize = 3_000;

/// Loads every tensor of every file by mapping it, says what it has, and serves nothing.
const SERVER: &str = r#"
import json, mmap, pathlib, struct, time
for path in sorted(pathlib.Path("/model").rglob("f*")):
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    data = 8 + struct.unpack("<Q", mapped[:8])[0]
    for name, tensor in json.loads(mapped[8:data]).items():
        begin, end = tensor["data_offsets"]
        print(name, sum(mapped[data + begin:data + end]), flush=True)
pathlib.Path("/tmp/loaded").touch()
time.sleep(1e6)
"#;

/// A tensor of a file.
fn tensor(shard: usize, number: usize) -> Vec<u8> {
    (0..TENSOR_BYTES).map(|at| (at * (2 * shard + 3) + number) as u8).collect()
}

/// A file in the safetensors format with two tensors.
fn shard(shard: usize) -> Vec<u8> {
    let entry = |number: usize| {
        let offsets = [number * TENSOR_BYTES, (number + 1) * TENSOR_BYTES];
        json!({"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": offsets})
    };
    let header = json!({format!("{shard}.norm"): entry(0), format!("{shard}.weight"): entry(1)}).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &tensor(shard, 0)[..], &tensor(shard, 1)[..]].concat()
}

/// The lines that the server prints.
fn expected() -> Vec<String> {
    let sum = |shard, number| tensor(shard, number).iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let mut lines: Vec<String> = (0..SHARDS)
        .flat_map(|it| [format!("{it}.norm {}", sum(it, 0)), format!("{it}.weight {}", sum(it, 1))])
        .collect();
    lines.sort_unstable();
    lines
}

/// The objects of the example. The server is ours, needs no GPU, and follows nothing; its nodes have nothing before it.
fn example(platform: &Platform) -> Vec<Value> {
    let (source, endpoint) = (platform.source("model"), platform.endpoint());
    let flags =
        ["--source", &source, "--endpoint", &endpoint, "-n", platform.namespace(), "--image", Cluster::TRAINING];
    let output = Command::new(larder_binary()).args(["example", "model-server"]).args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap().replace("bucket-reader", "origin");
    let mut objects: Vec<Value> = serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect();
    for object in &mut objects {
        match object["kind"].as_str().unwrap() {
            "Dataset" => object["spec"]["nodes"]["count"] = json!(0),
            "Deployment" => {
                object["metadata"]["annotations"] = json!({});
                object["spec"]["replicas"] = json!(1);
                let pod = &mut object["spec"]["template"]["spec"];
                pod["terminationGracePeriodSeconds"] = json!(1);
                let server = pod["containers"][0].as_object_mut().unwrap();
                for field in ["args", "ports", "resources"] {
                    server.remove(field).unwrap();
                }
                server.insert("command".to_owned(), json!(["python3", "-c", SERVER]));
                let probe = json!({"exec": {"command": ["cat", "/tmp/loaded"]}, "periodSeconds": 1});
                server.insert("readinessProbe".to_owned(), probe);
            }
            _ => {}
        }
    }
    objects
}

#[test]
fn a_model_server_starts_once_its_node_has_nine_tenths_of_the_model() {
    let platform = Platform::start_jobs("serving");
    let cluster = &platform.cluster;
    let files = platform.put_dataset("model", SHARDS, shard);
    let paths: Vec<&String> = files.keys().collect();
    let (missing, present) = paths.split_at(3);
    let apply = |object: &Value| cluster.apply(&format!("---\n{object}\n"));
    let objects = example(&platform);
    let (datasets, others): (Vec<_>, Vec<_>) = objects.iter().partition(|object| object["kind"] == "Dataset");
    cluster.apply(&platform.secret(platform.namespace()));
    datasets.into_iter().for_each(apply);
    cluster.wait_for("the dataset is imported", TIMEOUT, || {
        let column = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        platform.kubectl(&["get", "dset", "model", "-o", column]) == "True"
    });

    // Three files of ten cannot be fetched: the server does not start.
    for path in missing {
        assert!(platform.server.delete(BUCKET, &format!("{}/model/{path}", platform.namespace())));
    }
    others.into_iter().for_each(apply);
    let pod = || {
        let pods = cluster.get_json(&["pods", "-n", platform.namespace(), "-l", "app=model-server"]);
        pods["items"][0]["status"].clone()
    };
    cluster.wait_for("the pod says what is missing", TIMEOUT, || {
        let gate = pod()["initContainerStatuses"][0].clone();
        let said = ["state", "lastState"].map(|state| gate[state]["terminated"]["message"].clone());
        said.iter().any(|said| said.as_str().is_some_and(|said| said.contains("this node has 7 of 10 blocks, 3 could")))
    });
    let server = pod()["containerStatuses"][0].clone();
    assert_eq!((&server["started"], &server["restartCount"]), (&json!(false), &json!(0)), "{server:#}");

    // They are back: it starts, with every tensor.
    for (number, path) in (0..SHARDS).map(|number| (number, format!("d{}/f{number}", number % 5))) {
        if missing.contains(&&path) {
            platform.server.put(BUCKET, &format!("{}/model/{path}", platform.namespace()), shard(number));
        }
    }
    cluster.wait_for("the server is ready", TIMEOUT, || {
        platform.kubectl(&["get", "deployment", "model-server", "-o", "jsonpath={.status.readyReplicas}"]) == "1"
    });
    let said = platform.kubectl(&["logs", "deployment/model-server", "-c", "server"]);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, expected());
    for path in present {
        assert_eq!(platform.gets_of("model", path), 1, "{path} was fetched once, before the server read it");
    }
    platform.kubectl(&["delete", "deployment,dset", "--all"]);
}
