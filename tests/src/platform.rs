//! [`Platform`]: a real Kubernetes with Larder deployed as a user would, and an S3 server that its pods can reach.
//!
//! The server lives in the test's own process, so that it can count what is asked of it; its socket is in the cluster's
//! network.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Cluster, built, repository};
use tokio::runtime::Runtime;

use crate::certificates::Authority;
use crate::{BUCKET, SECRET};

/// Long enough for two cores that do everything at once.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A script that prints what md5sum says of every file below the folder it is in.
pub const SUMS: &str = "find . -type f | sed 's|^[.]/||' | sort | xargs md5sum";

/// What md5sum said, by path.
pub fn sums(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once("  ")).map(|(sum, path)| (path.to_owned(), sum.to_owned())).collect()
}

/// A script that reads all files again and again past the page cache, until there is `/tmp/stop`, and says each wrong one.
/// `expected` is what md5sum says of them.
pub fn reader_script(volume: &str, expected: &BTreeMap<String, String>) -> String {
    let list: String = expected.iter().map(|(path, sum)| format!("{sum} {path}\\n")).collect();
    format!(
        "cd /{volume}; printf '{list}' > /tmp/list; while [ ! -e /tmp/stop ]; do while read sum path; do \
         got=$(dd if=$path iflag=direct bs=1M 2>/tmp/err | md5sum); [ \"$got\" = \"$sum  -\" ] || echo WRONG $path $got $(cat /tmp/err); \
         done < /tmp/list; echo round; done; echo stopped"
    )
}

/// `kill -9` of a process of the cluster's, which runs.
pub fn kill_process(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A cluster with Larder.
pub struct Platform {
    /// The cluster.
    pub cluster: Cluster,
    /// The server; tests put objects into it and count what was asked of it.
    pub server: S3Server,
    runtime: Runtime,
}

impl Platform {
    /// Starts a cluster, builds the image, deploys, and waits until every node is ready to mount.
    pub fn start(nodes: u32) -> Self {
        let platform = Self::bare(nodes);
        // As the README says.
        platform.cluster.kubectl_ok(&["apply", "-k", repository().join("deploy").to_str().unwrap()]);
        platform.wait_until_ready();
        platform
    }

    /// The same with nodes that share their caches, by certificates of an authority of their own.
    pub fn start_sharing(nodes: u32) -> Self {
        let platform = Self::bare(nodes);
        let authority = Authority::new("nodes");
        let papers = tempfile::tempdir().unwrap();
        let path = |name: &str| papers.path().join(name);
        authority.issue("larderd").write(&path("tls.crt"), &path("tls.key"));
        std::fs::write(path("ca.crt"), authority.pem()).unwrap();
        let cluster = &platform.cluster;
        cluster.kubectl_ok(&["apply", "-f", repository().join("deploy/namespace.yaml").to_str().unwrap()]);
        cluster.kubectl_ok(&[
            "create",
            "secret",
            "generic",
            "larder-peers",
            "--namespace=larder-system",
            &format!("--from-file={}", papers.path().display()),
        ]);
        // An overlay names what it is laid over by a relative path.
        let overlay = tempfile::tempdir().unwrap();
        let deploy = overlay.path().join("deploy");
        let copied = Command::new("cp").arg("-r").arg(repository().join("deploy")).arg(&deploy).status();
        assert!(copied.unwrap().success(), "copy deploy");
        let ours = overlay.path().join("sharing");
        std::fs::create_dir(&ours).unwrap();
        let text = "resources: [../deploy]\ncomponents: [../deploy/components/sharing]\n";
        std::fs::write(ours.join("kustomization.yaml"), text).unwrap();
        cluster.kubectl_ok(&["apply", "-k", ours.to_str().unwrap()]);
        platform.wait_until_ready();
        platform
    }

    /// A cluster that has the image.
    fn bare(nodes: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let cluster = Cluster::start(nodes);
        let listener = cluster.listen(9000);
        listener.set_nonblocking(true).unwrap();
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
        let folder = tempfile::tempdir().unwrap();
        let (bin, image) = (folder.path().join("bin"), folder.path().join("larder.tar"));
        std::fs::create_dir(&bin).unwrap();
        for name in ["larder", "larderd", "larder-csi"] {
            // Debug information is nine tenths of a binary, and every node unpacks it.
            let stripped =
                Command::new("strip").args(["--strip-debug", "-o"]).arg(bin.join(name)).arg(built(name)).status();
            assert!(stripped.unwrap().success(), "strip {name}");
        }
        let made =
            Command::new(repository().join("deploy/images/build")).arg("--bin").arg(bin).arg(&image).output().unwrap();
        assert!(made.status.success(), "build the image: {}", String::from_utf8_lossy(&made.stderr));
        cluster.load_image(&image);
        Self { cluster, server, runtime }
    }

    /// Waits until both daemons run on every node.
    pub fn wait_until_ready(&self) {
        self.cluster.wait_for("both DaemonSets are ready", PATIENCE, || {
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

    /// Where pods reach the server.
    pub fn endpoint(&self) -> String {
        format!("http://{}:9000", Cluster::HOST)
    }

    /// Puts `count` files below `s3://bucket/NAME` and gives what `md5sum` says of them, by path.
    pub fn put_dataset(&self, name: &str, count: usize, bytes: impl Fn(usize) -> Vec<u8>) -> BTreeMap<String, String> {
        (0..count)
            .map(|i| {
                let path = format!("d{}/f{i}", i % 5);
                // The entity tag of an object that was put in one piece is its MD5.
                let md5 = self.server.put(BUCKET, &format!("{name}/{path}"), bytes(i));
                (path, md5)
            })
            .collect()
    }

    /// How often an object of a dataset was asked for.
    pub fn gets_of(&self, dataset: &str, path: &str) -> u64 {
        self.server.gets_of(BUCKET, &format!("{dataset}/{path}"))
    }

    /// The Secret that volumes refer to.
    pub fn secret(&self, namespace: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: origin, namespace: {namespace}}}\n\
             stringData: {{AWS_ACCESS_KEY_ID: {}, AWS_SECRET_ACCESS_KEY: {SECRET}}}\n",
            self.server.access_key()
        )
    }

    /// A PersistentVolume of a dataset and the claim to it. `more` are further attributes, such as `cacheSize: 1MiB`.
    pub fn volume(&self, name: &str, dataset: &str, mode: &str, more: &str) -> String {
        format!(
            r#"---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  accessModes: [{mode}]
  capacity: {{storage: 1Gi}}
  storageClassName: larder
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{namespace: default, name: {name}}}
  csi:
    driver: csi.larder.dev
    volumeHandle: {name}
    nodePublishSecretRef: {{namespace: default, name: origin}}
    volumeAttributes:
      source: s3://{BUCKET}/{dataset}
      endpoint: {endpoint}
      {more}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: default}}
spec:
  accessModes: [{mode}]
  storageClassName: larder
  volumeName: {name}
  resources: {{requests: {{storage: 1Gi}}}}
"#,
            endpoint = self.endpoint()
        )
    }

    /// A pod on node `node` with the claims mounted at `/CLAIM`, which runs `script`.
    pub fn pod(&self, name: &str, node: u32, claims: &[&str], script: &str) -> String {
        let mut mounts = String::new();
        let mut volumes = String::new();
        for claim in claims {
            let _ = write!(mounts, "{{name: {claim}, mountPath: /{claim}}},");
            let _ = write!(volumes, "{{name: {claim}, persistentVolumeClaim: {{claimName: {claim}}}}},");
        }
        self.pod_with(name, "default", node, &mounts, &volumes, script)
    }

    /// A pod with these mounts and volumes.
    pub fn pod_with(
        &self,
        name: &str,
        namespace: &str,
        node: u32,
        mounts: &str,
        volumes: &str,
        script: &str,
    ) -> String {
        format!(
            r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: reader}}}}
spec:
  nodeName: n{node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    imagePullPolicy: Never
    command: [sh, -c, {script:?}]
    volumeMounts: [{mounts}]
  volumes: [{volumes}]
"#,
            image = Cluster::BUSYBOX
        )
    }

    /// The phase of a pod, or nothing.
    pub fn phase(&self, namespace: &str, pod: &str) -> String {
        let asked = self.cluster.kubectl(&["get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.phase}"]);
        String::from_utf8_lossy(&asked.stdout).into_owned()
    }

    /// Waits until a pod has come to its end, well, and gives what it printed.
    pub fn output(&self, pod: &str) -> String {
        self.cluster.wait_for(&format!("pod {pod} ends"), PATIENCE, || {
            ["Succeeded", "Failed"].contains(&self.phase("default", pod).as_str())
        });
        let said = self.cluster.kubectl_ok(&["logs", pod]);
        assert_eq!(self.phase("default", pod), "Succeeded", "{said}");
        said
    }

    /// Waits until an event of a pod says something like `text`, and gives the event.
    pub fn event(&self, namespace: &str, pod: &str, text: &str) -> String {
        let mut found = String::new();
        self.cluster.wait_for(&format!("an event of {pod} says {text:?}"), PATIENCE, || {
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

    /// Deletes everything below the label `app=reader` and waits until it is gone.
    pub fn delete_readers(&self) {
        self.cluster.kubectl_ok(&["delete", "pods", "-A", "-l", "app=reader", "--wait=false"]);
        self.cluster.wait_for("no reader is left", PATIENCE, || {
            let left = self.cluster.kubectl(&["get", "pods", "-A", "-l", "app=reader", "-o", "name"]);
            left.status.success() && left.stdout.is_empty()
        });
    }

    /// Our FUSE mounts on a node, the bind mounts in pods among them.
    pub fn mounts(&self, node: u32) -> Vec<String> {
        let all = self.cluster.mounts_of_node(node);
        all.lines().filter(|line| line.contains(" - fuse larder:")).map(str::to_owned).collect()
    }

    /// Waits until nothing of Larder is mounted on a node and the kubelet has no folder of a pod that is gone.
    pub fn assert_clean(&self, node: u32) {
        self.cluster.wait_for("no mount is left", PATIENCE, || self.mounts(node).is_empty());
        // The folder of a mount goes a moment after the mount.
        let own = self.cluster.node_folder(node).join("plugins/csi.larder.dev/mounts");
        self.cluster.wait_for("no folder of a mount is left", PATIENCE, || {
            std::fs::read_dir(&own).into_iter().flatten().count() == 0
        });
        let pods = self.cluster.get_json(&["pods", "-A"]);
        let uids: Vec<_> =
            pods["items"].as_array().unwrap().iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        let folder = self.cluster.node_folder(node).join("pods");
        self.cluster.wait_for("the kubelet has no folder of a pod that is gone", PATIENCE, || {
            std::fs::read_dir(&folder).into_iter().flatten().flatten().all(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                uids.contains(&name.as_str()) || !entry.path().join("volumes/kubernetes.io~csi").exists()
            })
        });
    }
}
