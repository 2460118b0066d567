//! [`Tally`]: the account of a day, kept by the readers and by a thread that looks at larderd's memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// How often the memory is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A line of the report comes with every so many looks.
const LOOKS_OF_A_LINE: u32 = 10;

/// The most broken promises that are kept. One is enough to fail.
const BROKEN_MOST: usize = 20;

/// The account of a day.
pub(super) struct Tally {
    began: Instant,
    ended: AtomicBool,
    /// The process of larderd, or 0.
    larderd: AtomicU32,
    peak_kib: AtomicU64,
    cached: AtomicU64,
    others: AtomicU64,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    event: String,
    /// Promised errors.
    errors: BTreeMap<String, u64>,
    broken: Vec<String>,
}

impl Tally {
    /// Begins, with this process of larderd.
    pub(super) fn begin(larderd: u32) -> Arc<Self> {
        let tally = Arc::new(Self {
            began: Instant::now(),
            ended: AtomicBool::new(false),
            larderd: AtomicU32::new(larderd),
            peak_kib: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            others: AtomicU64::new(0),
            noted: Mutex::default(),
        });
        let watching = Arc::clone(&tally);
        std::thread::spawn(move || watching.watch(std::env::var_os("LARDER_TEST_REPORT").is_some()));
        tally
    }

    fn watch(&self, reports: bool) {
        let mut looks = 0;
        while !self.has_ended() {
            self.look();
            if reports && looks % LOOKS_OF_A_LINE == 0 {
                eprintln!("{self}");
            }
            looks += 1;
            std::thread::sleep(LOOK);
        }
    }

    /// Notes the most memory that this process of larderd has had so far.
    fn look(&self) {
        if let Some(kib) = self.memory_kib("VmHWM") {
            self.peak_kib.fetch_max(kib, Ordering::Relaxed);
        }
    }

    /// A field of larderd's status; none if it does not run.
    fn memory_kib(&self, field: &str) -> Option<u64> {
        let status = format!("/proc/{}/status", self.larderd.load(Ordering::Relaxed));
        let status = std::fs::read_to_string(status).ok()?;
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        value.split_whitespace().next()?.parse().ok()
    }

    /// larderd is about to be killed.
    pub(super) fn larderd_ends(&self) {
        self.look();
        self.larderd.store(0, Ordering::Relaxed);
    }

    /// larderd was started.
    pub(super) fn larderd_begins(&self, process: u32) {
        self.larderd.store(process, Ordering::Relaxed);
    }

    /// The most memory that larderd has had so far.
    pub(super) fn peak_kib(&self) -> u64 {
        self.look();
        self.peak_kib.load(Ordering::Relaxed)
    }

    /// Readers end their work from now on.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The reports name this event from now on.
    pub(super) fn happens(&self, event: impl fmt::Display) {
        self.noted.lock().unwrap().event = event.to_string();
    }

    /// A file was read, and its bytes were right.
    pub(super) fn count(&self, is_cached: bool) {
        let count = if is_cached { &self.cached } else { &self.others };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// A read failed as the documents say.
    pub(super) fn error(&self, errno: Errno) {
        *self.noted.lock().unwrap().errors.entry(errno.to_string()).or_default() += 1;
    }

    /// How many reads failed so, as the documents say.
    pub(super) fn errors(&self, errno: Errno) -> u64 {
        self.noted.lock().unwrap().errors.get(&errno.to_string()).copied().unwrap_or_default()
    }

    /// A promise was broken.
    pub(super) fn broken(&self, what: String) {
        let mut noted = self.noted.lock().unwrap();
        if noted.broken.len() < BROKEN_MOST {
            let event = noted.event.clone();
            noted.broken.push(format!("{what} (while or after {event})"));
        }
    }

    /// # Panics
    /// If a promise was broken.
    pub(super) fn assert_kept(&self) {
        let broken = std::mem::take(&mut self.noted.lock().unwrap().broken);
        assert!(broken.is_empty(), "{self}:\n{}", broken.join("\n"));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cached, others) = (self.cached.load(Ordering::Relaxed), self.others.load(Ordering::Relaxed));
        let mib = |kib: u64| kib >> 10;
        let (now, peak) = (self.memory_kib("VmRSS").unwrap_or_default(), self.peak_kib.load(Ordering::Relaxed));
        let noted = self.noted.lock().unwrap();
        write!(f, "{:.0} s, {cached} cached and {others} other files read", self.began.elapsed().as_secs_f64())?;
        write!(f, ", larderd {} MiB, at most {}, promised errors {:?}", mib(now), mib(peak), noted.errors)?;
        write!(f, ", last event: {}", noted.event)
    }
}
