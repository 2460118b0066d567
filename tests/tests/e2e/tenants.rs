//! Tenants of a node who share its mounts, each with keys of its own: real processes, real mounts, and an S3 server
//! that revokes keys. The test plays the kubelet.

use std::path::PathBuf;

use larder_csi_api::csi;
use larder_csi_api::csi::identity_client::IdentityClient;
use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, OTHER_KEYS, Plugin};
use larder_testkit::{RealServer, ServerKind};

use crate::csi::{publish, wait_until};

/// Files of each dataset.
const FILES: u8 = 8;

/// Two datasets and a node.
struct Cluster {
    lab: Lab,
    larderd: Larderd,
    plugin: Plugin,
}

impl Cluster {
    fn start(name: &str) -> Self {
        let lab = Lab::new();
        for i in 0..FILES {
            lab.put(&format!("f{i}"), bytes(0, i));
            lab.put_other(&format!("f{i}"), bytes(1, i));
        }
        let datasets = lab.folder().join("datasets.yaml");
        let entry = |name, source| format!("  {name}: {{source: '{source}', namespaces: ['*']}}\n");
        let text = format!("datasets:\n{}{}", entry("one", lab.url()), entry("two", lab.other_url()));
        std::fs::write(&datasets, text).unwrap();
        let larderd = Larderd::start(&lab, name, &[]);
        let plugin = Plugin::start(&lab, &larderd, &[&format!("--datasets={}", datasets.display())]);
        let cluster = Self { lab, larderd, plugin };
        cluster.wait_until_ready();
        cluster
    }

    /// Waits until the plugin is in session with larderd.
    fn wait_until_ready(&self) {
        let _in_runtime = self.lab.runtime().enter();
        let mut identity = IdentityClient::new(self.plugin.channel());
        wait_until("the plugin is ready", || {
            let probed = self.lab.runtime().block_on(identity.probe(csi::ProbeRequest {}));
            probed.is_ok_and(|probed| probed.into_inner().ready == Some(true))
        });
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.plugin.path(&format!("kubelet/pods/{pod}"))
    }

    /// Publishes a volume; `key`: the one in its Secret, if it has one.
    fn publish(&self, pod: &str, context: &[(&str, &str)], key: Option<&str>) -> Result<(), tonic::Status> {
        let mut request = publish(&self.lab, &self.target(pod));
        match key {
            Some(key) => drop(request.secrets.insert("AWS_ACCESS_KEY_ID".to_owned(), key.to_owned())),
            None => request.secrets.clear(),
        }
        self.send(pod, context, request)
    }

    /// Publishes the volume of a tenant's Dataset at a Ceph, with a key of this Ceph.
    fn tenants_volume(&self, pod: &str, ceph: &RealServer, owner: &str, key: &str) -> Result<(), tonic::Status> {
        let mut request = publish(&self.lab, &self.target(pod));
        request.secrets.insert("AWS_ACCESS_KEY_ID".to_owned(), key.to_owned());
        request.secrets.insert("AWS_SECRET_ACCESS_KEY".to_owned(), RealServer::SECRET_KEY.to_owned());
        let (source, endpoint) = (ceph.url("im"), ceph.endpoint());
        let context = [("source", &*source), ("endpoint", endpoint), ("identity", "secret"), ("owner", owner)];
        self.send(pod, &context, request)
    }

    fn send(
        &self,
        pod: &str,
        context: &[(&str, &str)],
        mut request: csi::NodePublishVolumeRequest,
    ) -> Result<(), tonic::Status> {
        let _in_runtime = self.lab.runtime().enter();
        request.volume_id = format!("volume of {pod}");
        request.volume_context =
            context.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut node = NodeClient::new(self.plugin.channel());
        self.lab.runtime().block_on(node.node_publish_volume(request)).map(drop)
    }

    /// Publishes an administrator's volume.
    fn volume(&self, pod: &str, source: &str, key: &str) {
        self.publish(pod, &[("source", source)], Some(key)).unwrap();
    }

    /// Publishes an inline volume, whose author wrote `key`.
    fn inline(&self, pod: &str, dataset: &str, key: Option<&str>) -> Result<(), tonic::Status> {
        self.publish(pod, &[("csi.storage.k8s.io/ephemeral", "true"), ("dataset", dataset)], key)
    }

    /// A pod reads a file, which must not be cached.
    fn reads(&self, pod: &str, dataset: u8, file: u8) {
        let read = std::fs::read(self.target(pod).join(format!("f{file}")));
        let read = read.unwrap_or_else(|error| panic!("{pod}: f{file}: {error}: {}", self.larderd.log()));
        assert!(read == bytes(dataset, file), "{pod}: f{file} has wrong bytes");
    }

    fn restart_larderd(&mut self) {
        self.larderd.kill();
        self.larderd.restart();
    }

    fn restart_plugin(&mut self) {
        self.plugin.kill();
        self.plugin.restart();
        self.wait_until_ready();
    }
}

fn bytes(dataset: u8, file: u8) -> Vec<u8> {
    vec![dataset * 16 + file; 10_000 + usize::from(file)]
}

// SEMANTICS: K11
#[test]
fn rotated_keys_outlive_kills_of_the_daemon_and_the_plugin() {
    let mut cluster = Cluster::start("rotation");
    let [old, new, other] = OTHER_KEYS;
    let (one, two) = (cluster.lab.url(), cluster.lab.other_url());
    cluster.volume("a1", &one, old);
    cluster.volume("b1", &two, other);
    cluster.reads("a1", 0, 0);
    cluster.volume("a2", &one, new);
    // larderd's own key must not help either.
    cluster.lab.revoke(&[old, cluster.lab.server.access_key()]);
    cluster.reads("a1", 0, 1);
    cluster.restart_larderd();
    cluster.reads("a1", 0, 2);
    cluster.reads("a2", 0, 3);
    cluster.reads("b1", 1, 3);
    cluster.restart_plugin();
    cluster.restart_larderd();
    cluster.reads("a1", 0, 4);
    cluster.reads("a2", 0, 5);
    cluster.reads("b1", 1, 5);
    // It has been handed both connections before the plugin dies again.
    cluster.restart_larderd();
    cluster.reads("a1", 0, 6);
    cluster.reads("b1", 1, 6);
    cluster.restart_plugin();
    cluster.restart_larderd();
    cluster.reads("a2", 0, 7);
    cluster.reads("b1", 1, 7);
}

// SEMANTICS: K11
#[test]
fn a_pod_authors_key_is_checked_for_that_pod_and_shuts_out_nobody() {
    let mut cluster = Cluster::start("inline");
    let [author, admin, _] = OTHER_KEYS;
    let two = cluster.lab.other_url();
    // The author's pod is the first with one dataset, and comes to a mount of the administrator's with the other.
    cluster.inline("author-1", "one", Some(author)).unwrap();
    cluster.inline("tenant-1", "one", None).unwrap();
    cluster.volume("tenant-2", &two, admin);
    cluster.inline("author-2", "two", Some(author)).unwrap();
    cluster.reads("author-1", 0, 0);
    cluster.reads("author-2", 1, 0);
    cluster.lab.revoke(&[author]);
    cluster.reads("tenant-1", 0, 1);
    cluster.reads("tenant-2", 1, 1);
    // The key that was revoked gets no pod a mount any more.
    for dataset in ["one", "two"] {
        let refused = cluster.inline("late", dataset, Some(author)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    }
    cluster.restart_larderd();
    cluster.reads("tenant-1", 0, 2);
    cluster.reads("tenant-2", 1, 2);
    cluster.restart_plugin();
    cluster.restart_larderd();
    cluster.reads("tenant-1", 0, 3);
    cluster.reads("tenant-2", 1, 3);
    // The administrator's key stays the one that counts for the second dataset, and larderd's own for the first.
    cluster.lab.revoke(&[author, cluster.lab.server.access_key()]);
    cluster.reads("tenant-2", 1, 4);
    assert_eq!(
        std::fs::read(cluster.target("tenant-1").join("f4")).unwrap_err().kind(),
        std::io::ErrorKind::PermissionDenied
    );
}

// SEMANTICS: K11
#[test]
fn a_pod_whose_key_may_read_what_larderd_may_not_is_told_so() {
    let cluster = Cluster::start("refused");
    let [author, admin, _] = OTHER_KEYS;
    cluster.lab.revoke(&[cluster.lab.server.access_key()]);
    let refused = cluster.inline("author", "one", Some(author)).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("larder-origin"), "{refused}");
    assert!(!cluster.target("author").exists());
    cluster.volume("tenant", &cluster.lab.url(), admin);
    cluster.inline("author", "one", Some(author)).unwrap();
    cluster.reads("author", 0, 0);
}

// SEMANTICS: C19, K7
#[test]
fn tenants_of_one_ceph_with_equal_buckets_and_keys_read_their_own_bytes_alone() {
    let Some(ceph) = RealServer::start(ServerKind::Ceph) else { return };
    let mut cluster = Cluster::start("ceph-tenants");
    let tenants = ["one", "two"];
    let keys = tenants.map(|tenant| ceph.make_user(tenant, "writer"));
    for (dataset, key) in (0..).zip(&keys) {
        ceph.put_as(key, RealServer::BUCKET, b"");
        // An object that all datasets of the world have.
        ceph.put_as(key, &format!("{}/im/README", RealServer::BUCKET), b"the same");
        for file in 0..FILES {
            ceph.put_as(key, &format!("{}/im/f{file}", RealServer::BUCKET), &bytes(dataset, file));
        }
    }
    // The first tenant reads all, and the second must get nothing of that.
    cluster.tenants_volume("pod-one", &ceph, "uid-one", &keys[0]).unwrap();
    (0..FILES).for_each(|file| cluster.reads("pod-one", 0, file));
    cluster.tenants_volume("pod-two", &ceph, "uid-two", &keys[1]).unwrap();
    for _ in 0..2 {
        for file in 0..FILES {
            cluster.reads("pod-two", 1, file);
            cluster.reads("pod-one", 0, file);
        }
        cluster.restart_larderd();
    }
    cluster.restart_plugin();
    cluster.restart_larderd();
    for file in 0..FILES {
        cluster.reads("pod-two", 1, file);
        cluster.reads("pod-one", 0, file);
    }
    // A user of the first tenant who may list the bucket and read nothing of it, neither as itself nor as the tenant.
    let lister = ceph.make_user("one", "lister");
    let bucket = RealServer::BUCKET;
    let policy = format!(
        r#"{{"Version": "2012-10-17", "Statement": [{{"Effect": "Allow",
        "Principal": {{"AWS": ["arn:aws:iam::one:user/lister"]}}, "Action": ["s3:ListBucket"],
        "Resource": ["arn:aws:s3::one:{bucket}"]}}]}}"#
    );
    ceph.put_as(&keys[0], &format!("{bucket}?policy="), policy.as_bytes());
    for owner in ["uid-three", "uid-one"] {
        let refused = cluster.tenants_volume("pod-three", &ceph, owner, &lister).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{owner}: {refused}");
    }
    (0..FILES).for_each(|file| cluster.reads("pod-one", 0, file));
}
