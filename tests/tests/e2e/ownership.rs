//! The owner and the modes of a mount's files, and mounts in user namespaces.
#![expect(unsafe_code, reason = "rustix has no mount_setattr")]

use std::fs::{File, Metadata, metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Plugin, wait_until};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use serde_json::Value;

use crate::csi::publish;

/// User, group and permission bits.
fn shown(found: &Metadata) -> (u32, u32, u32) {
    (found.uid(), found.gid(), found.permissions().mode() & 0o7777)
}

// SEMANTICS: A1
#[test]
fn a_mount_shows_the_owner_and_the_modes_that_it_was_given_and_others_their_own() {
    let lab = Lab::new();
    lab.put("d/f", b"bytes".to_vec());
    let flags = ["--uid=1000", "--gid=100", "--file-mode=0440", "--dir-mode=0550"];
    // Both are served by one process.
    let given = lab.mount("m", &lab.url(), &flags);
    let (dir, cache) = (lab.folder().join("plain"), lab.cache_dir("m"));
    std::fs::create_dir(&dir).unwrap();
    let plain = ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    lab.larder_ok(&plain);
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (path, given_mode, plain_mode) in [("", 0o550, 0o555), ("d", 0o550, 0o555), ("d/f", 0o440, 0o444)] {
        assert_eq!(shown(&metadata(given.path(path)).unwrap()), (1000, 100, given_mode), "{path:?}");
        assert_eq!(shown(&metadata(dir.join(path)).unwrap()), (own.0, own.1, plain_mode), "{path:?}");
    }
    let bytes = std::fs::read(given.path("d/f")).unwrap();
    given.settle();
    assert_eq!(bytes, std::fs::read(dir.join("d/f")).unwrap());
    assert_eq!(lab.gets_of("d/f"), 1, "both read one cache");
    lab.larder_ok(&["umount", dir.to_str().unwrap()]);
    for (flag, said) in [
        ("--file-mode=0644", "write bits"),
        ("--dir-mode=0777", "write bits"),
        ("--file-mode=4444", "setuid"),
        ("--file-mode=rw", "octal"),
        ("--uid=root", "must be a number"),
        ("--gid=4294967295", "must be a number"),
    ] {
        let error = lab.larder_fails(2, &[&plain[..], &[flag]].concat());
        assert!(error.contains(said), "{flag}: {error}");
    }
}

/// A larderd with its plugin, and volumes of one dataset.
struct Node {
    lab: Lab,
    larderd: Larderd,
    plugin: Plugin,
}

impl Node {
    fn start() -> Self {
        let lab = Lab::new();
        for n in 0..8 {
            lab.put(&format!("d{n}/f"), vec![n; 1000]);
        }
        let larderd = Larderd::start(&lab, "owners", &[]);
        let plugin = Plugin::start(&lab, &larderd, &[]);
        wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
        Self { lab, larderd, plugin }
    }

    fn publish(&self, name: &str, attributes: &[(&str, &str)]) -> Result<PathBuf, tonic::Status> {
        let target = self.plugin.path("kubelet/pods").join(name).join("mount");
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        let mut request = publish(&self.lab, &target);
        request.volume_id = name.to_owned();
        let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        request.volume_context.extend(attributes);
        let _in_runtime = self.lab.runtime().enter();
        let mut node = NodeClient::new(self.plugin.channel());
        self.lab.runtime().block_on(node.node_publish_volume(request)).map(|_| target)
    }
}

// SEMANTICS: A1, K5
#[test]
fn volumes_of_one_dataset_each_have_their_owner_over_restarts_of_both_processes_and_share_its_cache() {
    let mut node = Node::start();
    let volumes = [
        ("plain", vec![], (0, 0, 0o555, 0o444)),
        (
            "owned",
            vec![("uid", "1000"), ("gid", "100"), ("fileMode", "0440"), ("dirMode", "0550")],
            (1000, 100, 0o550, 0o440),
        ),
        ("group", vec![("gid", "7")], (0, 7, 0o555, 0o444)),
    ];
    let targets = volumes.clone().map(|(name, attributes, _)| node.publish(name, &attributes).unwrap());
    let check = |n: usize| {
        for (target, (name, _, (uid, gid, dir_mode, file_mode))) in targets.iter().zip(&volumes) {
            // The kernel has not asked for these before.
            let (dir, file) = (target.join(format!("d{n}")), target.join(format!("d{n}/f")));
            assert_eq!(shown(&metadata(dir).unwrap()), (*uid, *gid, *dir_mode), "{name}, d{n}");
            assert_eq!(shown(&metadata(&file).unwrap()), (*uid, *gid, *file_mode), "{name}, d{n}/f");
            assert_eq!(std::fs::read(file).unwrap(), vec![n as u8; 1000]);
            settle(target);
        }
    };
    check(0);
    assert_eq!(node.lab.gets_of("d0/f"), 1, "three mounts read one cache");
    node.larderd.kill();
    node.larderd.restart();
    check(1);
    node.plugin.kill();
    node.plugin.restart();
    wait_until("the driver holds all connections again", || node.plugin.connections() >= volumes.len());
    node.larderd.kill();
    node.larderd.restart();
    check(2);
    // The same volume again: it has its mount already.
    node.publish("owned", &volumes[1].1).unwrap();
    let refused = node.publish("wrong", &[("fileMode", "0666")]).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("attribute `fileMode` has write bits"), "{refused}");
}

/// Waits until the mount at `dir` has nothing in flight from the origin or into the store.
fn settle(dir: &Path) {
    wait_until("the mount is idle", || {
        // The file keeps its content for 50 ms.
        std::thread::sleep(Duration::from_millis(60));
        let stats: Value = serde_json::from_slice(&std::fs::read(dir.join(".larder/stats.json")).unwrap()).unwrap();
        stats["metrics"]["fs_fetches_running"] == 0
    });
}

/// True if the kernel maps FUSE mounts: from Linux 6.12 on.
fn kernel_maps() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// A user namespace in which root is this machine's user 100000.
struct UserNamespace(Child);

impl UserNamespace {
    fn new() -> Self {
        let child = Command::new("unshare").args(["--user", "sleep", "infinity"]).stdin(Stdio::null()).spawn().unwrap();
        let (path, id) = (|id: u32, file: &str| format!("/proc/{id}/{file}"), child.id());
        let own = std::fs::read_link("/proc/self/ns/user").unwrap();
        wait_until("it has its namespace", || std::fs::read_link(path(id, "ns/user")).is_ok_and(|its| its != own));
        for map in ["uid_map", "gid_map"] {
            std::fs::write(path(id, map), "0 100000 65536").unwrap();
        }
        Self(child)
    }

    /// A copy of the mount at `dir`, mapped into this namespace, as container runtimes make it.
    fn map(&self, dir: &Path) -> io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = rustix::mount::open_tree(CWD, dir, flags)?;
        let namespace = File::open(format!("/proc/{}/ns/user", self.0.id()))?;
        let attributes = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_IDMAP,
            attr_clr: 0,
            propagation: 0,
            userns_fd: u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?,
        };
        // SAFETY: the pointers are to values that outlive the call, and the size is that of the structure.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attributes,
                size_of::<libc::mount_attr>(),
            )
        };
        if done == 0 { Ok(tree) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// SEMANTICS: A5
#[test]
fn a_mount_can_be_mapped_into_a_user_namespace_where_its_files_belong_to_the_mapped_users() {
    let mut node = Node::start();
    let (plain, owned) = (node.publish("plain", &[]).unwrap(), node.publish("owned", &[("uid", "5")]).unwrap());
    let mounted = node.lab.mount("cli", &node.lab.url(), &[]);
    let namespace = UserNamespace::new();
    let check = |dir: &Path, owner: u32, file: &str| {
        let tree = match namespace.map(dir) {
            Ok(tree) => tree,
            // The kernel cannot, which the runtime then reports for the pod.
            Err(error) if !kernel_maps() => {
                return assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
            }
            Err(error) => panic!("{}: {error}", dir.display()),
        };
        let found = rustix::fs::statat(&tree, file, AtFlags::empty()).unwrap();
        assert_eq!((found.st_uid, found.st_gid), (owner, 100_000), "{}", dir.display());
        let opened = rustix::fs::openat(&tree, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut File::from(opened), &mut bytes).unwrap();
        assert_eq!(bytes.len(), 1000);
    };
    check(&plain, 100_000, "d0/f");
    check(&owned, 100_005, "d0/f");
    check(mounted.dir(), 100_000, "d0/f");
    // The next larderd serves a connection that its predecessor has opened.
    node.larderd.kill();
    node.larderd.restart();
    check(&plain, 100_000, "d1/f");
    check(&owned, 100_005, "d1/f");
}
