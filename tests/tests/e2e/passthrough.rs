//! Large files that are wholly cached and that the kernel reads by itself.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Mount, Plugin};
use larder_testkit::seeded_bytes;
use rustix::mount::MountFlags;
use serde_json::Value;

use crate::csi::{publish, wait_until};
use crate::disk_faults::cache_files;

const MIB: u64 = 1 << 20;

/// A file whose last page is not full.
const SIZE: u64 = 40 * MIB + 5000;

/// True if this machine lets Larder's mounts do it.
fn kernel_reads() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(9)) && rustix::process::geteuid().is_root()
}

/// A bucket with the file. `None`: the kernel of this machine cannot do it, and it is not CI's.
fn lab() -> Option<(Lab, Vec<u8>)> {
    if !kernel_reads() {
        assert!(std::env::var_os("CI").is_none(), "the kernel cannot read cached files by itself");
        eprintln!("SKIPPED: the kernel cannot read cached files by itself");
        return None;
    }
    let lab = Lab::new();
    let bytes = seeded_bytes(1, SIZE);
    lab.put("model", bytes.clone());
    Some((lab, bytes))
}

/// Fills the cache.
fn warm(mount: &Mount) {
    assert_eq!(std::fs::read(mount.path("model")).unwrap().len() as u64, SIZE);
    mount.settle();
    mount.wait_until("all of the file is cached", |mount| mount.metric("store_used_bytes") == SIZE);
}

/// The bytes of the cache that the process has read for a mount.
fn read_by_larder(dir: &Path) -> u64 {
    // The file keeps its content for 50 ms.
    std::thread::sleep(Duration::from_millis(60));
    let stats: Value = serde_json::from_slice(&std::fs::read(dir.join(".larder/stats.json")).unwrap()).unwrap();
    stats["metrics"]["fs_read_bytes_store_total"].as_u64().unwrap()
}

/// True if the process that serves the mount answers the reads of those who open the file now.
fn is_served(dir: &Path) -> bool {
    let before = read_by_larder(dir);
    // Past the kernel's page cache.
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(direct).open(dir.join("model")).unwrap();
    let mut memory = vec![0_u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    file.read_exact_at(&mut memory[start..start + 4096], 20 * MIB).unwrap();
    drop(file);
    read_by_larder(dir) > before
}

fn assert_right(file: &File, bytes: &[u8]) {
    let mut found = vec![0; bytes.len() + 1];
    let mut len = 0;
    while let read @ 1.. = file.read_at(&mut found[len..], len as u64).unwrap() {
        len += read;
    }
    assert!(found[..len] == *bytes, "{len} bytes");
}

// SEMANTICS: C22
#[test]
fn a_cached_file_is_read_by_the_kernel_also_once_larder_is_gone() {
    let Some((lab, bytes)) = lab() else { return };
    let mount = lab.mount("m", &lab.url(), &[]);
    // While somebody has it open who opened it before it was cached, all read it through Larder.
    let early = File::open(mount.path("model")).unwrap();
    warm(&mount);
    for _ in 0..3 {
        assert!(is_served(&mount.path("")));
    }
    assert_right(&early, &bytes);
    drop(early);
    mount.wait_until("the kernel reads the file", |mount| !is_served(&mount.path("")));
    let (one, other) = (File::open(mount.path("model")).unwrap(), File::open(mount.path("model")).unwrap());
    let served = mount.metric("fs_read_bytes_store_total");
    assert_right(&one, &bytes);
    assert_right(&other, &bytes);
    assert_eq!((mount.metric("fs_read_bytes_store_total"), mount.metric("fs_errors_total")), (served, 0));
    // Its other files are served as ever.
    assert_eq!(mount.stats()["cache"]["used_bytes"], SIZE);
    mount.kill();
    assert_right(&one, &bytes);
    assert_right(&other, &bytes);
}

// SEMANTICS: C22
#[test]
fn a_file_that_an_earlier_process_has_cached_is_checked_before_anyone_opens_it() {
    let Some((lab, bytes)) = lab() else { return };
    let mount = lab.mount("m", &lab.url(), &[]);
    warm(&mount);
    mount.kill();
    drop(mount);
    let mount = lab.mount("m", &lab.url(), &[]);
    let is_checked = |_: &Mount| lab.logs().contains("large files of earlier processes checked");
    mount.wait_until("the scrub has ended", is_checked);
    assert!(!is_served(&mount.path("")), "at its first opening");
    assert_right(&File::open(mount.path("model")).unwrap(), &bytes);
    mount.kill();
    drop(mount);
    // A byte that nobody reads before the scrub does.
    let [cached] = &cache_files(&lab, "/files/00000000")[..] else { panic!("one file is cached") };
    let damaged = OpenOptions::new().write(true).open(cached).unwrap();
    damaged.write_all_at(&[!bytes[30 << 20]], 30 * MIB).unwrap();
    damaged.sync_all().unwrap();
    let mount = lab.mount("m", &lab.url(), &[]);
    mount.wait_until("the scrub has found it", |mount| mount.metric("store_corrupt_total") == 1);
    assert!(is_served(&mount.path("")), "a page of it is missing");
    assert_right(&File::open(mount.path("model")).unwrap(), &bytes);
}

// SEMANTICS: A2, C22
#[test]
fn a_mount_that_root_made_writable_lets_nobody_write_to_the_file_that_the_kernel_reads() {
    let Some((lab, bytes)) = lab() else { return };
    let mount = lab.mount("m", &lab.url(), &[]);
    warm(&mount);
    mount.wait_until("the kernel reads the file", |mount| !is_served(&mount.path("")));
    rustix::mount::mount_remount(mount.dir(), MountFlags::NODEV | MountFlags::NOSUID, c"").unwrap();
    let refused = OpenOptions::new().read(true).write(true).open(mount.path("model")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(!is_served(&mount.path("")));
    assert_right(&File::open(mount.path("model")).unwrap(), &bytes);
}

// SEMANTICS: C22, C27
#[test]
fn a_plan_ends_with_a_file_that_the_kernel_reads_by_itself() {
    let Some((lab, bytes)) = lab() else { return };
    let mount = lab.mount("m", &lab.url(), &[]);
    let mut plan = lab.command(&["plan", mount.dir().to_str().unwrap(), "--from", "-"]);
    let mut plan = plan.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    plan.stdin.take().unwrap().write_all(b"model\n").unwrap();
    mount.wait_until("all of the file is here", |mount| {
        mount.metric("fs_plan_bytes") == SIZE && mount.metric("fs_fetches_running") == 0
    });
    mount.settle();
    assert_right(&File::open(mount.path("model")).unwrap(), &bytes);
    assert_eq!(mount.metric("fs_read_bytes_window_total") + mount.metric("fs_read_bytes_store_total"), 0);
    assert!(plan.wait().unwrap().success());
    assert_eq!((mount.metric("fs_plans"), mount.metric("fs_plan_bytes")), (0, 0));
}

// SEMANTICS: C22
#[test]
fn the_keeper_lends_a_cached_file_and_the_next_larderd_gives_the_same_answer() {
    let Some((lab, bytes)) = lab() else { return };
    let mut larderd = Larderd::start(&lab, "passthrough", &[]);
    let mut plugin = Plugin::start(&lab, &larderd, &[]);
    wait_until("the keeper lends files", || larderd.run_dir().join("lender.sock").exists());
    let target = plugin.path("kubelet/pods/a");
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    wait_until("the volume is published", || {
        lab.runtime().block_on(node.node_publish_volume(publish(&lab, &target))).is_ok()
    });
    let model = target.join("model");
    assert_right(&File::open(&model).unwrap(), &bytes);
    wait_until("the kernel reads the file", || !is_served(&target));
    let held = File::open(&model).unwrap();
    let read_held = || {
        rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_right(&held, &bytes);
    };
    larderd.kill();
    read_held();
    larderd.restart();
    for _ in 0..2 {
        wait_until("both hold the connection", || larderd.connections() >= 1 && plugin.connections() >= 1);
        // An answer in the other mode would fail, since somebody has the file open.
        assert_right(&File::open(&model).unwrap(), &bytes);
        assert!(!is_served(&target));
        read_held();
        plugin.kill();
        plugin.restart();
    }
}

// SEMANTICS: C22
#[test]
fn verify_always_keeps_all_reads_with_larder() {
    let Some((lab, bytes)) = lab() else { return };
    let mount = lab.mount("m", &lab.url(), &["--verify", "always"]);
    warm(&mount);
    for _ in 0..3 {
        assert!(is_served(&mount.path("")));
    }
    assert_right(&File::open(mount.path("model")).unwrap(), &bytes);
}
