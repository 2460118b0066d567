//! Nodes that share their caches: a real `larderd` on each, in a network of its own, real mounts, and an S3 server that
//! counts what it is asked for. Whatever is read is compared with the bytes that were put.

use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_e2e::certificates::{Authority, Identity, replace};
use larder_e2e::nodes::{Node, Nodes};
use larder_e2e::{Lab, Mount, TOKEN};
use larder_testkit::seeded_bytes;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

mod arriving;
mod copies;

const BLOCK: u64 = 4 << 20;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What mounts are told that a read may wait, in which a peer in trouble is given up, and the origin asked.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// Readers of a node in an epoch.
const READERS: usize = 2;

const PARTITIONED: [&str; 2] = ["--placement", "partitioned"];

/// A dataset: so many files of these sizes, of bytes that no other file has.
#[derive(Clone)]
struct Files {
    sizes: Arc<Vec<u64>>,
}

impl Files {
    fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        Self { sizes: Arc::new(sizes.into_iter().collect()) }
    }

    fn count(&self) -> usize {
        self.sizes.len()
    }

    fn total_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    fn path(n: usize) -> String {
        format!("d{}/{n:05}", n % 7)
    }

    fn bytes(&self, n: usize) -> Vec<u8> {
        seeded_bytes(n as u64, self.sizes[n])
    }

    fn put(&self, lab: &Lab) {
        for n in 0..self.count() {
            lab.put(&Self::path(n), self.bytes(n));
        }
    }

    /// Reads a file past the kernel's pages and says what is wrong with it, if anything is.
    fn check(&self, dir: &Path, n: usize) -> Result<(), String> {
        let read = || {
            let mut file = std::fs::File::open(dir.join(Self::path(n)))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            let mut bytes = Vec::with_capacity(self.sizes[n] as usize + 1);
            file.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        match read() {
            Ok(bytes) if bytes == self.bytes(n) => Ok(()),
            Ok(_) => Err(format!("{}: file {n} has wrong bytes", dir.display())),
            Err(error) => Err(format!("{}: file {n}: {error}", dir.display())),
        }
    }

    /// Every mount's readers read these files, all at once, each mount in an order of its own; done when nothing is on its
    /// way any more.
    fn read_part(&self, mounts: &[&Mount], seed: u64, part: impl Fn(usize, usize) -> bool) {
        std::thread::scope(|scope| {
            for (at, mount) in mounts.iter().enumerate() {
                let mut order: Vec<usize> = (0..self.count()).filter(|&n| part(at, n)).collect();
                order.shuffle(&mut StdRng::seed_from_u64(seed * 100 + at as u64));
                let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));
                for _ in 0..READERS {
                    let (order, next) = (Arc::clone(&order), Arc::clone(&next));
                    scope.spawn(move || {
                        while let Some(&n) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                            self.check(mount.dir(), n).unwrap();
                        }
                    });
                }
            }
        });
        mounts.iter().for_each(|mount| mount.settle());
    }

    /// An epoch: every mount's readers read all files.
    fn read_epoch(&self, mounts: &[&Mount], seed: u64) {
        self.read_part(mounts, seed, |_, _| true);
    }

    /// An epoch, and how many of its reads the origin was not asked for, in percent.
    fn hits_of_epoch(&self, lab: &Lab, mounts: &[&Mount], seed: u64) -> f64 {
        lab.server.reset_counters();
        self.read_epoch(mounts, seed);
        let reads = (self.count() * mounts.len()) as f64;
        100.0 * (1.0 - lab.server.counters().gets as f64 / reads)
    }
}

/// Readers of files at random, who go on whatever happens, and remember what went wrong and how long they had to wait.
struct Readers {
    stop: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<std::thread::JoinHandle<Duration>>,
}

impl Readers {
    /// So many for each mount. When this returns, each has read a file: a program that is started now closes the files that
    /// it inherits, and before the first close was answered that would wait for a daemon that may be the one to be started.
    fn start(files: &Files, mounts: &[&Mount], each: usize) -> Self {
        let mut readers =
            Self { stop: Arc::default(), read: Arc::default(), failures: Arc::default(), threads: Vec::new() };
        let begun = Arc::new(AtomicUsize::new(0));
        for mount in mounts {
            for _ in 0..each {
                let (files, dir) = (files.clone(), mount.dir().to_owned());
                let (stop, read) = (Arc::clone(&readers.stop), Arc::clone(&readers.read));
                let (failures, begun) = (Arc::clone(&readers.failures), Arc::clone(&begun));
                let mut rng = StdRng::seed_from_u64(readers.threads.len() as u64);
                readers.threads.push(std::thread::spawn(move || {
                    let mut longest = Duration::ZERO;
                    for turn in 0.. {
                        let started = Instant::now();
                        let checked = files.check(&dir, rng.random_range(0..files.count()));
                        longest = longest.max(started.elapsed());
                        read.fetch_add(1, Ordering::Relaxed);
                        if turn == 0 {
                            begun.fetch_add(1, Ordering::Relaxed);
                        }
                        if let Err(failure) = checked {
                            failures.lock().unwrap().push(failure);
                        }
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    longest
                }));
            }
        }
        wait_until("every reader has read a file", || begun.load(Ordering::Relaxed) == readers.threads.len());
        readers
    }

    fn total(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Waits for so many more reads.
    fn go_on_for(&self, reads: u64) {
        let before = self.total();
        wait_until("the readers go on", || self.total() >= before + reads);
    }

    /// Nothing may have gone wrong, up to now.
    fn assert_well(&self, when: &str) {
        let failures = self.failures.lock().unwrap();
        let first = &failures[..failures.len().min(5)];
        assert!(failures.is_empty(), "{when}: {} of {} reads failed, first {first:#?}", failures.len(), self.total());
    }

    /// Every reader must end by itself, with no failure. Returns the longest read.
    fn finish(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        wait_until("no reader is stuck", || self.threads.iter().all(|thread| thread.is_finished()));
        self.assert_well("at the end");
        self.threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `--peers` of these nodes, written out.
fn listed(numbers: RangeInclusive<usize>) -> String {
    let each: Vec<_> = numbers.map(|n| format!("{}={}", Nodes::name(n), Nodes::peer_address(n))).collect();
    each.join(",")
}

/// The text of a file of these nodes.
fn as_file(numbers: impl IntoIterator<Item = usize>) -> String {
    numbers.into_iter().map(|n| format!("{} {}\n", Nodes::name(n), Nodes::peer_address(n))).collect()
}

/// The flags of a node that has these peers.
fn peering(number: usize, peers: &str, secrecy: &[String]) -> Vec<String> {
    let mut flags = vec![
        format!("--node-name={}", Nodes::name(number)),
        format!("--peer-listen={}", Nodes::peer_address(number)),
        format!("--peers={peers}"),
    ];
    flags.extend_from_slice(secrecy);
    flags
}

fn plaintext() -> Vec<String> {
    vec!["--peer-plaintext".to_owned()]
}

/// So many nodes that know each other and speak in the clear.
fn start_in_the_clear(nodes: &Nodes, count: usize) -> Vec<Node> {
    (1..=count).map(|n| nodes.start(n, &peering(n, &listed(1..=count), &plaintext()))).collect()
}

/// The files of a node by which it knows its peers and they know it.
struct Papers {
    authorities: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Papers {
    fn new(nodes: &Nodes, number: usize, trusted: &str, identity: &Identity) -> Self {
        let path = |what: &str| nodes.lab.folder().join(format!("{}.{what}", Nodes::name(number)));
        let papers = Self { authorities: path("ca"), certificate: path("certificate"), key: path("key") };
        replace(&papers.authorities, trusted);
        papers.carry(identity);
        papers
    }

    fn carry(&self, identity: &Identity) {
        identity.write(&self.certificate, &self.key);
    }

    fn flags(&self) -> Vec<String> {
        vec![
            format!("--peer-ca={}", self.authorities.display()),
            format!("--peer-cert={}", self.certificate.display()),
            format!("--peer-key={}", self.key.display()),
        ]
    }
}

fn from_peers(mount: &Mount) -> u64 {
    mount.metric("fs_read_bytes_peer_total")
}

/// Waits until each of these mounts gets bytes from a peer, and `peer` gives some: its link carries more than talk.
fn wait_until_served(what: &str, peer: &Node, readers: &[&Mount]) {
    let sent = peer.link.sent_bytes();
    let got: Vec<u64> = readers.iter().map(|mount| from_peers(mount)).collect();
    wait_until(&format!("{what}: {} serves its peers", peer.name()), || {
        peer.link.sent_bytes() > sent + 2_000_000
            && readers.iter().zip(&got).all(|(mount, &before)| from_peers(mount) > before)
    });
}

#[test]
fn a_cold_epoch_read_by_four_nodes_at_once_gets_each_object_once() {
    let nodes = Nodes::new(4);
    let files = Files::new((0..240).map(|n| 1_000 + n * 7_919 % 60_000).chain([2 * BLOCK + 12_345]));
    files.put(&nodes.lab);
    let running = start_in_the_clear(&nodes, 4);
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    nodes.lab.server.reset_counters();
    files.read_epoch(&mounts, 1);
    for n in 0..files.count() {
        assert_eq!(nodes.lab.gets_of(&Files::path(n)), files.sizes[n].div_ceil(BLOCK), "file {n}");
    }
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes());
    for mount in &mounts {
        assert!(from_peers(mount) > 0, "{:#}", mount.stats());
    }
    files.read_epoch(&mounts, 2);
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes(), "what a node keeps, all nodes have");
}

/// Every node keeps an eighth of the data, of the quarter or so that is its own, and `nr` keeps it for good: the nodes hold
/// just half of the files, each of them once. What is not exact is the origin's count: two nodes that read a file at the
/// very same time share a GET.
#[test]
fn four_nodes_with_an_eighth_each_hit_half() {
    const SIZE: u64 = 20_000;
    let nodes = Nodes::new(4);
    let files = Files::new([SIZE; 4_000]);
    files.put(&nodes.lab);
    let eighth = (files.total_bytes() / 8).to_string();
    let flags = [&PARTITIONED[..], &["--policy", "nr", "--cache-size", &eighth]].concat();
    let mut running = start_in_the_clear(&nodes, 4);
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &flags)).collect();
    let all = |mounts: &[Mount], seed| {
        let mounts: Vec<&Mount> = mounts.iter().collect();
        files.hits_of_epoch(&nodes.lab, &mounts, seed)
    };
    let assert_near = |hits: f64, wanted: f64, when: &str| {
        assert!((hits - wanted).abs() <= 0.5, "{when}: {hits:.2} % instead of {wanted} %");
    };
    // Read once by anyone, a file is where it will stay, or nowhere.
    files.read_part(&mounts.iter().collect::<Vec<_>>(), 0, |at, n| n % 4 == at);
    for mount in &mounts {
        assert_eq!(mount.metric("store_blocks"), files.count() as u64 / 8, "{:#}", mount.stats());
    }
    assert_near(all(&mounts, 1), 50.0, "all nodes");
    assert_near(all(&mounts, 2), 50.0, "all nodes once more");

    running[3].kill();
    drop(mounts.pop());
    assert_near(all(&mounts, 3), 37.5, "without the files of a dead node");

    running[3].restart();
    mounts.push(running[3].mount(&nodes.lab.url(), &flags));
    // The others come back to it when they try again.
    let (lost, others): (_, Vec<&Mount>) = (&running[3], mounts[..3].iter().collect());
    let readers = Readers::start(&files, &others, 1);
    wait_until_served("after the restart", lost, &others);
    readers.finish();
    mounts.iter().for_each(Mount::settle);
    assert_near(all(&mounts, 4), 50.0, "with the cache that it had");
}

#[test]
fn readers_outlive_a_peer_that_is_killed_stopped_cut_off_or_slow() {
    let nodes = Nodes::new(4);
    let files = Files::new([20_000; 400]);
    files.put(&nodes.lab);
    let mut running = start_in_the_clear(&nodes, 4);
    let deadline = format!("{}s", READ_DEADLINE.as_secs());
    let flags = [&PARTITIONED[..], &["--read-deadline", &deadline]].concat();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &flags)).collect();
    // The first node is the one in trouble; it has no reader, and all that it sends is for its peers.
    let mut troubled = mounts.remove(0);
    let others: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&others, 1);

    let readers = Readers::start(&files, &others, 16);
    let in_trouble = |what: &str| {
        // Long enough for the requests of the first moment to come to their end, and for a second try.
        std::thread::sleep(Duration::from_secs(2));
        readers.go_on_for(1_000);
        readers.assert_well(what);
    };
    wait_until_served("before any trouble", &running[0], &others);

    running[0].kill();
    drop(troubled);
    in_trouble("killed");
    running[0].restart();
    troubled = running[0].mount(&nodes.lab.url(), &flags);
    wait_until_served("after the restart", &running[0], &others);

    running[0].stop();
    in_trouble("stopped");
    running[0].go_on();
    wait_until_served("when it goes on", &running[0], &others);

    running[0].link.cut();
    in_trouble("cut off");
    running[0].link.join();
    wait_until_served("when it is joined again", &running[0], &others);

    running[0].link.slow();
    in_trouble("slow");
    running[0].link.speed_up();
    wait_until_served("when it is fast again", &running[0], &others);

    let longest = readers.finish();
    assert!(longest < READ_DEADLINE, "a read took {longest:?}");
    for mount in &others {
        assert_eq!(mount.metric("fs_errors_total"), 0);
    }
    drop(troubled);
}

/// Who is refused.
struct Stranger {
    number: usize,
    /// The flags of what it has to show.
    secrecy: Vec<String>,
    token: Option<&'static str>,
    /// How the peers may put it, one of these.
    words: &'static [&'static str],
}

#[test]
fn who_has_no_certificate_another_cas_or_an_expired_one_or_no_token_is_refused() {
    let nodes = Nodes::new(8);
    let files = Files::new([10_000; 120]);
    files.put(&nodes.lab);
    let (ours, another) = (Authority::new("ours"), Authority::new("another"));
    let papers = |n: usize, identity: Identity| Papers::new(&nodes, n, &ours.pem(), &identity).flags();
    let good = |n: usize| papers(n, ours.issue(&Nodes::name(n)));
    let peers: Vec<Node> = (1..=2).map(|n| nodes.start(n, &peering(n, &listed(1..=2), &good(n)))).collect();
    let mounts: Vec<Mount> = peers.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&mounts, 1);
    mounts.iter().for_each(|mount| assert!(from_peers(mount) > 0));

    let refused = [
        Stranger { number: 3, secrecy: plaintext(), token: Some(TOKEN), words: &["tls", "certificate", "handshake"] },
        Stranger {
            number: 4,
            secrecy: papers(4, another.issue("n4")),
            token: Some(TOKEN),
            words: &["certificate", "issuer"],
        },
        Stranger { number: 5, secrecy: papers(5, ours.issue_expired("n5")), token: Some(TOKEN), words: &["expired"] },
        Stranger { number: 6, secrecy: good(6), token: None, words: &["token"] },
        Stranger { number: 7, secrecy: good(7), token: Some("another-token"), words: &["token"] },
    ];
    let all_logs = || peers.iter().map(|node| node.log()).collect::<Vec<String>>();
    for Stranger { number: n, secrecy, token, words } in refused {
        let seen: Vec<usize> = all_logs().iter().map(String::len).collect();
        let said = || {
            let logs = all_logs();
            let new: String = logs.iter().zip(&seen).map(|(log, &seen)| &log[seen..]).collect();
            new.to_lowercase()
        };
        let known = format!("{},{}", listed(1..=2), listed(n..=n));
        let node = nodes.start(n, &peering(n, &known, &secrecy));
        let mount = node.mount_with_token(&nodes.lab.url(), token, &PARTITIONED);
        nodes.lab.server.reset_counters();
        files.read_epoch(&[&mount], 2);
        assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes(), "n{n} has it all from the origin");
        assert_eq!((from_peers(&mount), mount.metric("fs_errors_total")), (0, 0), "n{n}");
        // Refusals may be counted for a while before they are told; who is refused tries again.
        wait_until(&format!("the peers say why n{n} is refused: {words:?}"), || {
            files.read_epoch(&[&mount], 3);
            words.iter().any(|word| said().contains(word))
        });
        assert_eq!(from_peers(&mount), 0, "n{n}");
    }
    for log in all_logs() {
        assert!(!log.contains(TOKEN) && !log.contains("another-token"), "a token is in the log: {log}");
    }

    // And who has all of it is served, though nobody has it on their list.
    let known = format!("{},{}", listed(1..=2), listed(8..=8));
    let node = nodes.start(8, &peering(8, &known, &good(8)));
    let mount = node.mount(&nodes.lab.url(), &PARTITIONED);
    files.read_epoch(&[&mount], 4);
    assert!(from_peers(&mount) > 0, "{}", node.log());
}

/// All trust two authorities; the certificates of one are replaced by those of the other. That the daemons that were running
/// all the while ask and answer with the new ones shows when a node trusts the second authority alone.
#[test]
fn certificates_are_rotated_under_load() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 300]);
    files.put(&nodes.lab);
    let (before, after) = (Authority::new("before"), Authority::new("after"));
    let both = before.pem() + &after.pem();
    let papers: Vec<Papers> = (1..=3).map(|n| Papers::new(&nodes, n, &both, &before.issue(&Nodes::name(n)))).collect();
    let mut running: Vec<Node> =
        (1..=3).map(|n| nodes.start(n, &peering(n, &listed(1..=3), &papers[n - 1].flags()))).collect();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let restarted = mounts.remove(0);
    let others: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&others, 1);
    let readers = Readers::start(&files, &others, 4);
    wait_until_served("with the first certificates", &running[0], &others);

    for (n, papers) in (1..).zip(&papers) {
        papers.carry(&after.issue(&Nodes::name(n)));
        readers.go_on_for(200);
    }
    readers.assert_well("while certificates were replaced");
    wait_until_served("after certificates were replaced", &running[0], &others);

    running[0].kill();
    drop(restarted);
    replace(&papers[0].authorities, &after.pem());
    running[0].restart();
    let restarted = running[0].mount(&nodes.lab.url(), &PARTITIONED);
    wait_until_served("by those whom the second authority vouches for", &running[0], &others);
    wait_until("it is served by them", || {
        files.read_epoch(&[&restarted], 2);
        from_peers(&restarted) > 0
    });
    readers.finish();
}

#[test]
fn membership_comes_from_a_watched_file_and_nodes_flap() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 300]);
    files.put(&nodes.lab);
    let file = nodes.lab.folder().join("peers");
    replace(&file, &as_file(1..=2));
    let watched = format!("@{}", file.display());
    // The third runs as well, and is not a member yet.
    let mut running: Vec<Node> = (1..=3).map(|n| nodes.start(n, &peering(n, &watched, &plaintext()))).collect();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mut third = mounts.pop().unwrap();
    let others: Vec<&Mount> = mounts.iter().collect();
    let readers = Readers::start(&files, &others, 4);
    readers.go_on_for(300);
    assert_eq!(third.metric("store_blocks"), 0, "who is no member is asked for nothing");
    others.iter().for_each(|mount| assert!(from_peers(mount) > 0));

    for turn in 0..4 {
        let text = as_file(1..=3);
        // By renaming, as careful writers do it, and in place, where a reader may find half of it.
        if turn % 2 == 0 {
            replace(&file, &text)
        } else {
            std::fs::write(&file, text).unwrap()
        }
        wait_until_served("as a member", &running[2], &others);
        if turn == 1 {
            running[2].kill();
            drop(third);
            readers.go_on_for(300);
            running[2].restart();
            third = running[2].mount(&nodes.lab.url(), &PARTITIONED);
            wait_until_served("as a member that came back", &running[2], &others);
        }
        replace(&file, &as_file(1..=2));
        wait_until("who is no member any more is left in peace", || {
            let sent = running[2].link.sent_bytes();
            readers.go_on_for(300);
            running[2].link.sent_bytes() < sent + 100_000
        });
        readers.assert_well("while nodes came and went");
    }

    // A file that makes no sense leaves things as they are.
    let seen = running[0].log().len();
    replace(&file, "n1 nowhere\n");
    wait_until("the file is complained about", || running[0].log()[seen..].contains(file.to_str().unwrap()));
    wait_until_served("in spite of the file", &running[1], &others[..1]);

    replace(&file, &as_file(1..=3));
    wait_until_served("as a member for good", &running[2], &others);
    readers.finish();
    let all = [others[0], others[1], &third];
    files.read_epoch(&all, 1);
    nodes.lab.server.reset_counters();
    files.read_epoch(&all, 2);
    assert_eq!(nodes.lab.server.counters().gets, 0, "every file has an owner, who has it");
}

#[test]
fn a_packed_dataset_is_fetched_once_by_all_nodes_together() {
    let nodes = Nodes::new(4);
    let files = Files::new((0..400).map(|n| 10_000 + n * 7_919 % 40_000));
    files.put(&nodes.lab);
    let packed = "s3://bucket/packed";
    nodes.lab.larder_ok(&["pack", &nodes.lab.url(), packed, "--pack-size", "4MiB"]);
    let running = start_in_the_clear(&nodes, 4);
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(packed, &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    nodes.lab.server.reset_counters();
    for epoch in 1..=2 {
        files.read_epoch(&mounts, epoch);
        let counters = nodes.lab.server.counters();
        assert_eq!(counters.get_bytes, files.total_bytes(), "epoch {epoch}, in {} GETs", counters.gets);
    }
    for mount in &mounts {
        assert!(from_peers(mount) > 0, "{:#}", mount.stats());
    }
}
