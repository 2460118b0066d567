//! The tenants: each has an object store, which is far away and not always well, and keys of its own. Their buckets and
//! files have the same names and sizes, and only the bytes differ.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_e2e::{BUCKET, Lab, SECRET};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy, RequestHead, seeded_bytes};
use rustix::io::Errno;

/// The delay of each answer.
const DELAY: Duration = Duration::from_millis(40);

/// A burst of refused GETs begins with every so many requests.
const BURSTS_EVERY: u64 = 500;

/// The requests of a burst.
const BURST: u64 = 25;

/// Answers that were given before the keys were valid again may reach readers this much later.
const IN_FLIGHT: Duration = Duration::from_secs(5);

/// Files of each dataset. The last is larger than a block, which is 4 MiB.
const FILES: usize = 48;

/// The first files of each dataset, which are cached before the day begins.
pub(super) const FIRST: usize = 16;

/// A tenant's object store.
pub(super) struct Tenant {
    name: String,
    server: S3Server,
    proxy: FaultProxy,
    weather: Arc<Weather>,
}

impl Tenant {
    pub(super) fn start(lab: &Lab, number: usize) -> Self {
        let config = S3ServerConfig {
            access_key: format!("AKIAIOSFODNNTENANT{number}"),
            secret_key: format!("{SECRET}-{number}"),
            buckets: vec![BUCKET.to_owned()],
            ..S3ServerConfig::default()
        };
        let weather = Arc::<Weather>::default();
        let of_proxy = Arc::clone(&weather);
        let (server, proxy) = lab.runtime().block_on(async {
            let server = S3Server::start(config).await.unwrap();
            let proxy = FaultProxy::start(server.address(), move |request| of_proxy.fault(request)).await.unwrap();
            (server, proxy)
        });
        Self { name: format!("tenant-{number}"), server, proxy, weather }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The URL at which the node reaches the server.
    pub(super) fn endpoint(&self) -> String {
        self.proxy.endpoint()
    }

    /// The tenant's keys, as variables.
    pub(super) fn keys(&self) -> [(&'static str, &str); 2] {
        [("AWS_ACCESS_KEY_ID", self.server.access_key()), ("AWS_SECRET_ACCESS_KEY", self.server.secret_key())]
    }

    pub(super) fn weather(&self) -> &Arc<Weather> {
        &self.weather
    }

    pub(super) fn put(&self, dataset: &Dataset, file: &File) {
        self.server.put(BUCKET, &dataset.key(file), file.bytes.to_vec());
    }

    /// Has the objects of `new` in place of those of `old`.
    pub(super) fn change(&self, old: &Dataset, new: &Dataset) {
        let is_in = |dataset: &Dataset, file: &File| {
            dataset.files.iter().any(|other| other.name == file.name && Arc::ptr_eq(&other.bytes, &file.bytes))
        };
        new.files.iter().filter(|file| !is_in(old, file)).for_each(|file| self.put(new, file));
        let is_named = |file: &&File| new.files.iter().any(|other| other.name == file.name);
        for file in old.files.iter().filter(|file| !is_named(file)) {
            assert!(self.server.delete(BUCKET, &old.key(file)));
        }
    }

    /// `larder import --to`: all mounts from now on have the objects that are there now.
    pub(super) fn publish(&self, lab: &Lab, dataset: &Dataset) {
        let source = dataset.source();
        let manifest = format!("{source}/.larder/manifest");
        let mut import = lab.command(&["import", &source, "--to", &manifest]);
        let output = import.env("AWS_ENDPOINT_URL", self.endpoint()).envs(self.keys()).output().unwrap();
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// GETs of a file so far.
    pub(super) fn gets_of(&self, dataset: &Dataset, file: &File) -> u64 {
        self.server.gets_of(BUCKET, &dataset.key(file))
    }
}

/// How well a tenant's origin is.
#[derive(Default)]
pub(super) struct Weather {
    hangs: AtomicBool,
    denies: AtomicBool,
    /// The end of the last denial.
    allowed: Mutex<Option<Instant>>,
}

impl Weather {
    fn fault(&self, request: &RequestHead) -> Fault {
        if self.hangs.load(Ordering::SeqCst) {
            Fault::StallBeforeHead
        } else if self.denies.load(Ordering::SeqCst) {
            Fault::Status { status: 403, code: "AccessDenied" }
        } else if request.is_get_object() && request.seq % BURSTS_EVERY < BURST {
            Fault::Status { status: 503, code: "SlowDown" }
        } else {
            Fault::Delay(DELAY)
        }
    }

    /// Answers nothing from now on, or answers again.
    pub(super) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Refuses the tenant's keys from now on.
    pub(super) fn deny(&self) {
        self.denies.store(true, Ordering::SeqCst);
    }

    /// Accepts the tenant's keys again.
    pub(super) fn allow(&self) {
        // The time is set first: a reader that finds the keys accepted finds the time as well.
        *self.allowed.lock().unwrap() = Some(Instant::now());
        self.denies.store(false, Ordering::SeqCst);
    }

    /// True if a read that began then, and has just ended, may have been denied.
    pub(super) fn may_have_denied(&self, began: Instant) -> bool {
        self.denies.load(Ordering::SeqCst)
            || self.allowed.lock().unwrap().is_some_and(|allowed| began <= allowed + IN_FLIGHT)
    }
}

/// A file of a snapshot.
#[derive(Clone)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) bytes: Arc<[u8]>,
}

/// A snapshot of a tenant's dataset.
pub(super) struct Dataset {
    pub(super) tenant: usize,
    pub(super) number: usize,
    /// Those before [`FIRST`] are in every snapshot, in this version or another.
    pub(super) files: Vec<File>,
}

impl Dataset {
    pub(super) fn new(tenant: usize, number: usize) -> Self {
        let mut dataset = Self { tenant, number, files: Vec::new() };
        dataset.files = dataset.made(0..FILES, 0);
        dataset
    }

    /// The next snapshot: every fifth file is another of the same size, some files are gone, and some are new. With the
    /// errno for each file that readers of this snapshot then can no longer fetch.
    pub(super) fn next(&self) -> (Self, BTreeMap<String, Errno>) {
        let mut next = Self { files: self.files.clone(), ..*self };
        let mut lost = BTreeMap::new();
        for at in (1..FILES).step_by(5) {
            next.files[at] = next.made(at..at + 1, 1).remove(0);
            lost.insert(self.files[at].name.clone(), Errno::STALE);
        }
        for gone in next.files.drain(FIRST..FIRST + 3) {
            lost.insert(gone.name, Errno::NOENT);
        }
        next.files.extend(next.made(FILES..FILES + 4, 0));
        (next, lost)
    }

    /// Files by their numbers. Their sizes depend neither on the tenant nor on the version, and their bytes on both.
    fn made(&self, numbers: Range<usize>, version: u64) -> Vec<File> {
        let file = |number: usize| {
            let dataset = (self.tenant * 100 + self.number) as u64;
            let small = 1_000 + (self.number * FILES + number) as u64 * 7_919 % 100_000;
            let size = if number == FILES - 1 { (4 << 20) + 500_000 } else { small };
            let bytes = seeded_bytes((dataset * 1_000 + number as u64) * 2 + version, size);
            File { name: format!("d{}/f{number:03}", number / FIRST), bytes: bytes.into() }
        };
        numbers.map(file).collect()
    }

    pub(super) fn source(&self) -> String {
        format!("s3://{BUCKET}/set-{}", self.number)
    }

    fn key(&self, file: &File) -> String {
        format!("set-{}/{}", self.number, file.name)
    }
}
