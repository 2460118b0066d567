//! Training jobs in real pods: the frameworks' own engines, over a Dataset that Larder mounts, placed by the real
//! controller and the real scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use larder_e2e::platform::{Platform, TIMEOUT};
use larder_testkit::Cluster;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

/// More than half of what a node has, so that two such pods are on two nodes.
const MOST_OF_A_NODE: &str = "800m";

/// Files of a Dataset and the bytes of each.
const FILES: usize = 24;

/// Files that the training program reads a step.
const BATCH: u64 = 12;

fn bytes(file: usize) -> Vec<u8> {
    (0..5_000 + file * 100).map(|at| (at * (file + 3)) as u8).collect()
}

/// What the training program has added up after so many steps.
fn sum_after(steps: u64) -> u64 {
    // The program sorts the paths; see `Platform::put_dataset` for them.
    let files: BTreeMap<String, u64> =
        (0..FILES).map(|i| (format!("d{}/f{i}", i % 5), bytes(i).iter().map(|byte| u64::from(*byte)).sum())).collect();
    let sums: Vec<u64> = files.into_values().collect();
    (0..steps * BATCH).map(|at| sums[at as usize % FILES]).sum()
}

struct Lab {
    platform: Platform,
    out: PathBuf,
}

impl Lab {
    /// A namespace with the programs, and with the Dataset `set`.
    fn start(test: &str) -> Self {
        let platform = Platform::start_jobs(test);
        let out = platform.cluster.note(&format!("out-{test}"));
        std::fs::create_dir_all(&out).unwrap();
        rustix::fs::chmod(&out, 0o777.into()).unwrap();
        let lab = Self { platform, out };
        lab.apply(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "programs"},
            "data": Platform::training_programs(),
        }));
        lab
    }

    fn with_data(test: &str) -> Self {
        let lab = Self::start(test);
        let platform = &lab.platform;
        platform.put_dataset("set", FILES, bytes);
        platform.cluster.apply(&platform.secret(platform.namespace()));
        lab.apply(&json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "Dataset",
            "metadata": {"name": "set"},
            "spec": {"origin": {
                "source": platform.source("set"),
                "endpoint": platform.endpoint(),
                "secretRef": {"name": "origin"},
            }},
        }));
        lab
    }

    fn apply(&self, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["namespace"] = self.platform.namespace().into();
        self.platform.cluster.apply(&object.to_string());
    }

    /// Applies a job whose roles run these commands with these resources.
    fn job(&self, name: &str, kind: &str, roles: &[Value], more: &Value) {
        let mut spec = json!({"type": kind, "roles": roles});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(&json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": spec,
        }));
    }

    /// A role whose pods run a command as nobody in particular.
    fn role(&self, name: &str, replicas: u32, cpu: &str, command: &[&str]) -> Value {
        json!({
            "name": name,
            "replicas": replicas,
            "template": {"spec": {
                "terminationGracePeriodSeconds": 2,
                "securityContext": {"runAsUser": 65532, "runAsGroup": 65532},
                "containers": [{
                    "name": "main",
                    "image": Cluster::TRAINING,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "resources": {"limits": {"cpu": cpu, "memory": "600Mi"}},
                    "volumeMounts": [
                        {"name": "programs", "mountPath": "/programs"},
                        {"name": "out", "mountPath": "/out"},
                    ],
                }],
                "volumes": [
                    {"name": "programs", "configMap": {"name": "programs"}},
                    {"name": "out", "hostPath": {"path": self.out}},
                ],
            }},
        })
    }

    fn status(&self, job: &str) -> Value {
        let told = self.platform.kubectl(&["get", "tj", job, "-o", "json"]);
        let job: Value = serde_json::from_str(&told).unwrap_or_default();
        job["status"].clone()
    }

    fn phase(&self, job: &str) -> String {
        self.status(job)["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// How many pods of a job were replaced, by cause.
    fn restarts(&self, job: &str) -> Vec<(String, u64)> {
        let status = self.status(job);
        let counts = status["restarts"].as_object().cloned().unwrap_or_default().into_iter();
        counts.filter_map(|(cause, count)| Some((cause, count.as_u64().filter(|count| *count > 0)?))).collect()
    }

    fn wait_for_phase(&self, job: &str, phase: &str) {
        self.platform.cluster.wait_for(&format!("{job} is {phase}: {}", self.status(job)), TIMEOUT, || {
            let now = self.phase(job);
            assert!(now == phase || now != "Failed", "{job} failed: {}\n{}", self.status(job), self.all_logs(job));
            now == phase
        });
    }

    /// The pods of a job: name and node.
    fn pods(&self, job: &str) -> BTreeMap<String, String> {
        let label = format!("larder.dev/job={job}");
        let told = self.platform.kubectl(&["get", "pods", "-l", &label, "-o", "json"]);
        let pods: Value = serde_json::from_str(&told).unwrap_or_default();
        let of = |pod: &Value| {
            let text = |at: &str| pod.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
            (text("/metadata/name"), text("/spec/nodeName"))
        };
        pods["items"].as_array().into_iter().flatten().map(of).collect()
    }

    fn all_logs(&self, job: &str) -> String {
        self.pods(job).keys().map(|pod| format!("--- {pod}\n{}", self.platform.logs(pod))).collect()
    }

    /// The lines of JSON that the pods of a job printed.
    fn said(&self, job: &str) -> Vec<Value> {
        let logs = self.all_logs(job);
        // torchrun and mpirun put a prefix before each.
        let line = |line: &str| serde_json::from_str(&line[line.find('{')?..]).ok();
        logs.lines().filter_map(line).collect()
    }

    /// The lines that the training program wrote to its folder.
    fn recorded(&self) -> Vec<Value> {
        let entries = std::fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap().path());
        let records = entries.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
        let texts: String = records.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        texts.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// `torchrun` of PyTorch 1.13 fails on Python 3.11 without the first two flags.
const TORCHRUN: [&str; 8] =
    ["torchrun", "--redirects=1", "--tee=1", "/programs/train.py", "--data=/set", "--out=/out", "--steps", "6"];

#[test]
fn seed_000_torchrun_reads_a_mounted_dataset_from_pods_on_two_nodes() {
    let lab = Lab::with_data("torchrun");
    let worker = lab.role("worker", 2, MOST_OF_A_NODE, &TORCHRUN);
    lab.job("train", "pytorch", &[worker], &json!({"datasets": [{"name": "set", "mountPath": "/set"}]}));
    lab.wait_for_phase("train", "Succeeded");
    let nodes: BTreeSet<String> = lab.pods("train").into_values().collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    let ends: Vec<Value> = lab.recorded().into_iter().filter(|line| line["event"] == "end").collect();
    assert_eq!(ends.len(), 2, "{ends:?}");
    for end in &ends {
        assert_eq!((&end["world"], &end["step"], &end["sum"]), (&json!(2), &json!(6), &json!(sum_after(6))), "{end}");
    }
    assert_eq!(lab.restarts("train"), []);
}

#[test]
fn seed_000_mpirun_starts_its_ranks_by_the_agent_as_any_user() {
    let lab = Lab::start("mpirun");
    let run = ["mpirun", "-np", "2", "--map-by", "node", "python3", "/programs/ranks.py"];
    let launcher = lab.role("launcher", 1, "100m", &run);
    let mut worker = lab.role("worker", 2, "300m", &[]);
    worker.pointer_mut("/template/spec/containers/0").unwrap().as_object_mut().unwrap().remove("command");
    lab.job("ranks", "mpi", &[launcher, worker], &json!({}));
    lab.wait_for_phase("ranks", "Succeeded");
    let said = lab.said("ranks");
    let expected = json!({
        "size": 2, "sum": 1, "hosts": ["ranks-worker-0", "ranks-worker-1"], "uid": 65532,
    });
    assert!(said.contains(&expected), "{}", lab.all_logs("ranks"));
}

#[test]
fn seed_000_all_tasks_of_tf_config_reach_each_other() {
    let lab = Lab::start("tasks");
    let role = |name: &str, replicas| lab.role(name, replicas, "100m", &["python3", "/programs/tasks.py", "120"]);
    let roles = [role("chief", 1), role("ps", 1), role("worker", 2)];
    lab.job("tasks", "tensorflow", &roles, &json!({"keepPods": "all"}));
    lab.wait_for_phase("tasks", "Succeeded");
    let all = ["chief-0", "ps-0", "worker-0", "worker-1"];
    // Workers may go on after the chief has ended.
    lab.platform.cluster.wait_for("all tasks have reached all others", TIMEOUT, || {
        let said = lab.said("tasks");
        all.iter().all(|task| {
            let others: Vec<&&str> = all.iter().filter(|other| *other != task).collect();
            said.contains(&json!({"task": task, "reached": others}))
        })
    });
}

/// The ranks of JAX, Paddle and XGBoost find each other by the variables of their types.
#[test]
fn the_ranks_of_every_framework_meet_at_their_first_pod() {
    let lab = Lab::start("ranks-meet");
    for (kind, first) in [("jax", "worker"), ("paddle", "worker"), ("xgboost", "master"), ("xgboost", "worker")] {
        let name = format!("{kind}-{first}");
        let role =
            |name: &str, replicas| lab.role(name, replicas, "100m", &["python3", "/programs/meet.py", kind, "120"]);
        let roles =
            if first == "master" { vec![role("master", 1), role("worker", 2)] } else { vec![role("worker", 3)] };
        lab.job(&name, kind, &roles, &json!({}));
        lab.wait_for_phase(&name, "Succeeded");
        let said = lab.said(&name);
        assert!(said.contains(&json!({"rank": 0, "size": 3, "called": [1, 2]})), "{name}: {said:?}");
        lab.platform.kubectl(&["delete", "tj", &name]);
    }
}

#[test]
fn the_launcher_of_deepspeed_finds_its_workers_in_its_hostfile() {
    let lab = Lab::start("deepspeed");
    // As `deepspeed --launcher openmpi` calls it.
    let run =
        ["mpirun", "-n", "2", "-hostfile", "/job/hostfile", "--map-by", "node", "python3", "-u", "/programs/ranks.py"];
    let launcher = lab.role("launcher", 1, "100m", &run);
    let mut worker = lab.role("worker", 2, "300m", &[]);
    worker.pointer_mut("/template/spec/containers/0").unwrap().as_object_mut().unwrap().remove("command");
    lab.job("ranks", "deepspeed", &[launcher, worker], &json!({}));
    lab.wait_for_phase("ranks", "Succeeded");
    let expected = json!({"size": 2, "sum": 1, "hosts": ["ranks-worker-0", "ranks-worker-1"], "uid": 65532});
    assert!(lab.said("ranks").contains(&expected), "{}", lab.all_logs("ranks"));
}

// SEMANTICS: J30
#[test]
fn exit_codes_of_real_pods_follow_the_rules_and_containers_restart_in_place() {
    let lab = Lab::start("exit-codes");
    let sh = |name: &str, replicas, text: &str| lab.role(name, replicas, "100m", &["sh", "-c", text]);
    let rules = json!([{"exitCodes": "2", "action": "fail"}, {"exitCodes": "3", "action": "ignore"}]);
    lab.job("typo", "single", &[sh("worker", 1, "exit 2")], &json!({"restart": {"maxCrashes": 9, "rules": rules}}));
    lab.platform.cluster.wait_for("the job has failed", TIMEOUT, || lab.phase("typo") == "Failed");
    assert_eq!(lab.restarts("typo"), [("crashed".to_owned(), 1)]);
    // The first time that it runs, its file is not there.
    let once = |name: &str, code: u8| format!("[ -e /out/{name} ] || {{ touch /out/{name}; exit {code}; }}");
    let ignored = json!({"restart": {"maxCrashes": 0, "rules": rules}});
    lab.job("ignored", "single", &[sh("worker", 1, &once("ignored", 3))], &ignored);
    lab.job(
        "kept",
        "single",
        &[sh("worker", 1, &once("kept", 1))],
        &json!({"restart": {"maxCrashes": 0, "inPlace": 1}}),
    );
    lab.wait_for_phase("ignored", "Succeeded");
    lab.wait_for_phase("kept", "Succeeded");
    assert_eq!(lab.restarts("ignored"), [("crashed".to_owned(), 1)]);
    assert_eq!(lab.restarts("kept"), []);
    assert!(lab.pods("kept").contains_key("kept-worker-0-1"), "the kubelet restarted it in its first pod");
}

// SEMANTICS: J32
#[test]
fn a_role_that_starts_after_another_one_finds_it_done() {
    let lab = Lab::start("order");
    let sh = |name: &str, text: &str| lab.role(name, 1, "100m", &["sh", "-c", text]);
    let mut worker = sh("worker", "cat /out/prepared");
    worker["startsAfter"] = json!([{"role": "server", "until": "done"}]);
    let roles = [sh("server", "sleep 5; echo done >/out/prepared"), worker];
    lab.job("train", "parameter-server", &roles, &json!({"restart": {"maxCrashes": 0}, "keepPods": "all"}));
    lab.platform
        .cluster
        .wait_for("the worker has read it", TIMEOUT, || lab.all_logs("train").contains("worker-0-1\ndone"));
}

// SEMANTICS: J36
#[test]
fn seed_004_each_worker_reads_its_share_of_the_files_of_a_dataset() {
    let lab = Lab::with_data("split");
    let read = r#"while read -r file; do cat "$file" >/dev/null; printf '{"file": "%s"}\n' "$file"; done <"$LARDER_SPLIT_FILES""#;
    let worker = lab.role("worker", 3, "100m", &["sh", "-ec", read]);
    let split = json!({"datasets": [{"name": "set", "mountPath": "/set", "split": true}]});
    lab.job("train", "single", &[worker], &split);
    lab.wait_for_phase("train", "Succeeded");
    let said: Vec<String> =
        lab.said("train").iter().filter_map(|line| Some(line["file"].as_str()?.to_owned())).collect();
    let files: BTreeSet<String> = (0..FILES).map(|file| format!("/set/d{}/f{file}", file % 5)).collect();
    assert_eq!(said.len(), FILES, "no file is read twice: {said:?}");
    assert_eq!(said.into_iter().collect::<BTreeSet<_>>(), files);
    let shares = lab.pods("train").into_keys().map(|pod| lab.platform.logs(&pod).lines().count());
    assert_eq!(shares.collect::<Vec<_>>(), [FILES / 3; 3]);
}

// SEMANTICS: J33
#[test]
fn a_sweep_of_real_pods_stops_at_a_number_in_a_termination_message() {
    let lab = Lab::with_data("sweep");
    let run = "cat /set/d0/f0 >/dev/null; echo $LR >/dev/termination-log";
    let worker = lab.role("worker", 1, "100m", &["sh", "-ec", run]);
    let grid = json!([{"name": "LR", "values": ["0.5", "0.4", "0.1", "0.3", "0.2"]}]);
    let sweep = json!({"grid": grid, "parallelism": 1, "objective": {"goal": "minimize", "target": "0.1"}});
    let datasets = json!([{"name": "set", "mountPath": "/set"}]);
    lab.job("tune", "single", &[worker], &json!({"sweep": sweep, "datasets": datasets}));
    lab.wait_for_phase("tune", "Succeeded");
    let sweep = lab.status("tune")["sweep"].clone();
    assert_eq!(sweep["best"], json!({"name": "tune-2", "result": "0.1", "parameters": {"LR": "0.1"}}), "{sweep}");
    assert_eq!(lab.status("tune-1")["result"], "0.4");
    lab.platform.kubectl(&["wait", "--for=condition=Complete", "tj/tune", "--timeout=60s"]);
    lab.platform.kubectl(&["delete", "tj", "tune"]);
    lab.platform.cluster.wait_for("its trials are gone", TIMEOUT, || lab.phase("tune-0").is_empty());
}

#[test]
fn elastic_torchrun_loses_a_worker_to_a_more_urgent_job_and_gets_it_back_without_doing_a_step_twice() {
    let lab = Lab::with_data("elastic");
    // Two on one node and one on the other, which has no room for the urgent job then.
    let mut worker = lab.role("worker", 3, "500m", &[&TORCHRUN[..7], &["100000", "--seconds", "0.5"]].concat());
    worker["min"] = 2.into();
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000,
    });
    lab.platform.cluster.apply(&class.to_string());
    lab.job("train", "pytorch-elastic", &[worker], &json!({"datasets": [{"name": "set", "mountPath": "/set"}]}));
    let world = |wanted: u64| {
        let recorded = lab.recorded();
        recorded
            .iter()
            .filter(|line| line["event"] == "step")
            .max_by_key(|line| line["step"].as_u64())
            .is_some_and(|line| line["world"] == wanted)
    };
    lab.platform.cluster.wait_for("three workers train", TIMEOUT, || world(3));
    let until_enough = "until [ -e /out/enough ]; do sleep 1; done";
    let mut urgent = lab.role("worker", 1, "900m", &["sh", "-c", until_enough]);
    urgent["template"]["spec"]["priorityClassName"] = "urgent".into();
    lab.job("urgent", "single", &[urgent], &json!({}));
    // However long they take to meet again.
    lab.platform.cluster.wait_for("two workers train", TIMEOUT, || world(2));
    std::fs::write(lab.out.join("enough"), "").unwrap();
    lab.wait_for_phase("urgent", "Succeeded");
    lab.platform.cluster.wait_for("three workers train again", TIMEOUT, || world(3));
    assert_eq!(lab.restarts("train"), [], "a worker that gave way was not replaced");
    // A step is in the record of each rank once, but for the one under way when the world changed.
    let mut done: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for line in lab.recorded().iter().filter(|line| line["event"] == "step" && line["rank"] == 0) {
        let step = line["step"].as_u64().unwrap();
        assert!(done.entry(step).or_default().insert(line["world"].as_u64().unwrap()), "{step} was done twice");
    }
    let twice = done.values().filter(|worlds| worlds.len() > 1).count();
    assert!(twice <= 2, "{twice} steps were done twice, and the world changed twice");
    lab.platform.kubectl(&["delete", "tj", "--all"]);
}

#[test]
fn seed_004_a_job_that_asks_for_nothing_has_cpus_of_its_own() {
    let lab = Lab::start("pinned");
    let mut worker = lab.role("worker", 1, "1", &["cat", "/proc/self/status"]);
    worker.pointer_mut("/template/spec/containers/0").unwrap().as_object_mut().unwrap().remove("resources");
    lab.job("train", "single", &[worker], &json!({}));
    lab.wait_for_phase("train", "Succeeded");
    let logs = lab.all_logs("train");
    let allowed = logs.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
    // One whole CPU, not all that the machine has.
    let cpu: u32 = allowed.unwrap_or_default().parse().unwrap_or_else(|_| panic!("{allowed:?} is one CPU\n{logs}"));
    assert!(cpu > 0, "the first is the system's");
}

#[test]
fn a_job_whose_node_dies_goes_on_elsewhere_and_its_stuck_pod_blocks_nothing() {
    let lab = Lab::start("node-dies");
    // The default is a minute. On fake nodes, a test of the controller waits for it.
    let restart = json!({"restart": {"nodeLostAfter": "10s"}});
    lab.job("train", "single", &[lab.role("worker", 1, "100m", &["sleep", "3600"])], &restart);
    lab.wait_for_phase("train", "Running");
    let (pod, node) = lab.pods("train").pop_first().unwrap();
    let n: u32 = node.trim_start_matches('n').parse().unwrap();
    let cluster = &lab.platform.cluster;
    let frozen = Frozen::new(cluster, n);
    cluster.wait_for("another pod runs on the other node", TIMEOUT, || {
        let pods = lab.pods("train");
        let other = pods.iter().find(|(name, on)| **name != pod && !on.is_empty() && **on != node);
        other.is_some_and(|(name, _)| lab.platform.phase(lab.platform.namespace(), name) == "Running")
    });
    assert_eq!(lab.restarts("train"), [("nodeLost".to_owned(), 1)]);
    drop(frozen);
    lab.platform.wait_until_ready();
    cluster.wait_for("the old pod is gone", TIMEOUT, || !lab.pods("train").contains_key(&pod));
    lab.wait_for_phase("train", "Running");
    lab.platform.kubectl(&["delete", "tj", "--all"]);
}

/// A node whose kubelet and containerd do nothing, until it is dropped.
struct Frozen(Vec<u32>);

impl Frozen {
    fn new(cluster: &Cluster, node: u32) -> Self {
        let frozen = Self(["kubelet", "containerd"].iter().flat_map(|name| cluster.pids_on_node(node, name)).collect());
        assert!(frozen.0.len() >= 2, "a kubelet and a containerd");
        frozen.signal(Signal::STOP);
        frozen
    }

    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            let _ = rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}
