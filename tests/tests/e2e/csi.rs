//! The CSI driver with the real daemon, real mounts and a real S3 server. The test plays the kubelet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_csi_api::csi;
use larder_csi_api::csi::node_client::NodeClient;
use larder_csi_api::csi::volume_capability::access_mode::Mode;
use larder_csi_api::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use larder_daemon_api::mountinfo::{MountEntry, mounts};
pub(crate) use larder_e2e::wait_until;
use larder_e2e::{Lab, Larderd, Plugin, SECRET};
use larder_testkit::scaled;
use serde_json::Value;

/// The suite's messages about features that the driver does not claim: the only reasons to skip a test.
const UNCLAIMED: [&str; 17] = [
    "ControllerExpandVolume not supported",
    "ControllerModifyVolume not supported",
    "Controller Publish, UnpublishVolume not supported",
    "ControllerPublishVolume not supported",
    "ControllerUnpublishVolume not supported",
    "Modify Volume not supported",
    "CreateSnapshot not supported",
    "DeleteSnapshot not supported",
    "GetCapacity not supported",
    "GroupControllerService not supported",
    "NodeExpandVolume not supported",
    "ListSnapshots not supported",
    "Modify volume not supported",
    "NodeStageVolume not supported",
    "NodeUnstageVolume not supported",
    "Snapshot not supported",
    "Volume Cloning not supported",
];

/// The suite that `tests/cluster/cluster.sh install` builds.
fn suite() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = || variable("LARDER_CACHE").or_else(|| Some(variable("HOME")?.join(".cache/larder")));
    let dir = variable("LARDER_TEST_BIN").or_else(|| Some(cache()?.join("bin"))).unwrap();
    let binary = dir.join("csi-sanity-v5.4.0");
    assert!(binary.exists(), "{} is missing: run `make tools`", binary.display());
    binary
}

// SEMANTICS: K8
#[test]
fn csi_sanity_passes() {
    let lab = Lab::new();
    lab.put("d/f", b"bytes".to_vec());
    let larderd = Larderd::start(&lab, "sanity", &[]);
    let work = lab.folder().join("work");
    std::fs::create_dir(&work).unwrap();
    let plugin = Plugin::start(&lab, &larderd, &[&format!("--target-root={}", work.display())]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    let path = |name: &str| lab.folder().join(name);
    std::fs::write(path("parameters.yaml"), format!("source: {}\ncacheSize: 1GiB\n", lab.url())).unwrap();
    let keys = format!("{{AWS_ACCESS_KEY_ID: {}, AWS_SECRET_ACCESS_KEY: {SECRET}}}", lab.server.access_key());
    std::fs::write(path("secrets.yaml"), format!("NodePublishVolumeSecret: {keys}\n")).unwrap();
    let flag = |name: &str, path: PathBuf| format!("-{name}={}", path.display());
    let output = Command::new(suite())
        .arg(flag("csi.endpoint", plugin.path("csi.sock")))
        .arg(flag("csi.mountdir", work.join("mount")))
        .arg(flag("csi.stagingdir", work.join("staging")))
        .arg(flag("csi.testvolumeparameters", path("parameters.yaml")))
        .arg(flag("csi.secrets", path("secrets.yaml")))
        .arg(flag("ginkgo.json-report", path("report.json")))
        .arg("-ginkgo.no-color")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value = serde_json::from_slice(&std::fs::read(path("report.json")).expect(&text)).unwrap();
    let mut counts = BTreeMap::new();
    let (mut skipped, mut failed) = (vec![], vec![]);
    for spec in report[0]["SpecReports"].as_array().unwrap().iter().filter(|spec| spec["LeafNodeType"] == "It") {
        let state = spec["State"].as_str().unwrap();
        *counts.entry(state).or_insert(0) += 1;
        let name = format!("{} {}", spec["ContainerHierarchyTexts"], spec["LeafNodeText"]);
        let why = spec["Failure"]["Message"].as_str().unwrap_or_default();
        match state {
            // The suite's authors have disabled some.
            "passed" | "pending" => {}
            "skipped" => skipped.push((name, why)),
            _ => failed.push((name, why)),
        }
    }
    assert_eq!(failed, [], "{text}\n{}", larderd.log());
    assert!(output.status.success(), "{text}");
    skipped.retain(|(_, why)| !UNCLAIMED.contains(why));
    assert_eq!(skipped, []);
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [("passed", 35), ("pending", 1), ("skipped", 56)]);
    assert_eq!(larder_mounts(lab.folder()), [] as [String; 0]);
    assert!(!plugin.log().contains(SECRET) && !larderd.log().contains(SECRET));
}

/// Our mounts below a folder.
pub(crate) fn larder_mounts(folder: &Path) -> Vec<String> {
    let below = |mount: &MountEntry| mount.is_ours() && mount.path.starts_with(folder);
    mounts().unwrap().into_iter().filter(below).map(|mount| mount.path.display().to_string()).collect()
}

/// The content of file `i`.
pub(crate) fn bytes(i: u64) -> Vec<u8> {
    (0..10_000 + i * 7919 % 50_000).map(|n| (n.wrapping_mul(i + 1) >> 3) as u8).collect()
}

/// The request to publish the lab's dataset at a target, with the lab's own keys.
pub(crate) fn publish(lab: &Lab, target: &Path) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: "volume".to_owned(),
        target_path: target.display().to_string(),
        volume_capability: Some(csi::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() }),
        }),
        readonly: true,
        secrets: [
            ("AWS_ACCESS_KEY_ID".to_owned(), lab.server.access_key().to_owned()),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), SECRET.to_owned()),
        ]
        .into(),
        volume_context: [("source".to_owned(), lab.url())].into(),
        ..csi::NodePublishVolumeRequest::default()
    }
}

/// The folder of the sockets is another one in the new version. Until larder-csi is new, larderd has no rights in that
/// folder.
// SEMANTICS: K1
#[test]
fn an_upgrade_to_another_folder_of_sockets_keeps_the_readers_whichever_process_is_first() {
    const FILES: u64 = 20;
    for larderd_first in [true, false] {
        let lab = Lab::new();
        (0..FILES).for_each(|i| lab.put(&format!("f{i}"), bytes(i)));
        let (former, new) = (lab.folder().join("former"), lab.folder().join("new"));
        let mut larderd = Larderd::start(&lab, "upgrade", &[]);
        larderd.kill();
        larderd.set_run_dirs(&[&former]);
        larderd.restart();
        let mut plugin = Plugin::start(&lab, &larderd, &[]);
        let target = plugin.path("kubelet/pods/a");
        let _in_runtime = lab.runtime().enter();
        let mut node = NodeClient::new(plugin.channel());
        wait_until("the volume is published", || {
            lab.runtime().block_on(node.node_publish_volume(publish(&lab, &target))).is_ok()
        });
        let held = std::fs::File::open(target.join("f1")).unwrap();
        let read_all = |larderd: &Larderd, plugin: &Plugin| {
            wait_until("both hold the connection", || larderd.connections() >= 1 && plugin.connections() >= 1);
            for i in 0..FILES {
                let file = std::fs::File::open(target.join(format!("f{i}"))).unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                assert!(std::fs::read(target.join(format!("f{i}"))).unwrap() == bytes(i), "f{i} has wrong bytes");
            }
        };
        read_all(&larderd, &plugin);
        // No folder that anything could be made in.
        std::fs::write(&new, b"").unwrap();
        let upgrade_plugin = |plugin: &mut Plugin| {
            std::fs::remove_file(&new).unwrap();
            plugin.kill();
            plugin.set_run_dirs(&[&new, &former]);
            plugin.restart();
        };
        if !larderd_first {
            upgrade_plugin(&mut plugin);
            read_all(&larderd, &plugin);
        }
        larderd.terminate();
        larderd.set_run_dirs(&[&new, &former]);
        larderd.restart();
        read_all(&larderd, &plugin);
        if larderd_first {
            assert!(larderd.log().contains("using the others"), "{}", larderd.log());
            upgrade_plugin(&mut plugin);
            read_all(&larderd, &plugin);
        }
        // The next versions meet in the new folder, without the former.
        larderd.kill();
        larderd.restart();
        read_all(&larderd, &plugin);
        std::fs::remove_dir_all(&former).unwrap();
        plugin.kill();
        plugin.restart();
        read_all(&larderd, &plugin);
        assert!(new.join("handover.sock").exists());
        drop(held);
    }
}

// SEMANTICS: K1
#[test]
fn published_readers_outlive_100_kills_of_daemon_and_plugin_in_turn() {
    const FILES: u64 = 60;
    let lab = Lab::new();
    for i in 0..FILES {
        lab.put(&format!("f{i}"), bytes(i));
    }
    let mut larderd = Larderd::start(&lab, "turns", &[]);
    let mut plugin = Plugin::start(&lab, &larderd, &[]);
    let targets = [plugin.path("kubelet/pods/a"), plugin.path("kubelet/pods/b")];
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    for target in &targets {
        wait_until("the volume is published", || {
            lab.runtime().block_on(node.node_publish_volume(publish(&lab, target))).is_ok()
        });
    }
    assert_eq!(larder_mounts(lab.folder()).len(), 3, "one FUSE mount, bound twice");
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (stop, read, target) = (&stop, &read, &targets[reader % 2]);
            scope.spawn(move || {
                for i in (0..FILES).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let file = std::fs::File::open(target.join(format!("f{i}"))).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut got = Vec::new();
                    std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
                    assert!(got == bytes(i), "f{i} has wrong bytes");
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // A child inherits open files of the mount and closes them. Until the kernel has the first answer to a close,
        // that would wait.
        wait_until("the readers read", || read.load(Ordering::Relaxed) > 0);
        for kill in 0..scaled(20) {
            if kill % 2 == 0 {
                larderd.kill();
                larderd.restart();
            } else {
                plugin.kill();
                plugin.restart();
            }
            wait_until("both hold the connection", || larderd.connections() >= 1 && plugin.connections() >= 1);
            let before = read.load(Ordering::Relaxed);
            wait_until("the readers go on", || read.load(Ordering::Relaxed) > before);
        }
        stop.store(true, Ordering::Relaxed);
    });
    for target in &targets {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: "volume".to_owned(),
            target_path: target.display().to_string(),
        };
        wait_until("the volume is unpublished", || {
            lab.runtime().block_on(node.node_unpublish_volume(request.clone())).is_ok()
        });
        assert!(!target.exists());
    }
    assert_eq!(larder_mounts(lab.folder()), [] as [String; 0]);
    wait_until("neither holds a connection", || larderd.connections() + plugin.connections() == 0);
}

// SEMANTICS: K7
#[test]
fn volumes_that_state_other_sizes_and_policies_have_the_largest_size_and_the_first_policy() {
    let lab = Lab::new();
    lab.put("f", b"bytes".to_vec());
    lab.put("g", b"more".to_vec());
    let mut larderd = Larderd::start(&lab, "settings", &[]);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    let volumes = [("first", "5", "nr"), ("second", "1MiB", "lru"), ("third", "1", "nr")];
    for (name, size, policy) in volumes {
        let mut request = publish(&lab, &plugin.path(&format!("kubelet/pods/{name}")));
        request.volume_id = name.to_owned();
        request.volume_context.insert("cacheSize".to_owned(), size.to_owned());
        request.volume_context.insert("policy".to_owned(), policy.to_owned());
        wait_until("the volume is published", || {
            lab.runtime().block_on(node.node_publish_volume(request.clone())).is_ok()
        });
    }
    // The second volume wants more than the nine bytes of the dataset.
    for what in ["before a kill", "after it"] {
        for (name, ..) in volumes {
            let target = plugin.path(&format!("kubelet/pods/{name}"));
            assert_eq!(std::fs::read(target.join("g")).unwrap(), b"more", "{what}");
            let stats = std::fs::read(target.join(".larder/stats.json")).unwrap();
            let stats: Value = serde_json::from_slice(&stats).unwrap();
            let cache = &stats["cache"];
            assert_eq!((&cache["capacity_bytes"], &cache["policy"]), (&9.into(), &"nr".into()), "{what}: {cache}");
        }
        larderd.kill();
        larderd.restart();
    }
    let log = larderd.log();
    for what in ["cache size", "policy"] {
        let noted = |line: &&str| line.contains("another setting than the dataset is open with") && line.contains(what);
        assert!(log.lines().any(|line| noted(&line)), "{log}");
    }
}

// SEMANTICS: K9
#[test]
fn readers_go_on_where_sharing_was_turned_off() {
    let lab = Lab::new();
    lab.put("f", b"bytes".to_vec());
    lab.put("g", b"more".to_vec());
    let sharing = ["--peers=n1=127.0.0.1:9466", "--node-name=n1", "--peer-plaintext"];
    let mut larderd = Larderd::start(&lab, "sharing", &sharing);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    let target = plugin.path("kubelet/pods/a");
    let mut request = publish(&lab, &target);
    request.volume_context.insert("placement".to_owned(), "partitioned".to_owned());
    wait_until("the volume is published", || lab.runtime().block_on(node.node_publish_volume(request.clone())).is_ok());
    assert_eq!(std::fs::read(target.join("f")).unwrap(), b"bytes");
    larderd.kill();
    larderd.set_flags(&[]);
    larderd.restart();
    assert_eq!(std::fs::read(target.join("g")).unwrap(), b"more");
    // A new volume that needs other nodes is told that there are none.
    request.volume_id = "another".to_owned();
    request.target_path = plugin.path("kubelet/pods/b").display().to_string();
    let refused = lab.runtime().block_on(node.node_publish_volume(request)).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("partitioned needs other nodes: start larderd with --peers"), "{refused}");
}

// SEMANTICS: K7
#[test]
fn credentials_that_may_not_read_open_nothing_that_another_tenant_has_cached() {
    let lab = Lab::new();
    lab.put("f", b"secret data".to_vec());
    // larderd's own credentials are valid. They must not help a tenant that brings others.
    let larderd = Larderd::start(&lab, "tenants", &[]);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    let good = plugin.path("kubelet/pods/good");
    wait_until("the volume is published", || {
        lab.runtime().block_on(node.node_publish_volume(publish(&lab, &good))).is_ok()
    });
    assert_eq!(std::fs::read(good.join("f")).unwrap(), b"secret data");
    for (key, secret) in [("AKIAIOSFODNN7EXAMPLE", "wrong"), ("stranger", SECRET)] {
        let bad = plugin.path("kubelet/pods/bad");
        let mut request = publish(&lab, &bad);
        request.volume_id = "other".to_owned();
        request.secrets.insert("AWS_ACCESS_KEY_ID".to_owned(), key.to_owned());
        request.secrets.insert("AWS_SECRET_ACCESS_KEY".to_owned(), secret.to_owned());
        let refused = lab.runtime().block_on(node.node_publish_volume(request)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
        assert!(!refused.message().contains(secret), "{refused}");
        assert!(std::fs::read_dir(&bad).map_or(0, Iterator::count) == 0);
    }
}
