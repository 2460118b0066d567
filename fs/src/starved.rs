//! How long the threads that serve mounts have requests and no CPU: busy neighbours, or a limit of the container.
//!
//! The kernel counts for each thread how long it was ready to run and did not. A thread that serves mounts is ready when
//! it has a request. Short times are those of every wake-up and are left out. While a limit of its cgroup stops a thread,
//! it is not ready for the kernel, which counts that time for the cgroup. The node needs the time whenever it looks at
//! its readers, so that it takes no thread without a CPU for one that waits for a disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_cachenode::Node;
use tokio::time::sleep;

use crate::limits::cgroup_file;

/// How often the node looks at its readers.
const EVERY: Duration = Duration::from_secs(1);

/// A thread that was ready for less than this without a CPU, since the last look, lacked none.
const LEAST: Duration = Duration::from_millis(20);

/// Looks at the readers of the node until it stops.
pub(crate) async fn follow(node: Arc<Node>) -> anyhow::Result<()> {
    node.stopping().run_until_cancelled(look(&node)).await.unwrap_or(Ok(()))
}

async fn look(node: &Node) -> anyhow::Result<()> {
    let mut threads = serving_threads(Path::new("/proc/self/task"));
    let mut stopped = stopped();
    loop {
        sleep(EVERY).await;
        // This blocks, if for microseconds only.
        let read = tokio::task::spawn_blocking(move || {
            let now = self::stopped();
            let delay = mean_delay(&mut threads).max(now.saturating_sub(stopped));
            (threads, now, delay)
        });
        let delay;
        (threads, stopped, delay) = read.await?;
        node.look_at_readers(delay);
    }
}

/// A thread that serves mounts.
#[derive(Debug)]
struct Serving {
    /// Its statistics.
    path: PathBuf,
    /// How long it was ready without a CPU when this looked last.
    delayed: Duration,
}

/// The threads of the pool among those in this folder.
fn serving_threads(tasks: &Path) -> Vec<Serving> {
    let threads = std::fs::read_dir(tasks).into_iter().flatten().flatten().map(|thread| thread.path());
    let is_serving = |thread: &PathBuf| {
        let name = std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
        name.trim_end().strip_prefix("fuse-").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let serving = threads.filter(is_serving).map(|thread| thread.join("schedstat"));
    serving.map(|path| Serving { delayed: delay(&path).unwrap_or_default(), path }).collect()
}

/// The content of a thread's `schedstat`: the nanoseconds that it ran, those that it was ready, and how often it ran.
fn delay(path: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(path).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// How long the threads that lacked a CPU since the last look did so, on average: the part of the time for which a
/// request lacked one.
fn mean_delay(threads: &mut [Serving]) -> Duration {
    let (mut sum, mut count) = (Duration::ZERO, 0);
    for Serving { path, delayed } in threads {
        let Some(now) = delay(path) else { continue };
        let new = now.saturating_sub(std::mem::replace(delayed, now));
        if new >= LEAST {
            sum += new;
            count += 1;
        }
    }
    sum.checked_div(count).unwrap_or_default()
}

/// How long a limit of this process's cgroup has stopped its threads so far.
fn stopped() -> Duration {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let text = cgroup_file(&cgroup, "cpu", "cpu.stat").and_then(|file| std::fs::read_to_string(file).ok());
    text.and_then(|text| stopped_time(&text)).unwrap_or_default()
}

/// The time in the text of a `cpu.stat`, of version 2 or 1.
fn stopped_time(text: &str) -> Option<Duration> {
    text.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", time) => time.parse().ok().map(Duration::from_micros),
        ("throttled_time", time) => time.parse().ok().map(Duration::from_nanos),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_threads_that_serve_mounts_count_and_only_if_they_lacked_a_cpu() {
        let tasks = tempfile::tempdir().unwrap();
        let thread = |number: u32, name: &str, ready_millis: u64| {
            let folder = tasks.path().join(number.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
            std::fs::write(folder.join("schedstat"), format!("77 {ready_millis}000000 5\n")).unwrap();
        };
        let all = |added: [u64; 5]| {
            thread(1, "fuse-0", 1_000 + added[0]);
            thread(2, "fuse-1", 2_000 + added[1]);
            thread(3, "fuse-11", added[2]);
            thread(4, "fuse-keep", added[3]);
            thread(5, "tokio-rt-worker", added[4]);
        };
        all([0; 5]);
        let mut threads = serving_threads(tasks.path());
        assert_eq!(threads.len(), 3);
        assert_eq!(mean_delay(&mut threads), Duration::ZERO, "what was before does not count");
        all([800, 600, 1, 900, 900]);
        assert_eq!(mean_delay(&mut threads), Duration::from_millis(700), "the third has run when it was ready");
        assert_eq!(mean_delay(&mut threads), Duration::ZERO);
        std::fs::remove_dir_all(tasks.path().join("1")).unwrap();
        assert_eq!(mean_delay(&mut threads), Duration::ZERO, "a thread that has ended");
    }

    #[test]
    fn the_time_for_which_a_limit_stopped_threads_is_read_in_both_versions() {
        let two = "usage_usec 9\nnr_periods 7\nnr_throttled 5\nthrottled_usec 1500\n";
        assert_eq!(stopped_time(two), Some(Duration::from_micros(1_500)));
        assert_eq!(stopped_time("nr_periods 7\nthrottled_time 2500\n"), Some(Duration::from_nanos(2_500)));
        assert_eq!(stopped_time("usage_usec 9\n"), None);
    }

    #[test]
    fn the_kernel_has_the_statistics_of_this_thread() {
        let path = Path::new("/proc/self/task").join(rustix::thread::gettid().as_raw_nonzero().to_string());
        assert!(delay(&path.join("schedstat")).is_some());
    }
}
