//! [`Pod`]: a pod with a volume, the bytes that its readers must find, and the errors that they may get.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_e2e::wait_until;
use rustix::fs::Advice;
use rustix::io::Errno;
use serde_json::Value;

use super::origin::{Dataset, FIRST, File, Tenant, Weather};

/// The `--read-deadline`, from which the promises count.
pub(super) const READ_DEADLINE: Duration = Duration::from_secs(60);

/// The part of a dataset that its cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caching {
    /// The first files, for ever: the others come from the origin each time.
    First,
    /// All files, for ever.
    All,
    /// As many bytes as the first files have, of those that were read last.
    Last,
}

impl Caching {
    /// Each in turn.
    pub(super) fn of(number: usize) -> Self {
        [Self::First, Self::All, Self::Last][number % 3]
    }
}

/// A pod with a volume.
pub(super) struct Pod {
    name: String,
    dataset: Dataset,
    caching: Caching,
    target: PathBuf,
    weather: Arc<Weather>,
    /// Files that the origin no longer has as this pod's snapshot has them, and the errno for those not cached.
    lost: Mutex<BTreeMap<String, Errno>>,
    /// GETs of each of the first files until they were cached.
    gets: Mutex<Vec<u64>>,
}

impl Pod {
    /// A pod that does not run yet.
    pub(super) fn new(name: String, tenant: &Tenant, dataset: Dataset, caching: Caching, target: PathBuf) -> Self {
        let weather = Arc::clone(tenant.weather());
        Self { name, dataset, caching, target, weather, lost: Mutex::default(), gets: Mutex::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    pub(super) fn caching(&self) -> Caching {
        self.caching
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    pub(super) fn weather(&self) -> Arc<Weather> {
        Arc::clone(&self.weather)
    }

    /// The attributes of its volume that concern the cache.
    pub(super) fn cache_attributes(&self) -> Vec<(&'static str, String)> {
        let bytes: usize = self.first_files().iter().map(|file| file.bytes.len()).sum();
        let size = ("cacheSize", bytes.to_string());
        match self.caching {
            Caching::First => vec![size],
            Caching::All => Vec::new(),
            Caching::Last => vec![size, ("policy", "lru".to_owned())],
        }
    }

    /// The files that are cached before the day begins.
    pub(super) fn first_files(&self) -> &[File] {
        &self.dataset.files[..FIRST]
    }

    pub(super) fn other_files(&self) -> &[File] {
        &self.dataset.files[FIRST..]
    }

    /// True if the first files stay cached.
    pub(super) fn keeps_first_files(&self) -> bool {
        self.caching != Caching::Last
    }

    /// Reads a file past the kernel's page cache.
    pub(super) fn read(&self, file: &File) -> std::io::Result<Vec<u8>> {
        let mut opened = std::fs::File::open(self.target.join(&file.name))?;
        rustix::fs::fadvise(&opened, 0, None, Advice::DontNeed)?;
        let mut bytes = Vec::new();
        opened.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the first files until they are cached, if they are to stay so.
    pub(super) fn cache_first_files(&self) {
        wait_until("the first files are cached", || {
            // Backwards, so that there is no read-ahead, which would take their room.
            for file in self.first_files().iter().rev() {
                let bytes = self.read(file).unwrap_or_else(|error| panic!("{}: {}: {error}", self.name, file.name));
                assert!(*bytes == *file.bytes, "{}: {} has wrong bytes", self.name, file.name);
            }
            !self.keeps_first_files() || self.stats()["cache"]["blocks"].as_u64().unwrap() >= FIRST as u64
        });
    }

    fn stats(&self) -> Value {
        // The file keeps its content for 50 ms.
        std::thread::sleep(Duration::from_millis(60));
        serde_json::from_slice(&std::fs::read(self.target.join(".larder/stats.json")).unwrap()).unwrap()
    }

    /// The snapshot that it has mounted.
    pub(super) fn snapshot(&self) -> String {
        self.stats()["dataset"]["snapshot"].as_str().unwrap().to_owned()
    }

    /// From now on, these files can no longer be fetched, and a read of one that is not cached gets this errno.
    pub(super) fn may_miss(&self, lost: BTreeMap<String, Errno>) {
        *self.lost.lock().unwrap() = lost;
    }

    /// True if a read that began then, of a file that need not be cached, may end with this errno now.
    pub(super) fn may_fail(&self, file: &File, errno: Errno, began: Instant) -> bool {
        match errno {
            Errno::ACCESS => self.weather.may_have_denied(began),
            Errno::STALE | Errno::NOENT => self.lost.lock().unwrap().get(&file.name) == Some(&errno),
            // All that the origin does is over before the deadline, so a read may only fail if it has waited that long.
            Errno::TIMEDOUT | Errno::IO => began.elapsed() >= READ_DEADLINE,
            _ => false,
        }
    }

    fn gets_of_first_files(&self, tenants: &[Tenant]) -> Vec<u64> {
        let tenant = &tenants[self.dataset.tenant];
        self.first_files().iter().map(|file| tenant.gets_of(&self.dataset, file)).collect()
    }

    /// The first files are cached: from now on, none of them is to be fetched.
    pub(super) fn has_cached_first_files(&self, tenants: &[Tenant]) {
        *self.gets.lock().unwrap() = self.gets_of_first_files(tenants);
    }

    /// Those of the first files that were fetched though they were cached. A file that another pod has in a newer
    /// version is not looked at.
    pub(super) fn refetched(&self, tenants: &[Tenant]) -> Vec<String> {
        if !self.keeps_first_files() {
            return Vec::new();
        }
        let (before, lost) = (self.gets.lock().unwrap(), self.lost.lock().unwrap());
        let gets = before.iter().zip(self.gets_of_first_files(tenants)).zip(self.first_files());
        let refetched = gets.filter(|((before, now), file)| now > *before && !lost.contains_key(&file.name));
        refetched.map(|(_, file)| format!("{}: {}", self.name, file.name)).collect()
    }
}
