//! The memory of the controller's process, with objects of users that are as large as the API allows. The container has
//! 256 MiB (`deploy/components/datasets/base/controller.yaml`).
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use larder_fake_platform::program::{Program, free_address};
use larder_testkit::fake_api::{FakeApi, Mode};
use serde_json::{Value, json};

/// The limit of the container.
const LIMIT_KIB: u64 = 256 << 10;

/// Objects of each kind.
const OBJECTS: usize = 100;

/// Long enough even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A controller as a process.
struct Controller {
    child: Child,
    log: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Controller {
    fn start(server: std::net::SocketAddr, folder: &Path) -> Self {
        let kubeconfig = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{server}")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let program = Program {
            path: Path::new(env!("CARGO_BIN_EXE_larder-controller")),
            kubeconfig: Some(&kubeconfig),
            namespace: "larder-system",
            identity: "test",
            admin: free_address().unwrap(),
        };
        let log = folder.join("log");
        let child = program.command().stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }

    fn assert_runs(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the controller has ended: {ended:?}");
    }

    /// The most memory that the process has had, in KiB.
    fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the process runs");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Variables of a container that have about a megabyte: large ones; in a few objects, which take most memory once they
/// are parsed, as many as fit.
fn variables(nth: usize) -> Vec<Value> {
    let (count, length) = if nth.is_multiple_of(25) { (36_000, 1) } else { (1_000, 1_000) };
    (0..count).map(|at| json!({"name": format!("V{at}"), "value": "x".repeat(length)})).collect()
}

fn template(nth: usize) -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "image", "env": variables(nth)}]}})
}

// With threads to spare, the server renews the controller's lease while it writes long lists, also on a busy machine.
// SEMANTICS: J12
#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn a_hundred_pods_and_jobs_of_a_megabyte_do_not_end_it() {
    let api = FakeApi::new();
    let of_kueue = ["workloads", "admissionchecks", "resourceflavors", "workloadpriorityclasses", "multikueueconfigs"];
    api.turn(&of_kueue, Mode::Refuses(404));
    api.turn(&["podgroups"], Mode::Refuses(404));
    let single = std::fs::read_to_string(larder_testkit::repository().join("deploy/components/jobs/types/single.yaml"));
    api.put("jobtypes", serde_yaml_ng::from_str(&single.unwrap()).unwrap());
    for nth in 0..OBJECTS {
        let metadata = json!({"namespace": "team", "name": format!("large-{nth}")});
        let mut pod = template(nth);
        pod["metadata"] = metadata.clone();
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "pets"}}]);
        api.put("pods", pod);
        let role = json!({"name": "worker", "replicas": 1, "template": template(nth)});
        api.put("trainingjobs", json!({"metadata": metadata, "spec": {"type": "single", "roles": [role]}}));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = api.clone();
    let serving = tokio::spawn(async move { serving.serve(listener).await });

    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start(server, folder.path());
    // The objects themselves are too large to be looked at again and again.
    let refusals = || {
        let writes = api.writes().into_iter().filter(|write| write.contains("trainingjobs/large-"));
        writes.collect::<BTreeSet<_>>().len()
    };
    let started = Instant::now();
    while refusals() < OBJECTS {
        controller.assert_runs();
        assert!(started.elapsed() < TIMEOUT, "{} of the jobs are refused", refusals());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let job = api.get("trainingjobs", "team", "large-0").unwrap();
    assert!(job["status"].to_string().contains("at most 262144"), "{}", job["status"]);
    let listed = controller.peak_kib();
    // The same objects as events.
    for nth in 0..OBJECTS {
        for plural in ["pods", "trainingjobs"] {
            api.change(plural, "team", &format!("large-{nth}"), |object| {
                object["metadata"]["labels"] = json!({"a": "b"})
            });
        }
    }
    let last = json!({"metadata": {"namespace": "team", "name": "last"}, "spec": {"type": "none", "roles": []}});
    api.put("trainingjobs", last);
    let started = Instant::now();
    while api.get("trainingjobs", "team", "last").is_none_or(|job| job["status"].is_null()) {
        controller.assert_runs();
        assert!(started.elapsed() < TIMEOUT, "the controller does not see the last job");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let peak = controller.peak_kib();
    eprintln!("peak after the lists: {} MiB, after the events: {} MiB", listed >> 10, peak >> 10);
    assert!(peak < LIMIT_KIB, "{} MiB", peak >> 10);
    serving.abort();
}
