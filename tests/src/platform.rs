//! [`Platform`]: a real Kubernetes with Larder deployed as a user would deploy it, and an S3 server that its pods can
//! reach.
//!
//! The cluster and the deployment outlive a test, and the next test finds them. Everything else is the test's own: a
//! namespace, names that begin with it, and the server, which lives in the test's process, so that it can count
//! requests; its socket is in the cluster's network.

mod deployment;
mod manifests;
mod scripts;

use std::collections::BTreeMap;
use std::time::Duration;

use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Cluster, repository};
use tokio::runtime::Runtime;

use crate::lab::{BUCKET, SECRET};
use crate::process::assert_private;
use deployment::Deployment;
pub use deployment::{deploy_with, load_larder};
pub use scripts::{SUMS, reader_script, sums};

/// Long enough on two cores that run everything at once.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// `kill -9` of a process of the cluster, which must run.
pub fn kill_process(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A test's place in the shared cluster, with Larder. Pods and claims are called `NAME`, in the test's namespace, or
/// `NAMESPACE/NAME`.
pub struct Platform {
    /// The cluster.
    pub cluster: Cluster,
    /// The server, into which tests put objects, and whose requests they count.
    pub server: S3Server,
    port: u16,
    runtime: Runtime,
    namespace: String,
}

impl Platform {
    /// Waits for the test's turn at the shared cluster, starts the cluster and deploys Larder as far as no earlier test
    /// has, and waits until every node is ready to mount. `test` names the test's namespace and its datasets.
    pub fn start(test: &str) -> Self {
        Self::deployed(test, Deployment::Plain)
    }

    /// The same, with nodes that share their caches.
    pub fn start_sharing(test: &str) -> Self {
        Self::deployed(test, Deployment::Sharing)
    }

    /// The same, with Datasets as objects. They may name the test's server.
    pub fn start_datasets(test: &str) -> Self {
        let platform = Self::deployed(test, Deployment::Datasets);
        platform.allow_datasets();
        platform
    }

    /// Waits for the controller, and lets Datasets name the test's server.
    fn allow_datasets(&self) {
        self.list_endpoints(&[&self.endpoint()]);
        let rollout = ["-n", "larder-system", "rollout", "status", "deployment/larder-controller", "--timeout=120s"];
        self.cluster.kubectl_ok(&rollout);
    }

    /// Lists the endpoints that Datasets may name, and waits until they may.
    pub fn list_endpoints(&self, endpoints: &[&str]) {
        let spec = serde_json::json!({"spec": {"endpoints": endpoints}}).to_string();
        self.cluster.kubectl_ok(&["patch", "lardersettings", "larder", "--type=merge", "-p", &spec]);
        for endpoint in endpoints {
            let probe = serde_json::json!({
                "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
                "metadata": {"namespace": self.namespace, "name": "probe"},
                "spec": {"origin": {"source": self.source("probe"), "endpoint": endpoint, "anonymous": true}},
            });
            let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
            std::fs::write(file.path(), probe.to_string()).unwrap();
            let apply = ["apply", "--dry-run=server", "-f", file.path().to_str().unwrap()];
            // The policy about endpoints follows the settings, on a busy machine some time later.
            let is_listed = || self.cluster.kubectl(&apply).status.success();
            self.cluster.wait_for(&format!("{endpoint} is listed"), TIMEOUT, is_listed);
        }
    }

    /// The same, with training jobs, and [`Cluster::TRAINING`] for their pods.
    pub fn start_jobs(test: &str) -> Self {
        let platform = Self::start_datasets(test);
        platform.cluster.load_training_image();
        platform
    }

    /// The same as [`Self::start_datasets`], by the charts, with the startup taint. The test removes the chart `larder`
    /// at its end.
    pub fn start_chart(test: &str) -> Self {
        let platform = Self::deployed(test, Deployment::Chart);
        platform.allow_datasets();
        platform
    }

    /// Upgrades the chart to these settings, and waits until both daemons run where they should.
    pub fn upgrade_chart(&self, settings: &[&str]) {
        deployment::helm_upgrade(&self.cluster, settings);
        self.wait_until_ready();
    }

    /// Uninstalls the chart.
    pub fn uninstall_chart(&self) {
        deployment::helm_uninstall(&self.cluster);
    }

    /// The programs that training jobs run, by file name.
    pub fn training_programs() -> BTreeMap<String, String> {
        let files = std::fs::read_dir(repository().join("tests/cluster/training")).unwrap().map(|file| file.unwrap());
        let text = |path| std::fs::read_to_string(path).unwrap();
        files.map(|file| (file.file_name().into_string().unwrap(), text(file.path()))).collect()
    }

    fn deployed(test: &str, deployment: Deployment) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let cluster = Cluster::shared();
        let listener = cluster.listen(0);
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = S3ServerConfig {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: SECRET.into(),
            buckets: vec![BUCKET.into()],
            ..S3ServerConfig::default()
        };
        let server = {
            let _in_runtime = runtime.enter();
            S3Server::serve(tokio::net::TcpListener::from_std(listener).unwrap(), config).unwrap()
        };
        deployment.ensure(&cluster);
        let platform = Self { cluster, server, port, runtime, namespace: test.to_owned() };
        platform.cluster.apply(&platform.namespace_manifest(test));
        platform.wait_until_ready();
        platform
    }

    /// Waits until both daemons run on every node.
    pub fn wait_until_ready(&self) {
        self.cluster.wait_for("both DaemonSets are ready", TIMEOUT, || {
            let sets = self.cluster.get_json(&["daemonsets", "-n", "larder-system"]);
            let sets = sets["items"].as_array().unwrap();
            sets.len() == 2
                && sets.iter().all(|set| {
                    let status = &set["status"];
                    let number = |name: &str| status[name].as_u64().unwrap_or(0);
                    number("desiredNumberScheduled") > 0
                        && status["observedGeneration"] == set["metadata"]["generation"]
                        && number("numberReady") == number("desiredNumberScheduled")
                        && number("updatedNumberScheduled") == number("desiredNumberScheduled")
                })
        });
    }

    /// The runtime of the server.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The test's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The server's URL, as pods reach it.
    pub fn endpoint(&self) -> String {
        format!("http://{}:{}", Cluster::HOST, self.port)
    }

    /// The prefix of a dataset's objects. No other test has it.
    fn key(&self, dataset: &str) -> String {
        format!("{}/{dataset}", self.namespace)
    }

    /// Puts `count` files into a dataset and returns what `md5sum` prints for them, by path.
    pub fn put_dataset(&self, name: &str, count: usize, bytes: impl Fn(usize) -> Vec<u8>) -> BTreeMap<String, String> {
        (0..count)
            .map(|i| {
                let path = format!("d{}/f{i}", i % 5);
                // The entity tag of an object that was put in one piece is its MD5.
                let md5 = self.server.put(BUCKET, &format!("{}/{path}", self.key(name)), bytes(i));
                (path, md5)
            })
            .collect()
    }

    /// GETs of an object of a dataset.
    pub fn gets_of(&self, dataset: &str, path: &str) -> u64 {
        self.server.gets_of(BUCKET, &format!("{}/{path}", self.key(dataset)))
    }

    /// Runs kubectl in the test's namespace, and returns what it printed on stdout, whether it succeeded or not.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = self.cluster.kubectl(&[&["--namespace", self.namespace.as_str()], args].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The namespace and the name of what is called `NAMESPACE/NAME`, or `NAME` in the test's namespace.
    fn place<'a>(&'a self, name: &'a str) -> (&'a str, &'a str) {
        name.split_once('/').unwrap_or((&self.namespace, name))
    }

    /// The output of a pod.
    pub fn logs(&self, pod: &str) -> String {
        let (namespace, pod) = self.place(pod);
        let output = self.cluster.kubectl(&["logs", "--namespace", namespace, pod]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command in a pod.
    pub fn exec(&self, pod: &str, args: &[&str]) -> std::process::Output {
        let (namespace, pod) = self.place(pod);
        self.cluster.exec_in_pod(namespace, pod, args)
    }

    /// The phase of a pod; empty if there is no such pod.
    pub fn phase(&self, namespace: &str, pod: &str) -> String {
        let asked = self.cluster.kubectl(&["get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.phase}"]);
        String::from_utf8_lossy(&asked.stdout).into_owned()
    }

    /// Waits until a pod has succeeded, and returns what it printed.
    pub fn output(&self, pod: &str) -> String {
        let (namespace, name) = self.place(pod);
        let (mut phase, mut said) = (String::new(), String::new());
        self.cluster.wait_for(&format!("pod {pod} ends"), TIMEOUT, || {
            phase = self.phase(namespace, name);
            has_ended(&phase)
        });
        // A kubelet that is busy may not answer the first time.
        self.cluster.wait_for(&format!("the log of pod {pod}"), TIMEOUT, || {
            let logs = self.cluster.kubectl(&["logs", "--namespace", namespace, name]);
            said = String::from_utf8_lossy(&logs.stdout).into_owned();
            logs.status.success()
        });
        assert_eq!(phase, "Succeeded", "{said}");
        said
    }

    /// Makes the file for which [`reader_script`] looks, unless the pod has ended.
    pub fn ask_to_stop(&self, pod: &str) {
        let (namespace, name) = self.place(pod);
        self.cluster.wait_for(&format!("pod {pod} is asked to stop"), TIMEOUT, || {
            self.exec(pod, &["touch", "/tmp/stop"]).status.success() || has_ended(&self.phase(namespace, name))
        });
    }

    /// Stops a pod that runs [`reader_script`], which has read right bytes alone, and returns what it printed.
    pub fn stop_reader(&self, pod: &str) -> String {
        self.ask_to_stop(pod);
        let said = self.output(pod);
        assert!(!said.contains("WRONG") && said.ends_with("stopped\n"), "{pod}: {said}");
        said
    }

    /// Waits for an event of a pod that contains `text`, and returns its message.
    pub fn event(&self, namespace: &str, pod: &str, text: &str) -> String {
        let mut found = String::new();
        self.cluster.wait_for(&format!("an event of {pod} says {text:?}"), TIMEOUT, || {
            let field = format!("involvedObject.name={pod}");
            let asked = self.cluster.kubectl(&[
                "get",
                "events",
                "-n",
                namespace,
                "--field-selector",
                &field,
                "-o",
                "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}",
            ]);
            let said = String::from_utf8_lossy(&asked.stdout).into_owned();
            found = said.lines().find(|line| line.contains(text)).unwrap_or_default().to_owned();
            !found.is_empty()
        });
        found
    }

    /// Asserts that the server's secret is only in the memory of processes and of tmpfs: no file on a node's disk has
    /// it, neither the kubelet's nor the container runtime's, and no argument, environment or log of Larder's programs.
    pub fn assert_secret_is_in_memory_only(&self) {
        for n in [1, 2] {
            let node = self.cluster.node_folder(n);
            let node = node.parent().unwrap().to_str().unwrap();
            // The kubelet mounts Secrets as file systems of their own.
            let grep = ["find", node, "-xdev", "-type", "f", "-exec", "grep", "-l", SECRET, "{}", "+"];
            let found = self.cluster.exec(&grep);
            assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the secret is on the disk of node {n}");
        }
        for program in ["larderd", "larder-csi", "larder-controller"] {
            for pid in self.cluster.pids(program) {
                assert_private(pid, SECRET);
            }
        }
        let logs = ["logs", "-n", "larder-system", "-l", "app.kubernetes.io/part-of=larder", "--tail=-1"];
        assert!(!self.cluster.kubectl_ok(&logs).contains(SECRET), "the secret is in a log");
    }

    /// Deletes every pod with the label `app=reader` and waits until it is gone.
    pub fn delete_readers(&self) {
        self.cluster.kubectl_ok(&["delete", "pods", "-A", "-l", "app=reader", "--wait=false"]);
        self.cluster.wait_for("no reader is left", TIMEOUT, || {
            let left = self.cluster.kubectl(&["get", "pods", "-A", "-l", "app=reader", "-o", "name"]);
            left.status.success() && left.stdout.is_empty()
        });
    }

    /// Our FUSE mounts on a node, including the bind mounts in pods.
    pub fn mounts(&self, node: u32) -> Vec<String> {
        let all = self.cluster.mounts_of_node(node);
        all.lines().filter(|line| line.contains(" - fuse larder:")).map(str::to_owned).collect()
    }

    /// Waits until nothing of Larder is mounted on a node, and the kubelet has no folder of a pod that is gone.
    pub fn assert_clean(&self, node: u32) {
        self.cluster.wait_for("no mount is left", TIMEOUT, || self.mounts(node).is_empty());
        // The folder of a mount is removed shortly after the mount.
        let own = self.cluster.node_folder(node).join("plugins/csi.larder.dev/mounts");
        self.cluster.wait_for("no folder of a mount is left", TIMEOUT, || {
            std::fs::read_dir(&own).into_iter().flatten().count() == 0
        });
        let pods = self.cluster.get_json(&["pods", "-A"]);
        let uids: Vec<_> =
            pods["items"].as_array().unwrap().iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        let folder = self.cluster.node_folder(node).join("pods");
        self.cluster.wait_for("the kubelet has no folder of a pod that is gone", TIMEOUT, || {
            std::fs::read_dir(&folder).into_iter().flatten().flatten().all(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                uids.contains(&name.as_str()) || !entry.path().join("volumes/kubernetes.io~csi").exists()
            })
        });
    }
}

/// Whether a pod in this phase has ended.
fn has_ended(phase: &str) -> bool {
    ["Succeeded", "Failed"].contains(&phase)
}

impl Drop for Platform {
    fn drop(&mut self) {
        // After a failure the whole cluster is stopped.
        if !std::thread::panicking() {
            let label = format!("larder-test={}", self.namespace);
            self.cluster.kubectl(&["delete", "persistentvolumes,namespaces", "-l", &label, "--wait=false"]);
        }
    }
}
