//! A larderd that is a service of systemd, whose descriptor store keeps its mounts.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use larder_daemon_api::mountinfo::larder_mounts;
use larder_daemon_api::v1;
use larder_dataset::crc32c;
use larder_e2e::{Lab, Larderd, Systemd, wait_until};
use larder_testkit::{Fault, built};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};

const FILES: usize = 60;

fn content(file: usize) -> Vec<u8> {
    format!("file {file} ").repeat(1000 + file).into_bytes()
}

/// The folder of the service's cache and home.
fn node_folder(lab: &Lab) -> PathBuf {
    lab.folder().join("node-service")
}

/// A larderd of a service, with a mount.
struct Service {
    // It ends before its files are removed.
    larderd: Larderd,
    systemd: Systemd,
    dir: PathBuf,
    lab: Lab,
}

impl Service {
    fn start() -> Self {
        Self::start_in(Lab::new())
    }

    fn start_in(lab: Lab) -> Self {
        (0..FILES).for_each(|file| lab.put(&format!("f{file}"), content(file)));
        let systemd = Systemd::start(lab.folder());
        let mut larderd = Larderd::start(&lab, "service", &[]);
        larderd.kill();
        larderd.set_systemd(&systemd);
        larderd.restart();
        let dir = lab.folder().join("data");
        std::fs::create_dir(&dir).unwrap();
        let service = Self { larderd, systemd, dir, lab };
        service.larderd.wait_until_it_answers();
        service.mount(&service.lab.url(), &service.dir);
        service
    }

    fn mount(&self, url: &str, dir: &Path) {
        let cache = self.larderd.run_dir().to_str().unwrap();
        self.lab.larder_ok(&["mount", url, dir.to_str().unwrap(), "--cache-dir", cache]);
    }

    /// Reads files that were never read before, so that each read waits for a larderd.
    fn read(&self, files: std::ops::Range<usize>) -> JoinHandle<()> {
        let dir = self.dir.clone();
        std::thread::spawn(move || {
            for file in files {
                assert!(std::fs::read(dir.join(format!("f{file}"))).unwrap() == content(file), "file {file}");
            }
        })
    }

    fn is_mounted(&self) -> bool {
        larder_mounts().iter().any(|mount| mount.path == self.dir)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A test that failed may have readers that wait.
        for mount in larder_mounts().iter().filter(|mount| mount.path.starts_with(self.lab.folder())) {
            let _ = rustix::mount::unmount(&mount.path, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        self.larderd.kill();
        let _ = rustix::mount::unmount(node_folder(&self.lab), UnmountFlags::DETACH);
    }
}

// SEMANTICS: P12
#[test]
fn readers_go_on_when_the_service_is_killed_or_restarted() {
    let mut service = Service::start();
    assert_eq!(service.systemd.kept(), ["larder-0-fuse", "larder-0-mount", "larder-0-requests"]);
    service.read(0..5).join().unwrap();
    service.systemd.set_job(Some("restart"));
    for step in 1..=6 {
        if step % 2 == 0 {
            service.larderd.kill();
        } else {
            service.larderd.terminate();
        }
        assert!(service.is_mounted());
        let readers = [5 * step..5 * step + 2, 5 * step + 2..5 * step + 5].map(|files| service.read(files));
        service.larderd.restart();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }
    wait_until("each process of the service was ready", || service.systemd.ready() == 7);
    assert_eq!(service.systemd.kept().len(), 3);
    // Another mount beside the one that was taken over, and both are taken over.
    let other = service.lab.folder().join("other");
    std::fs::create_dir(&other).unwrap();
    service.lab.put_other("g", b"other".to_vec());
    service.mount(&service.lab.other_url(), &other);
    service.larderd.kill();
    service.larderd.restart();
    assert_eq!(std::fs::read(other.join("g")).unwrap(), b"other");
    service.read(50..55).join().unwrap();
}

// SEMANTICS: P12
#[test]
fn a_read_that_was_taken_is_answered_by_the_next_process() {
    let mut service = Service::start();
    let asked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&asked);
    service.lab.proxy.set_hook(move |request| {
        if request.path.contains("f7") {
            seen.store(true, Ordering::Relaxed);
            return Fault::StallBeforeHead;
        }
        Fault::None
    });
    let reader = service.read(7..8);
    wait_until("the origin was asked for the file", || asked.load(Ordering::Relaxed));
    service.larderd.kill();
    service.lab.proxy.set_hook(|_| Fault::None);
    service.larderd.restart();
    reader.join().unwrap();
}

// SEMANTICS: P12
#[test]
fn a_stop_of_the_service_ends_its_mounts_and_an_unmount_leaves_nothing_in_the_store() {
    let mut service = Service::start();
    service.lab.larder_ok(&["umount", service.dir.to_str().unwrap()]);
    wait_until("the store is empty", || service.systemd.kept().is_empty());
    assert!(!service.is_mounted());
    service.larderd.kill();
    service.larderd.restart();
    service.larderd.wait_until_it_answers();
    assert!(!service.is_mounted(), "what was unmounted does not come back");
    let url = service.lab.url();
    service.mount(&url, &service.dir);
    service.read(0..3).join().unwrap();
    service.systemd.set_job(Some("stop"));
    service.larderd.terminate();
    assert!(!service.is_mounted());
}

// SEMANTICS: P12
#[test]
fn a_mount_can_be_ended_by_the_command_while_no_larderd_runs() {
    let mut service = Service::start();
    service.larderd.kill();
    service.lab.larder_ok(&["umount", "--lazy", service.dir.to_str().unwrap()]);
    assert!(!service.is_mounted());
    service.larderd.restart();
    wait_until("the store is empty", || service.systemd.kept().is_empty());
}

#[test]
fn a_mount_over_one_that_nobody_serves_is_refused_and_harms_no_reader() {
    let mut service = Service::start();
    service.larderd.kill();
    let reader = service.read(0..1);
    let (dir, cache) = (service.dir.to_str().unwrap(), service.larderd.run_dir().to_str().unwrap());
    let error = service.lab.larder_fails(1, &["mount", &service.lab.url(), dir, "--cache-dir", cache]);
    assert!(error.contains("does not answer") && error.contains(&format!("larder umount {dir}")), "{error}");
    assert!(service.is_mounted());
    service.larderd.restart();
    reader.join().unwrap();
}

// SEMANTICS: P12
#[test]
fn a_mount_that_ended_while_no_larderd_ran_is_forgotten_and_can_be_made_again() {
    let mut service = Service::start();
    service.larderd.kill();
    rustix::mount::unmount(&service.dir, UnmountFlags::DETACH).unwrap();
    service.larderd.restart();
    service.larderd.wait_until_it_answers();
    wait_until("the store is empty", || service.systemd.kept().is_empty());
    let url = service.lab.url();
    service.mount(&url, &service.dir);
    service.read(0..3).join().unwrap();
}

// SEMANTICS: P2, P12
#[test]
fn a_folder_that_was_unmounted_while_it_is_in_use_can_be_mounted_again() {
    let service = Service::start();
    let dir = service.dir.to_str().unwrap();
    let mut in_use = File::open(service.dir.join("f1")).unwrap();
    service.lab.larder_ok(&["umount", "--lazy", dir]);
    assert!(!service.is_mounted());
    service.mount(&service.lab.url(), &service.dir);
    assert!(service.is_mounted());
    service.read(2..5).join().unwrap();
    // This waits for the end of the newer mount, and not for that of the one that is in use.
    service.lab.larder_ok(&["umount", dir]);
    assert!(!service.is_mounted());
    wait_until("the store has the mount that is in use", || service.systemd.kept().len() == 3);
    let mut bytes = Vec::new();
    in_use.read_to_end(&mut bytes).unwrap();
    assert!(bytes == content(1));
    drop(in_use);
    wait_until("the store is empty", || service.systemd.kept().is_empty());
}

// SEMANTICS: P12
#[test]
fn a_stop_leaves_alone_what_was_mounted_in_place_of_a_dataset() {
    let mut service = Service::start();
    let in_use = File::open(service.dir.join("f1")).unwrap();
    service.lab.larder_ok(&["umount", "--lazy", service.dir.to_str().unwrap()]);
    rustix::mount::mount("none", &service.dir, "tmpfs", MountFlags::empty(), None::<&CStr>).unwrap();
    service.systemd.set_job(Some("stop"));
    let pid = Pid::from_raw(service.larderd.pid().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    // The signal, and the mount.
    wait_until("it ends its mounts", || service.larderd.log().matches("stopping").count() >= 2);
    drop(in_use);
    wait_until("it has stopped", || service.larderd.log().contains("larderd stopped"));
    service.larderd.kill();
    rustix::mount::unmount(&service.dir, UnmountFlags::DETACH).expect("the other file system is still there");
}

// SEMANTICS: C4, P12
#[test]
fn a_version_that_refuses_the_cache_leaves_the_mounts_to_one_that_can_use_it() {
    let mut service = Service::start();
    service.read(0..3).join().unwrap();
    service.larderd.kill();
    let format = service.larderd.run_dir().join("format");
    let ours = std::fs::read(&format).unwrap();
    let mut newer = ours.clone();
    newer[8] += 1;
    let crc = crc32c(&newer[..12]);
    newer[12..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&format, &newer).unwrap();
    let reader = service.read(3..6);
    for attempt in 1..=2 {
        service.larderd.restart();
        wait_until("it refuses the cache", || service.larderd.log().matches("larderd failed").count() == attempt);
        service.larderd.kill();
    }
    assert!(service.larderd.log().contains("newer version of Larder"), "{}", service.larderd.log());
    assert_eq!(std::fs::read(&format).unwrap(), newer);
    assert_eq!(service.systemd.kept().len(), 3);
    assert!(service.is_mounted());
    std::fs::write(&format, &ours).unwrap();
    service.larderd.restart();
    reader.join().unwrap();
}

#[test]
fn a_second_larderd_over_the_cache_is_refused_and_harms_no_reader() {
    let service = Service::start();
    let run_dir = service.lab.folder().join("second");
    let flags = [
        format!("--cache-dir={}", service.larderd.run_dir().display()),
        format!("--home={}", run_dir.join("home").display()),
        format!("--run-dir={}", run_dir.display()),
    ];
    let second = service.lab.program(built("larderd"), &flags.each_ref().map(String::as_str)).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    let first = service.larderd.pid().unwrap();
    assert!(!second.status.success() && said.contains(&format!("in use by process {first}:")), "{said}");
    service.read(0..3).join().unwrap();
}

// SEMANTICS: C4, P12
#[test]
fn readers_go_on_when_the_service_starts_again_on_a_full_disk() {
    let lab = Lab::new();
    let folder = node_folder(&lab);
    std::fs::create_dir(&folder).unwrap();
    rustix::mount::mount("larder-test", &folder, "tmpfs", MountFlags::empty(), Some(c"size=64m")).unwrap();
    let mut service = Service::start_in(lab);
    service.read(0..5).join().unwrap();
    let mut filler = File::create(folder.join("filler")).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    // On another disk, as /run is.
    let run_dir = service.lab.folder().join("run");
    std::fs::create_dir(&run_dir).unwrap();
    service.larderd.set_run_dirs(&[&run_dir]);
    for step in 1..=2 {
        service.larderd.kill();
        let reader = service.read(5 * step..5 * step + 5);
        service.larderd.restart();
        service.larderd.wait_until_it_answers();
        reader.join().unwrap();
    }
    assert_eq!(service.systemd.kept().len(), 3);
}

// SEMANTICS: P12
#[test]
fn a_request_to_mount_that_is_sent_again_after_a_kill_is_answered() {
    let mut service = Service::start();
    let _in_runtime = service.lab.runtime().enter();
    let dataset = v1::Dataset { source: service.lab.url(), ..v1::Dataset::default() };
    let dir = service.lab.folder().join("again");
    std::fs::create_dir(&dir).unwrap();
    let request =
        v1::MountRequest { dataset: Some(dataset), dir: dir.display().to_string(), ..v1::MountRequest::default() };
    let mount = |larderd: &Larderd| {
        let mut client = larderd.client();
        service.lab.runtime().block_on(client.mount(request.clone())).unwrap()
    };
    mount(&service.larderd);
    service.larderd.kill();
    service.larderd.restart();
    service.larderd.wait_until_it_answers();
    mount(&service.larderd);
    assert_eq!(larder_mounts().iter().filter(|mount| mount.path == dir).count(), 1);
    assert_eq!(service.systemd.kept().len(), 6);
}

// SEMANTICS: P12
#[test]
fn a_mount_of_root_without_a_cache_of_its_own_is_served_by_the_service_where_it_runs() {
    let mut service = Service::start();
    let dir = service.lab.folder().join("by-service");
    std::fs::create_dir(&dir).unwrap();
    service.lab.put_other("g", b"other".to_vec());
    // The folder of the service's sockets is there for this command alone.
    let script = "mount -t tmpfs none /run && mkdir /run/larderd && mount --bind \"$0\" /run/larderd && exec \"$@\"";
    let command = service.lab.command(&[]);
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "/bin/sh", "-c", script]).arg(service.larderd.run_dir()).arg(command.get_program());
    wrapped.args(["mount", &service.lab.other_url(), dir.to_str().unwrap()]).env_clear();
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("LARDER_HOME");
    let output = wrapped.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read(dir.join("g")).unwrap(), b"other");
    assert_eq!(service.systemd.kept().len(), 6);
    service.larderd.kill();
    service.larderd.restart();
    assert_eq!(std::fs::read(dir.join("g")).unwrap(), b"other");
    service.lab.larder_ok(&["umount", dir.to_str().unwrap()]);
    wait_until("the store has one mount", || service.systemd.kept().len() == 3);
}
