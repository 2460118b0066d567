//! [`Readers`]: threads that read files of pods and compare every byte.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::io::Errno;

use super::pod::{Pod, READ_DEADLINE};
use super::tally::Tally;

/// The longest wait for a read that ends at all: the kernel may repeat one that has failed.
const PATIENCE: Duration = Duration::from_secs(2 * READ_DEADLINE.as_secs() + 30);

/// The longest time that a reader takes for its work between two files.
const WORK_MOST: Duration = Duration::from_millis(100);

/// All readers. They are stopped when this is dropped.
pub(super) struct Readers {
    tally: Arc<Tally>,
    seed: u64,
    readers: Vec<(Arc<Reader>, JoinHandle<Vec<u32>>)>,
}

impl Readers {
    pub(super) fn new(tally: Arc<Tally>, seed: u64) -> Self {
        Self { tally, seed, readers: Vec::new() }
    }

    /// Starts readers, of each pod in turn. The first of each pod reads its first files, the second the others, and so
    /// on.
    pub(super) fn start(&mut self, pods: &[Arc<Pod>], count: usize) {
        for number in 0..count {
            let reader = Arc::new(Reader {
                number: self.readers.len() as u64,
                pod: Arc::clone(&pods[number % pods.len()]),
                reads_first_files: (number / pods.len()).is_multiple_of(2),
                reads: AtomicU64::new(0),
            });
            let (reading, tally, seed) = (Arc::clone(&reader), Arc::clone(&self.tally), self.seed);
            let thread = std::thread::spawn(move || reading.run(&tally, seed));
            self.readers.push((reader, thread));
        }
    }

    /// Waits until each of these readers has begun and ended a read since. Error: the readers that have not.
    pub(super) fn go_on(&self, who: impl Fn(&Reader) -> bool) -> Result<(), String> {
        let began = Instant::now();
        // One read may have begun before.
        let goal = |reader: &Arc<Reader>| (Arc::clone(reader), reader.reads.load(Ordering::Relaxed) + 2);
        let mut waiting: Vec<_> =
            self.readers.iter().map(|(reader, _)| reader).filter(|reader| who(reader)).map(goal).collect();
        while !waiting.is_empty() {
            if began.elapsed() > PATIENCE {
                let stuck: Vec<String> = waiting.iter().map(|(reader, _)| reader.to_string()).collect();
                return Err(format!("{} readers do not go on: {}", stuck.len(), stuck.join(", ")));
            }
            std::thread::sleep(Duration::from_millis(5));
            waiting.retain(|(reader, goal)| reader.reads.load(Ordering::Relaxed) < *goal);
        }
        Ok(())
    }

    /// Lets all of them end. Returns how many microseconds each read of a cached file has taken, sorted.
    pub(super) fn finish(mut self) -> Vec<u32> {
        self.tally.end();
        let began = Instant::now();
        let mut micros = Vec::new();
        for (reader, thread) in self.readers.drain(..) {
            while !thread.is_finished() {
                assert!(began.elapsed() < PATIENCE, "a reader does not end: {reader}");
                std::thread::sleep(Duration::from_millis(5));
            }
            micros.extend(thread.join().unwrap());
        }
        micros.sort_unstable();
        micros
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.tally.end();
    }
}

/// A thread that reads files of a pod.
pub(super) struct Reader {
    number: u64,
    pod: Arc<Pod>,
    /// It reads the first files of the dataset, not the others.
    reads_first_files: bool,
    /// Reads that have ended, with bytes or an error.
    reads: AtomicU64,
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.reads_first_files { "the first files" } else { "the other files" };
        write!(f, "reader {} of {what} of {} ({:?} are cached)", self.number, self.pod.name(), self.pod.caching())
    }
}

impl Reader {
    /// True if all that it reads is cached.
    pub(super) fn is_cached(&self) -> bool {
        self.reads_first_files && self.pod.keeps_first_files()
    }

    /// Reads until the day ends. Returns how many microseconds each read of a cached file has taken.
    fn run(&self, tally: &Tally, seed: u64) -> Vec<u32> {
        let mut chance = StdRng::seed_from_u64(seed << 32 | self.number);
        let files = if self.reads_first_files { self.pod.first_files() } else { self.pod.other_files() };
        let mut micros = Vec::new();
        while !tally.has_ended() {
            let file = &files[chance.random_range(0..files.len())];
            let began = Instant::now();
            let read = self.pod.read(file);
            let took = began.elapsed();
            match read {
                Ok(bytes) if *bytes == *file.bytes => {
                    tally.count(self.is_cached());
                    if self.is_cached() {
                        micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                    }
                }
                Ok(bytes) => tally.broken(format!("{self}: {} has {} wrong bytes", file.name, bytes.len())),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(errno) if !self.is_cached() && self.pod.may_fail(file, errno, began) => tally.error(errno),
                    _ => tally.broken(format!("{self}: {}: {error} after {took:.1?}", file.name)),
                },
            }
            self.reads.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(chance.random_range(Duration::ZERO..WORK_MOST));
        }
        micros
    }
}
