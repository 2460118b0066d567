//! [`Lab`]: the cluster `here`, which is the home, and those that have joined it, each over a [`Wire`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use larder_e2e::platform::{TIMEOUT, deploy_with, load_larder};
use larder_e2e::{BUCKET, SECRET};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Cluster, built};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::wire::Wire;

/// The namespace of the jobs, in all clusters.
pub(crate) const TEAM: &str = "team-a";

/// The number of files of a Dataset.
const FILES: usize = 12;

/// A cluster of one node with Larder.
pub(crate) struct Place {
    /// The name of the cluster at its home. The ConfigMap `site` has it.
    pub(crate) name: &'static str,
    pub(crate) cluster: Cluster,
    /// The way to the S3 server.
    pub(crate) origin: Wire,
}

impl Place {
    fn start(name: &'static str, runtime: &Runtime, server: &S3Server) -> Self {
        let cluster = Cluster::start(1);
        let origin = Wire::new(&cluster, runtime, server.address());
        load_larder(&cluster);
        deploy_with(&cluster, &["datasets", "jobs", "clusters"]);
        let place = Self { name, cluster, origin };
        let endpoints = json!({"spec": {"endpoints": [place.endpoint()]}}).to_string();
        place.cluster.kubectl_ok(&["patch", "lardersettings", "larder", "--type=merge", "-p", &endpoints]);
        for of in ["daemonset/larderd", "daemonset/larder-csi", "deployment/larder-controller"] {
            place.cluster.kubectl_ok(&["-n", "larder-system", "rollout", "status", of, "--timeout=300s"]);
        }
        let keys = json!({"AWS_ACCESS_KEY_ID": server.access_key(), "AWS_SECRET_ACCESS_KEY": server.secret_key()});
        place.apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site", "namespace": TEAM},
                "data": {"name": name}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "origin", "namespace": TEAM},
                "stringData": keys}),
        ]);
        place
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.origin.address())
    }

    pub(crate) fn apply(&self, objects: &[Value]) {
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string());
    }

    /// An object; null if there is none.
    pub(crate) fn get(&self, args: &[&str]) -> Value {
        let output = self.cluster.kubectl(&[&["get", "-o", "json"], args].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// A job; null if there is none.
    pub(crate) fn job(&self, name: &str) -> Value {
        self.get(&["tj", "-n", TEAM, name])
    }

    /// All jobs, by name.
    pub(crate) fn jobs(&self) -> BTreeMap<String, Value> {
        let jobs = self.cluster.get_json(&["tj", "-n", TEAM]);
        let named = |job: &Value| (job["metadata"]["name"].as_str().unwrap().to_owned(), job.clone());
        jobs["items"].as_array().unwrap().iter().map(named).collect()
    }

    /// The pods of a job that have not ended, by name.
    pub(crate) fn live_pods(&self, job: &str) -> Vec<String> {
        let pods = self.cluster.get_json(&["pods", "-n", TEAM, "-l", &format!("larder.dev/job={job}")]);
        let has_ended = |pod: &Value| pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed";
        let pods = pods["items"].as_array().unwrap().iter().filter(|pod| !has_ended(pod));
        pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// A cluster as this place knows it.
    pub(crate) fn knows(&self, cluster: &str) -> Value {
        self.get(&["clusters.larder.dev", cluster])["status"].clone()
    }
}

/// A cluster that has joined the home.
pub(crate) struct Worker {
    pub(crate) place: Place,
    /// The way from the home to its API server.
    pub(crate) link: Wire,
    _network: Runtime,
}

impl Worker {
    fn new(home: &Place, place: Place) -> Self {
        // Its threads stay in the network in which they are created.
        let network = place.cluster.in_network(runtime);
        let link = Wire::new(&home.cluster, &network, SocketAddr::from((Cluster::HOST, 443)));
        Self { place, link, _network: network }
    }

    /// Its API server, as the home reaches it.
    fn server(&self) -> String {
        format!("https://{}", self.link.address())
    }
}

/// All clusters, and the S3 server of each's datasets.
pub(crate) struct Lab {
    pub(crate) home: Place,
    pub(crate) workers: Vec<Worker>,
    pub(crate) server: S3Server,
    /// A folder of this machine, which the pods of all clusters have at /shared.
    pub(crate) shared: tempfile::TempDir,
    _network: Runtime,
}

impl Lab {
    /// Starts two clusters, of which `west` has joined `here`.
    pub(crate) fn start() -> Self {
        Self::start_with(&["west"])
    }

    /// Starts the home and these clusters, which have joined it.
    pub(crate) fn start_with(names: &[&'static str]) -> Self {
        let runtime = runtime();
        let config = S3ServerConfig {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: SECRET.into(),
            buckets: vec![BUCKET.into()],
            ..S3ServerConfig::default()
        };
        let server = runtime.block_on(S3Server::start(config)).unwrap();
        let start = |name| Place::start(name, &runtime, &server);
        let (home, places) = std::thread::scope(|scope| {
            let others: Vec<_> = names.iter().map(|&name| scope.spawn(move || start(name))).collect();
            let home = start("here");
            (home, others.into_iter().map(|other| other.join().unwrap()).collect::<Vec<Place>>())
        });
        let workers = places.into_iter().map(|place| Worker::new(&home, place)).collect();
        let shared = tempfile::tempdir().unwrap();
        let lab = Self { home, workers, server, shared, _network: runtime };
        for name in names {
            lab.join(name);
        }
        for name in names {
            lab.wait_until_reachable(name, "True");
        }
        lab.wait_until_jobs_may_name(names);
        lab
    }

    pub(crate) fn worker(&self, name: &str) -> &Worker {
        self.workers.iter().find(|worker| worker.place.name == name).unwrap()
    }

    /// The cluster `west`, which every lab has.
    pub(crate) fn west(&self) -> &Place {
        &self.worker("west").place
    }

    /// The way from the home to the API server of `west`.
    pub(crate) fn link(&self) -> &Wire {
        &self.worker("west").link
    }

    /// All clusters, the home first.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.home).chain(self.workers.iter().map(|worker| &worker.place))
    }

    /// The policy that refuses unknown Clusters knows new ones later than the controller.
    fn wait_until_jobs_may_name(&self, workers: &[&str]) {
        let cluster = &self.home.cluster;
        let probe = cluster.note("probe.json");
        std::fs::write(&probe, self.job("probe", 100, "true", &json!({"clusters": workers})).to_string()).unwrap();
        let apply = ["apply", "--dry-run=server", "-f", probe.to_str().unwrap()];
        let may_name = || cluster.kubectl(&apply).status.success();
        cluster.wait_for(&format!("jobs may name {workers:?}"), TIMEOUT, may_name);
    }

    /// Joins a cluster, as its administrator and that of the home do.
    pub(crate) fn join(&self, worker: &str) {
        let joining = self.worker(worker);
        let (larder, server) = (built("larder").display().to_string(), joining.server());
        let join = ["cluster", "join", worker, "--home", "hq", "--allow", TEAM, "--server", &server];
        let joined = joining.place.cluster.exec(&[&[larder.as_str()][..], &join].concat());
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
        self.home.cluster.apply(&String::from_utf8(joined.stdout).unwrap());
    }

    /// The kubeconfig by which the home reaches a cluster, with another token.
    pub(crate) fn kubeconfig_of(&self, worker: &str, token: &str) -> Value {
        let (secret, template) = (format!("cluster-{worker}"), "go-template={{.data.kubeconfig | base64decode}}");
        let joined = ["get", "secret", "-n", "larder-system", &secret, "-o", template];
        let mut config: Value = serde_yaml_ng::from_str(&self.home.cluster.kubectl_ok(&joined)).unwrap();
        config["users"][0]["user"] = json!({"token": token});
        config
    }

    /// Whether the home says that it reaches a cluster.
    fn reachable(&self, worker: &str) -> String {
        let conditions = self.home.knows(worker)["conditions"].clone();
        let conditions = conditions.as_array().into_iter().flatten();
        let found =
            conditions.filter(|condition| condition["type"] == "Reachable").find_map(|it| it["status"].as_str());
        found.unwrap_or_default().to_owned()
    }

    /// Waits until the home says that a cluster is reachable (`True`), or is not (`False`).
    pub(crate) fn wait_until_reachable(&self, worker: &str, reachable: &str) {
        let wanted = format!("{worker} is reachable: {reachable}");
        self.home.cluster.wait_for(&wanted, TIMEOUT, || self.reachable(worker) == reachable);
    }

    /// Runs a command of larder as a user of the home, whose kubeconfig has a context for each cluster.
    pub(crate) fn larder(&self, args: &[&str]) -> String {
        let (larder, config) = (built("larder").display().to_string(), self.kubeconfig().display().to_string());
        let command = [&[larder.as_str()][..], args, &["--kubeconfig", &config]].concat();
        let output = self.home.cluster.exec(&command);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "larder {args:?}: {out}{err}");
        out.into_owned()
    }

    fn kubeconfig(&self) -> PathBuf {
        let file = self.home.cluster.note("users-kubeconfig");
        let (mut clusters, mut users, mut contexts) = (Vec::new(), Vec::new(), Vec::new());
        let home = (&self.home, format!("https://{}", Cluster::HOST));
        let workers = self.workers.iter().map(|worker| (&worker.place, worker.server()));
        for (place, server) in std::iter::once(home).chain(workers) {
            let text = std::fs::read_to_string(place.cluster.kubeconfig()).unwrap();
            let admin: Value = serde_yaml_ng::from_str(&text).unwrap();
            let name = place.name;
            let cluster = json!({"server": server, "insecure-skip-tls-verify": true});
            clusters.push(json!({"name": name, "cluster": cluster}));
            users.push(json!({"name": name, "user": admin["users"][0]["user"]}));
            contexts.push(json!({"name": name, "context": {"cluster": name, "user": name}}));
        }
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": self.home.name,
            "clusters": clusters, "users": users, "contexts": contexts});
        std::fs::write(&file, config.to_string()).unwrap();
        file
    }

    /// Puts a Dataset into all clusters. Those that are named hold it, and their nodes have read it once this returns.
    /// Returns what md5sum prints for its files, by path.
    pub(crate) fn put_dataset(&self, name: &str, held_in: &[&str]) -> BTreeMap<String, String> {
        let salt = name.len() + usize::from(name.as_bytes()[0]);
        let mut sums = BTreeMap::new();
        for place in self.places() {
            for file in 0..FILES {
                let bytes: Vec<u8> = (0..20_000 + file * 500).map(|at| (at * (2 * file + salt)) as u8).collect();
                // The entity tag of an object that was put in one piece is its MD5.
                let md5 = self.server.put(BUCKET, &key(place, name, file), bytes);
                sums.insert(format!("f{file}"), md5);
            }
            let count = u32::from(held_in.contains(&place.name));
            let origin = json!({"source": format!("s3://{BUCKET}/{}/{name}", place.name), "endpoint": place.endpoint(),
                "secretRef": {"name": "origin"}});
            place.apply(&[json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
                "metadata": {"name": name, "namespace": TEAM},
                "spec": {"origin": origin, "nodes": {"count": count}}})]);
        }
        for place in self.places() {
            let wanted = if held_in.contains(&place.name) { 100 } else { 0 };
            let cluster = place.name;
            self.home.cluster.wait_for(
                &format!("the home knows that {cluster} has {wanted} % of {name}"),
                TIMEOUT,
                || {
                    let known = self.home.knows(cluster);
                    let mut datasets = known["datasets"].as_array().into_iter().flatten();
                    datasets.any(|held| held["name"] == format!("{TEAM}/{name}") && held["percent"] == wanted)
                },
            );
        }
        sums
    }

    /// How often the files of a Dataset were read from the origin of a place: of each file.
    pub(crate) fn gets(&self, place: &Place, name: &str) -> Vec<u64> {
        (0..FILES).map(|file| self.server.gets_of(BUCKET, &key(place, name, file))).collect()
    }

    /// A job of one pod that runs a script. Its variable SITE is the name of its cluster.
    pub(crate) fn job(&self, name: &str, millis: u64, script: &str, more: &Value) -> Value {
        let site = json!({"name": "SITE", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "name"}}});
        let container = json!({
            "name": "main",
            "image": Cluster::BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-ec", script],
            "env": [site],
            "resources": {"limits": {"cpu": format!("{millis}m"), "memory": "64Mi"}},
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        });
        let template = json!({
            // A job that fills a cluster has part of a CPU.
            "metadata": {"annotations": {"larder.dev/defaults-off": "whole-cpus"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [{"name": "shared", "hostPath": {"path": self.shared.path()}}],
            },
        });
        let roles = json!([{"name": "worker", "template": template}]);
        let mut spec = json!({"type": "single", "restart": {"maxCrashes": 0}, "roles": roles});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": TEAM}, "spec": spec})
    }

    /// Submits such a job at the home.
    pub(crate) fn submit(&self, name: &str, millis: u64, script: &str, more: &Value) {
        self.home.apply(&[self.job(name, millis, script, more)]);
    }

    /// Waits until the home says that a job has this phase.
    pub(crate) fn wait_for_phase(&self, job: &str, phase: &str) {
        self.home.cluster.wait_for(&format!("{job} is {phase}"), TIMEOUT, || {
            let status = self.home.job(job)["status"].clone();
            assert!(status["phase"] == phase || status["phase"] != "Failed", "{job}: {status:#}");
            status["phase"] == phase
        });
    }

    /// The placement of a job, as the home has it.
    pub(crate) fn placement(&self, job: &str) -> Value {
        self.home.job(job)["status"]["placement"].clone()
    }

    /// Runs a job in a cluster that leaves 200m of its CPUs to others, and the CPUs of jobs that have just ended.
    pub(crate) fn fill(&self, cluster: &str) {
        let name = format!("fill-{cluster}");
        let free = millis(self.home.knows(cluster)["resources"]["cpu"]["free"].as_str().unwrap());
        let alone = json!({"clusters": [cluster]});
        self.submit(&name, free.saturating_sub(200), "sleep 3600", &alone);
        self.wait_for_phase(&name, "Running");
    }
}

/// The key of a file. Each cluster has a copy of each Dataset at its own place, so that requests tell them apart.
fn key(place: &Place, dataset: &str, file: usize) -> String {
    format!("{}/{dataset}/f{file}", place.name)
}

/// The thousandths of CPUs in a quantity.
fn millis(quantity: &str) -> u64 {
    match quantity.strip_suffix('m') {
        Some(millis) => millis.parse().unwrap(),
        None => quantity.parse::<u64>().unwrap() * 1000,
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
