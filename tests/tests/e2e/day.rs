//! A day in the life of a busy node, in minutes: many datasets of three tenants, readers of what is cached and of what
//! is not, a distant origin that refuses, hangs and denies, a disk that stalls, programs that are killed, and new
//! snapshots. Every byte that is read is compared, and every errno must be one that the documents promise.
//!
//! `live` is the story. Its cast: `plan` decides what happens, and in which order; `origin` has the tenants, their
//! servers and their data; `pod` knows the bytes that a pod must find and the errors that it may; `node` is larderd and
//! larder-csi on a `disk` that can stall; `readers` read; `tally` keeps the account.
//!
//! The long form is a part of `make soak`. With LARDER_TEST_REPORT in the environment, each second has a line.

mod disk;
mod node;
mod origin;
mod plan;
mod pod;
mod readers;
mod tally;

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_e2e::{Lab, memory_mib_most, wait_until};
use larder_testkit::{repository, scaled};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use node::Node;
use origin::{Dataset, Tenant};
use plan::{DAY, Event, HOUR, Plan, TENANTS, THREADS};
use pod::{Caching, Pod};
use readers::{Reader, Readers};
use tally::Tally;

/// The longest pause between two events.
const PAUSE_MOST: Duration = Duration::from_secs(2);

/// Readers of each pod that starts during the day.
const READERS_OF_A_NEW_POD: usize = 4;

// SEMANTICS: B1, V2, V3, V5, C2, C3, C4, C14, C19, O1, O3, O4, O5, K1, K4
#[test]
fn an_hour_of_a_busy_node_breaks_no_promise() {
    println!("{}", live(&HOUR, 1));
}

#[test]
#[ignore = "the long form of the test above, which takes minutes: make soak"]
fn a_day_of_a_busy_node_breaks_no_promise() {
    // `make soak` has ten times as much of everything, and a day is that already.
    for seed in 1..=u64::from(scaled(1).div_ceil(10)) {
        println!("{}", live(&DAY, seed));
    }
}

#[test]
fn the_memory_that_larderd_may_have_is_that_of_the_documents() {
    let page = std::fs::read_to_string(repository().join("docs/kubernetes/operations.md")).unwrap();
    let words: Vec<&str> = page.split_whitespace().collect();
    let said = "512 MiB for `larderd` without data in flight, 2.2 MiB for each of its threads (four times `--threads`, \
                at most 512), and 1.5 times `--memory-target`";
    assert!(words.join(" ").contains(said), "{said}");
    assert_eq!(memory_mib_most(16, 128), 512 + 140 + 192);
}

/// Lives through a plan. Returns what there is to say about it.
fn live(plan: &'static Plan, seed: u64) -> String {
    eprintln!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let mut day = Day::begin(plan, seed);
    for event in plan.events(&mut chance) {
        std::thread::sleep(chance.random_range(Duration::ZERO..PAUSE_MOST));
        day.tally.happens(event);
        match event {
            Event::LarderdIsKilled => day.node.kill_larderd(&day.tally),
            Event::CsiIsKilled => day.node.kill_plugin(),
            Event::OriginHangs => day.origin_hangs(),
            Event::DiskStalls => day.disk_stalls(),
            Event::SnapshotIsPublished => day.snapshot_is_published(),
            Event::KeysAreRevoked => day.keys_are_revoked(),
        }
        day.everyone_goes_on();
    }
    day.end(seed)
}

/// The fields are dropped in this order: no reader outlives its mount, and no program its disk.
struct Day {
    plan: &'static Plan,
    tally: Arc<Tally>,
    readers: Readers,
    node: Node,
    tenants: Vec<Tenant>,
    pods: Vec<Arc<Pod>>,
    /// How often there were new snapshots, and revoked keys: each time it is the next tenant's turn.
    published: usize,
    revoked: usize,
}

impl Day {
    /// The morning: all tenants have their data, a pod for each dataset starts, the first part of each dataset is read
    /// and thereby cached, and the readers begin.
    fn begin(plan: &'static Plan, seed: u64) -> Self {
        // Readers, proxies and servers are all in this process.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let lab = Lab::new();
        let tenants: Vec<Tenant> = (0..TENANTS).map(|number| Tenant::start(&lab, number)).collect();
        let node = Node::start(lab, plan);
        let tally = Tally::begin(node.larderd_pid());
        let datasets =
            (0..plan.datasets).flat_map(|number| (0..TENANTS).map(move |tenant| Dataset::new(tenant, number)));
        let pods: Vec<Arc<Pod>> = datasets
            .map(|dataset| {
                let caching = Caching::of(dataset.tenant + dataset.number);
                let name = format!("pod-{}-{}", dataset.tenant, dataset.number);
                let target = node.target(&name);
                Arc::new(Pod::new(name, &tenants[dataset.tenant], dataset, caching, target))
            })
            .collect();
        for pod in &pods {
            let dataset = pod.dataset();
            dataset.files.iter().for_each(|file| tenants[dataset.tenant].put(dataset, file));
        }
        let readers = Readers::new(Arc::clone(&tally), seed);
        let mut day = Self { plan, tally, readers, node, tenants, pods, published: 0, revoked: 0 };
        for turn in 0..plan.publications {
            let pod = day.publishing(turn);
            let dataset = pod.dataset();
            day.tenants[dataset.tenant].publish(day.node.lab(), dataset);
        }
        day.node.start_pods(&day.tenants, &day.pods);
        day.readers.start(&day.pods, plan.readers);
        day.everyone_goes_on();
        day
    }

    /// All origins hang for a while, and larderd is killed meanwhile. What is cached can be read all the time.
    fn origin_hangs(&mut self) {
        let began = Instant::now();
        self.tenants.iter().for_each(|tenant| tenant.weather().hang(true));
        std::thread::sleep(self.plan.hang / 2);
        self.node.kill_larderd(&self.tally);
        self.readers_of_cached_files_go_on();
        std::thread::sleep(self.plan.hang.saturating_sub(began.elapsed()));
        self.readers_of_cached_files_go_on();
        self.tenants.iter().for_each(|tenant| tenant.weather().hang(false));
    }

    /// The disk takes no writes for a while, and larder-csi is killed meanwhile. What is cached can be read all the
    /// time.
    fn disk_stalls(&mut self) {
        let stall = self.node.disk().stall();
        self.node.kill_plugin();
        std::thread::sleep(self.plan.stall);
        self.readers_of_cached_files_go_on();
        drop(stall);
    }

    /// A tenant changes its data and publishes that. A new pod has the new snapshot, and the one that runs keeps its
    /// own: it finds all that it has cached, and a clear error where the origin has its files no longer.
    fn snapshot_is_published(&mut self) {
        let old = self.publishing(self.published);
        self.published += 1;
        let (dataset, lost) = old.dataset().next();
        old.may_miss(lost);
        let tenant = &self.tenants[dataset.tenant];
        tenant.change(old.dataset(), &dataset);
        tenant.publish(self.node.lab(), &dataset);
        let name = format!("{}-new", old.name());
        let new = Arc::new(Pod::new(name.clone(), tenant, dataset, old.caching(), self.node.target(&name)));
        self.node.start_pods(&self.tenants, std::slice::from_ref(&new));
        assert_ne!(new.snapshot(), old.snapshot(), "{name} has the snapshot that was published");
        self.readers.start(std::slice::from_ref(&new), READERS_OF_A_NEW_POD);
        self.pods.push(new);
        self.wait_for_another(Errno::STALE);
    }

    /// A tenant's keys are revoked until its readers notice. What is cached can be read all the time.
    fn keys_are_revoked(&mut self) {
        let weather = self.publishing(self.revoked).weather();
        self.revoked += 1;
        weather.deny();
        self.wait_for_another(Errno::ACCESS);
        self.readers_of_cached_files_go_on();
        weather.allow();
    }

    /// The evening: all readers end, all pods end, and nothing of them is left.
    fn end(self, seed: u64) -> String {
        let Self { plan, tally, readers, node, tenants, pods, .. } = self;
        let micros = readers.finish();
        let peak_mib = tally.peak_kib() >> 10;
        let said = format!("seed {seed}: {tally}; of cached files {}", percentiles(&micros));
        tally.assert_kept();
        let refetched: Vec<String> = pods.iter().flat_map(|pod| pod.refetched(&tenants)).collect();
        assert!(refetched.is_empty(), "files that were cached were fetched again: {refetched:?}; {said}");
        let most_mib = memory_mib_most(THREADS, plan.memory_target_mib);
        assert!(peak_mib < most_mib, "larderd had {peak_mib} MiB of {most_mib}; {said}");
        node.end_pods(&pods);
        said
    }

    /// The pod whose dataset is published in this turn: it caches no more than the first part, so that the rest is read
    /// from the origin.
    fn publishing(&self, turn: usize) -> Arc<Pod> {
        let is_it = |pod: &&Arc<Pod>| pod.dataset().tenant == turn % TENANTS && pod.caching() == Caching::First;
        Arc::clone(self.pods.iter().find(is_it).expect("each tenant that has a turn has such a pod"))
    }

    /// All readers have read since, nothing that they read was wrong, and either program may be killed next.
    fn everyone_goes_on(&self) {
        self.node.wait_until_both_hold(self.pods.len());
        self.go_on(|_| true);
    }

    fn readers_of_cached_files_go_on(&self) {
        self.go_on(Reader::is_cached);
    }

    fn go_on(&self, who: impl Fn(&Reader) -> bool) {
        let waited = self.readers.go_on(who);
        self.tally.assert_kept();
        if let Err(stuck) = waited {
            panic!("{stuck}: {}\n{}", self.tally, self.node.logs());
        }
    }

    fn wait_for_another(&self, errno: Errno) {
        let before = self.tally.errors(errno);
        wait_until(&format!("a reader gets {errno}"), || self.tally.errors(errno) > before);
    }
}

fn percentiles(micros: &[u32]) -> String {
    let of = |percent: usize| f64::from(micros[(micros.len() * percent / 100).min(micros.len() - 1)]) / 1000.0;
    format!("{} reads, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms", micros.len(), of(50), of(99), of(100))
}
