//! The lab of nodes itself: what it promises to the scenarios.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_e2e::nodes::{Node, Nodes};
use larder_e2e::wait_until;
use larder_testkit::seeded_bytes;
use rustix::io::Errno;

const FILES: u64 = 40;

fn bytes(n: u64) -> Vec<u8> {
    seeded_bytes(n, 10_000 + n * 1_000)
}

/// A lab with nodes 1 and 2, and a few files.
fn two_nodes() -> (Nodes, Node, Node) {
    let nodes = Nodes::new(2);
    for n in 0..FILES {
        nodes.lab.put(&format!("{n}"), bytes(n));
    }
    nodes.lab.put("large", seeded_bytes(FILES, 3_000_000));
    let (one, two) = (nodes.start(1, &[]), nodes.start(2, &[]));
    (nodes, one, two)
}

#[test]
fn each_node_has_a_cache_and_a_home_and_all_have_one_origin_and_one_snapshot() {
    let (nodes, one, mut two) = two_nodes();
    let mounts = [one.mount(&nodes.lab.url(), &[]), two.mount(&nodes.lab.url(), &[])];
    let snapshots = mounts.each_ref().map(|mount| mount.stats()["dataset"]["snapshot"].as_str().unwrap().to_owned());
    assert_eq!(snapshots[0], snapshots[1]);
    for mount in &mounts {
        for n in 0..FILES {
            assert!(mount.read_fresh(format!("{n}")).unwrap() == bytes(n));
        }
        mount.settle();
    }
    for n in 0..FILES {
        assert_eq!(nodes.lab.gets_of(&format!("{n}")), 2, "each node fetches for itself");
    }
    let [_, mount] = mounts;
    two.kill();
    let dead = std::fs::metadata(mount.path("none")).unwrap_err();
    assert_eq!(Errno::from_io_error(&dead), Some(Errno::NOTCONN));
    drop(mount);
    two.restart();
    let mount = two.mount(&nodes.lab.url(), &[]);
    for n in 0..FILES {
        assert!(mount.read_fresh(format!("{n}")).unwrap() == bytes(n));
    }
    assert_eq!(nodes.lab.gets_of("1"), 2, "it has its cache again");
    let packed = "s3://bucket/packed";
    nodes.lab.larder_ok(&["pack", &nodes.lab.url(), packed]);
    assert!(one.mount(packed, &[]).read_fresh("7").unwrap() == bytes(7), "commands run at the bridge");
}

#[test]
fn a_link_is_cut_and_slowed_and_a_daemon_stopped_for_one_node_alone_and_all_of_it_is_undone() {
    let (nodes, one, two) = two_nodes();
    let impatient = one.mount(&nodes.lab.url(), &["--attempt-timeout", "1s", "--read-deadline", "2s"]);
    let mount = two.mount(&nodes.lab.url(), &[]);

    one.link.cut();
    let error = std::fs::read(impatient.path("1")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::TIMEDOUT));
    assert!(mount.read_fresh("1").unwrap() == bytes(1));
    one.link.join();
    wait_until("the link is whole", || std::fs::read(impatient.path("1")).is_ok_and(|read| read == bytes(1)));

    two.link.slow();
    let started = Instant::now();
    assert!(mount.read_fresh("large").unwrap() == seeded_bytes(FILES, 3_000_000));
    assert!(started.elapsed() > Duration::from_secs(2), "3 MB at 1 MB/s: {:?}", started.elapsed());
    two.link.speed_up();

    two.stop();
    let reader = std::thread::spawn({
        let path = mount.path("2");
        move || std::fs::read(path).unwrap() == bytes(2)
    });
    wait_until("the other node reads", || impatient.read_fresh("2").is_ok_and(|read| read == bytes(2)));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!reader.is_finished());
    let sent = two.link.sent_bytes();
    two.go_on();
    assert!(reader.join().unwrap());
    assert!(two.link.sent_bytes() > sent);
}

/// The command lines of the processes that have a folder among their arguments.
fn processes_below(folder: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok())
        .filter(|line| line.contains(folder.to_str().unwrap()))
        .collect()
}

#[test]
fn nothing_is_left_of_a_lab_that_was_dropped_or_whose_test_was_killed() {
    let (nodes, one, _two) = two_nodes();
    let folder = nodes.lab.folder().to_owned();
    let mount = one.mount(&nodes.lab.url(), &[]);
    assert!(!processes_below(&folder).is_empty());
    drop((nodes, one));
    drop(mount);
    assert_gone(&folder);

    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["nodes::a_lab_that_waits_for_its_end", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let folder = lines.find_map(|line| Some(line.unwrap().split_once("folder=")?.1.to_owned())).unwrap();
    assert!(!processes_below(Path::new(&folder)).is_empty());
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_gone(Path::new(&folder));
}

fn assert_gone(folder: &Path) {
    wait_until("no process is left", || processes_below(folder).is_empty());
    wait_until("no mount is left", || {
        !std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(folder.to_str().unwrap())
    });
    wait_until("no file is left", || !folder.exists());
}

#[test]
#[ignore = "waits to be killed, by the test above"]
fn a_lab_that_waits_for_its_end() {
    let (nodes, one, two) = two_nodes();
    let _mounts = [one.mount(&nodes.lab.url(), &[]), two.mount(&nodes.lab.url(), &[])];
    two.stop();
    println!("folder={}", nodes.lab.folder().display());
    std::thread::sleep(Duration::from_secs(600));
}
