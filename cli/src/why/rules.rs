//! The rules: [`judge`] is a pure function of a mount's stats. The first rule that applies decides. A pass, which is
//! as many requested bytes as the dataset has, stands for an epoch: shuffles, several readers and the kernel's page
//! cache hide the epochs themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use larder_cachenode::{Cause, Pass, Stats};
use larder_dataset::larder_command;
use larder_dataset::size::{show_bytes, show_duration};
use serde::Serialize;

/// If readers wait for less than this part of the time, something else bounds the job.
const WAITED_LEAST: f64 = 0.05;
/// A hit ratio this far below the promised one has a reason of its own.
const BELOW_PROMISE: f64 = 0.05;
/// An origin of which half of the answers take longer than this is slow, in seconds. It is an end of a range of the
/// histogram: an origin of 60 ms seems to take as long, and is far, not slow.
const SLOW_ORIGIN: f64 = 0.25;
/// Reads from other nodes that failed, and blocks that were not written, have decided about a pass only if they are
/// more than this part of all.
const FEW: f64 = 0.001;
/// Reads that have waited for this long, in seconds, have no other reason that counts.
const NO_ANSWER: f64 = 10.0;
/// A pass that has just begun says less than the one before. It counts once it has asked for this part of the dataset,
/// or readers have waited in it for this long, in seconds.
const BEGUN: f64 = 0.125;
const BEGUN_WAITING: f64 = 5.0;

/// Why a job waits for its data, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// Nothing was read from the mount.
    NothingRead,
    /// Reads have waited for long and are not answered.
    NoAnswer,
    /// Reads are answered with errors.
    ReadsFail,
    /// Readers hardly wait: the job is bound elsewhere.
    BoundElsewhere,
    /// Objects were replaced since the listing, and reads of them fail.
    OldListing,
    /// The nodes that share the dataset have another listing.
    OtherListing,
    /// The origin refuses requests because there are too many.
    OriginThrottles,
    /// The origin answers with errors, or not at all.
    OriginFails,
    /// The origin is slow.
    OriginSlow,
    /// The limits of the process hold requests back.
    OwnLimits,
    /// Other nodes are slow.
    PeersSlow,
    /// Other nodes fail, so that the origin is asked instead.
    PeersFail,
    /// The cache admits nothing.
    CacheDegraded,
    /// The cache's disk is slow.
    DiskSlow,
    /// The threads of the mount are all busy.
    Threads,
    /// The process has too little CPU.
    Cpu,
    /// The cache evicts what the next pass needs.
    Evicts,
    /// The cache has less room than the dataset wants.
    ShortOfRoom,
    /// The dataset is larger than the room that it asked for.
    SmallReservation,
    /// It is the first pass.
    FirstPass,
}

/// The judgement of a mount.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) reason: Reason,
    /// Why, with numbers; a verb phrase of which the mount is the subject.
    pub(crate) why: String,
    /// Since when that is so: the beginning of the first of the passes in a row of which it is true.
    pub(crate) since_unix_seconds: Option<i64>,
    /// The advice.
    pub(crate) todo: String,
    /// The share of the time in which readers waited, in the pass that was judged.
    pub(crate) waited_ratio: f64,
}

impl Verdict {
    /// The sentence about the mount at `dir`.
    pub(crate) fn sentence(&self, dir: &Path) -> String {
        let since = self.since_unix_seconds.map(|at| format!(", since {}", time(at))).unwrap_or_default();
        format!("{} {}{since}; {}.", dir.display(), self.why, self.todo)
    }
}

/// A time as other commands print it.
pub(crate) fn time(unix_seconds: i64) -> String {
    Timestamp::from_second(unix_seconds).map_or_else(|_| unix_seconds.to_string(), |time| time.to_string())
}

/// The pass that says most about the present: the running one once it has begun in earnest, else the one before.
pub(crate) fn decisive(passes: &[Pass]) -> Option<usize> {
    let last = passes.len().checked_sub(1)?;
    let running = &passes[last];
    let asked = asked_bytes(running) as f64 >= BEGUN * running.dataset_bytes as f64;
    let has_begun = running.complete || asked || running.stall_seconds >= BEGUN_WAITING;
    Some(if has_begun { last } else { last.saturating_sub(1) })
}

/// The bytes that readers asked for in a pass.
pub(crate) fn asked_bytes(pass: &Pass) -> u64 {
    pass.bytes.values().sum()
}

/// The seconds that readers waited in a pass for this cause.
pub(crate) fn waited(pass: &Pass, cause: Cause) -> f64 {
    pass.stalls.get(&cause).copied().unwrap_or(0.0)
}

fn ratio_waited(pass: &Pass) -> f64 {
    if pass.seconds > 0.0 { (pass.stall_seconds / pass.seconds).min(1.0) } else { 0.0 }
}

/// The cause for which readers waited longest in a pass.
pub(crate) fn longest(pass: &Pass) -> Option<Cause> {
    longest_of(&pass.stalls)
}

fn longest_of(stalls: &BTreeMap<Cause, f64>) -> Option<Cause> {
    let waits = stalls.iter().filter(|(_, seconds)| **seconds > 0.0);
    waits.max_by(|one, other| one.1.total_cmp(other.1)).map(|(cause, _)| *cause)
}

/// The thing that readers wait for, in words.
pub(crate) fn awaited(cause: Cause) -> &'static str {
    match cause {
        Cause::Origin => "the origin's answers",
        Cause::OriginErrors => "the origin to recover from errors",
        Cause::Throttled => "the origin to accept requests",
        Cause::Limit => "a place under the limits of this process",
        Cause::Peer => "other nodes",
        Cause::Disk => "the cache's disk",
        Cause::Kernel => "a free thread of the mount",
        Cause::Cpu => "CPU",
    }
}

/// The advice for a mount whose readers wait for this cause.
fn remedy(dir: &Path, stats: &Stats, cause: Cause) -> String {
    let origin = &stats.dataset.origin;
    match cause {
        Cause::Origin | Cause::OriginErrors => format!("look at the server of {origin}, and at the network to it"),
        Cause::Throttled => {
            format!("ask for a higher request rate for {origin}, read larger files or `larder pack` the dataset")
        }
        Cause::Limit => {
            "raise --memory-target, --origin-rate or --origin-concurrency of the process that serves it".to_owned()
        }
        Cause::Peer => {
            let nodes = command(dir, "stats", "--cluster");
            format!("`{nodes}` shows which nodes serve it; look at the network between them")
        }
        Cause::Disk => "look for other programs on that disk, or name a faster one with --cache-dir".to_owned(),
        Cause::Kernel => "mount with more --threads".to_owned(),
        Cause::Cpu => "give its container more CPU, or leave cores free beside the job's own workers".to_owned(),
    }
}

fn command(dir: &Path, verb: &str, flag: &str) -> String {
    larder_command(&[verb, &dir.to_string_lossy(), flag])
}

/// A mount, and the pass that decides about it.
struct Case<'s> {
    dir: &'s Path,
    stats: &'s Stats,
    passes: &'s [Pass],
    pass: &'s Pass,
    at: usize,
}

/// Judges the mount at `dir` by its stats.
pub(crate) fn judge(dir: &Path, stats: &Stats) -> Verdict {
    let verdict = |reason, why, todo: &str| {
        let todo = todo.trim_end_matches('.').to_owned();
        Verdict { reason, why, since_unix_seconds: None, todo, waited_ratio: 0.0 }
    };
    if let Some(advice) = &stats.listing.stale {
        let failed = count(stats.metrics.get("fs_stale_total").copied().unwrap_or(0), "read");
        let age = show_duration(Duration::from_secs(stats.listing.age_seconds));
        let why = format!("has a listing of {age} ago, and {failed} failed because objects were replaced since");
        return verdict(Reason::OldListing, why, advice);
    }
    let stalls = &stats.stalls;
    if stalls.oldest_wait_seconds >= NO_ANSWER {
        // The waits of earlier passes, and so of the mount as a whole, may have had another cause.
        let running = stats.passes.last().filter(|pass| !pass.complete);
        let cause = running.and_then(longest).or_else(|| longest_of(&stalls.by_cause)).unwrap_or(Cause::Origin);
        let verb = if stalls.reads_waiting == 1 { "waits" } else { "wait" };
        let (waiting, oldest) = (count(stalls.reads_waiting, "read"), seconds(stalls.oldest_wait_seconds));
        let why =
            format!("does not answer: {waiting} {verb} now, the oldest for {oldest}, mostly for {}", awaited(cause));
        return verdict(Reason::NoAnswer, why, &remedy(dir, stats, cause));
    }
    // Reads that fail decide, however short the pass is.
    let failing = stats.passes.len().checked_sub(1).filter(|at| stats.passes[*at].read_errors > 0);
    let read = || decisive(&stats.passes).filter(|at| asked_bytes(&stats.passes[*at]) > 0);
    let Some(at) = failing.or_else(read) else {
        let todo = "if the job does read it, the kernel's page cache has all that it reads";
        return verdict(Reason::NothingRead, "was not asked for a byte yet".to_owned(), todo);
    };
    let case = Case { dir, stats, passes: &stats.passes, pass: &stats.passes[at], at };
    Verdict { waited_ratio: ratio_waited(case.pass), ..case.judge() }
}

impl Case<'_> {
    fn judge(&self) -> Verdict {
        let pass = self.pass;
        if pass.read_errors > 0 {
            let all = pass.reads + pass.read_errors;
            let why = format!("answers reads with errors: {} of {all} in pass {}", pass.read_errors, pass.number);
            let todo = format!("look at the log of the process that serves it, and at {}", self.stats.dataset.origin);
            return self.verdict(Reason::ReadsFail, why, |pass| pass.read_errors > 0, todo);
        }
        let longest = longest(pass);
        if ratio_waited(pass) < WAITED_LEAST {
            return self.bound_elsewhere();
        }
        match longest {
            None => self.bound_elsewhere(),
            Some(Cause::Throttled) => {
                let refusals = count(retries(pass, "throttled"), "refusal");
                let why = format!("waits because its origin throttles it: {}, with {refusals}", self.numbers());
                self.waiting_for(Reason::OriginThrottles, why, Cause::Throttled)
            }
            Some(Cause::OriginErrors) => {
                let failures = retries(pass, "error") + retries(pass, "timeout");
                let failures = format!("{}, {} of them final", count(failures, "failed attempt"), pass.origin_errors);
                let why = format!("waits because its origin fails: {}, with {failures}", self.numbers());
                self.waiting_for(Reason::OriginFails, why, Cause::OriginErrors)
            }
            Some(Cause::Limit) => {
                let why = format!("waits because of the limits of its own process: {}", self.numbers());
                self.waiting_for(Reason::OwnLimits, why, Cause::Limit)
            }
            Some(Cause::Peer) => {
                let why = format!("waits for other nodes: {}", self.numbers());
                self.waiting_for(Reason::PeersSlow, why, Cause::Peer)
            }
            Some(Cause::Disk) => {
                let why = format!("waits for the disk of its cache: {}{}", self.numbers(), self.disk_times());
                self.waiting_for(Reason::DiskSlow, why, Cause::Disk)
            }
            Some(Cause::Kernel) => {
                let why = format!("waits because all threads of the mount are busy: {}", self.numbers());
                self.waiting_for(Reason::Threads, why, Cause::Kernel)
            }
            Some(Cause::Cpu) => {
                let why = format!("waits because larderd gets too little CPU: {}", self.numbers());
                self.waiting_for(Reason::Cpu, why, Cause::Cpu)
            }
            Some(Cause::Origin) => self.misses(),
        }
    }

    fn bound_elsewhere(&self) -> Verdict {
        let (pass, percent) = (self.pass, percent(ratio_waited(self.pass)));
        let why = format!(
            "is not what the job waits for: in pass {} its readers waited {} of {} ({percent}), {}",
            pass.number,
            seconds(pass.stall_seconds),
            seconds(pass.seconds),
            self.hits()
        );
        let todo = "look at the job itself: its CPU, its GPUs, or its own loader".to_owned();
        self.verdict(Reason::BoundElsewhere, why, |pass| ratio_waited(pass) < WAITED_LEAST, todo)
    }

    /// Readers wait for the origin. Why is it asked at all, and is it slow?
    fn misses(&self) -> Verdict {
        let (stats, pass) = (self.stats, self.pass);
        let (cache, origin) = (&stats.cache, &stats.dataset.origin);
        let (numbers, hits) = (self.numbers(), self.hits());
        let below = pass.hit_ratio.is_some_and(|hit| hit < self.promised() - BELOW_PROMISE);
        let evicts = !matches!(cache.policy.as_str(), "nr" | "smallest");
        if let Some(degraded) = &cache.degraded {
            let why =
                format!("waits for the origin because its cache admits nothing ({degraded}): {numbers}, and {hits}");
            let todo = "make room on the cache's disk, or name another one with --cache-dir".to_owned();
            return self.waiting(Reason::CacheDegraded, why, Cause::Origin, todo);
        }
        if let Some(advice) = &stats.listing.other_snapshots {
            let why =
                format!("waits for the origin because other nodes share another listing of it: {numbers}, and {hits}");
            return self.waiting(Reason::OtherListing, why, Cause::Origin, advice.clone());
        }
        if pass.origin_p50_seconds.is_some_and(is_slow) {
            let why = format!("waits for a slow origin: {numbers}{}", self.origin_times());
            let todo = format!("nothing is wrong in Larder: look at the server of {origin}, and at the network to it");
            return self.verdict(Reason::OriginSlow, why, |pass| pass.origin_p50_seconds.is_some_and(is_slow), todo);
        }
        let from = |tier: &str| pass.bytes.get(tier).copied().unwrap_or(0);
        // Each read of a bypassed node counts as one that failed.
        if pass.peer_errors as f64 > FEW * pass.reads as f64 && from("peer") < from("origin") {
            let errors = count(pass.peer_errors, "read");
            let why =
                format!("waits for the origin because other nodes are bypassed: {errors} from them failed, {numbers}");
            let todo = format!("`{}` shows which nodes do not answer", self.command("stats", "--cluster"));
            return self.waiting(Reason::PeersFail, why, Cause::Origin, todo);
        }
        if pass.fills_cache() {
            let why = format!("is being read for the first time, from the origin: {numbers}, and {hits}");
            let next = percent(self.promised());
            let warm = self.command("warm", "--wait");
            let todo = format!("the next pass will hit about {next}, and `{warm}` fills the cache before a job starts");
            return self.verdict(Reason::FirstPass, why, Pass::fills_cache, todo);
        }
        if evicts && below {
            let why = format!(
                "waits for the origin because its policy, {}, evicts what the next pass needs: {numbers}, and {hits}",
                cache.policy
            );
            let todo = "mount it with --policy nr, which replaces nothing".to_owned();
            return self.waiting(Reason::Evicts, why, Cause::Origin, todo);
        }
        let unwritten = self.metric("store_unwritten_total");
        if below && unwritten as f64 > FEW * f64::from(stats.dataset.blocks) {
            let unwritten = count(unwritten, "fetched block");
            let why = format!(
                "waits for the origin because the disk of its cache is too slow to keep what is fetched: {unwritten} \
                 were not written, {numbers}, and {hits}"
            );
            let warm = self.command("warm", "--wait");
            let todo = format!("use a faster disk with --cache-dir, or run `{warm}` before the job");
            return self.waiting(Reason::DiskSlow, why, Cause::Origin, todo);
        }
        let (has, all) = (show_bytes(cache.capacity_bytes), show_bytes(stats.dataset.bytes));
        if cache.capacity_bytes < cache.wanted_bytes {
            let wants = show_bytes(cache.wanted_bytes);
            let why = format!(
                "waits for the origin because its cache has {has} of the {wants} it wants: {numbers}, and {hits}"
            );
            let todo =
                cache.shortage.clone().unwrap_or_else(|| "drop other datasets with `larder cache rm`".to_owned());
            return self.waiting(Reason::ShortOfRoom, why, Cause::Origin, todo);
        }
        if cache.capacity_bytes < stats.dataset.bytes {
            let why = format!("waits for the origin because {has} of its {all} fit its cache: {numbers}, and {hits}");
            let todo = "mount it with a larger --cache-size, or share the caches of several nodes".to_owned();
            return self.waiting(Reason::SmallReservation, why, Cause::Origin, todo);
        }
        let why = format!("waits for the origin: {numbers}, and {hits}{}", self.origin_times());
        let warm = self.command("warm", "--wait");
        let todo = format!("`{warm}` fills the cache; look at the server of {origin} if that is slow too");
        self.waiting(Reason::OriginSlow, why, Cause::Origin, todo)
    }

    /// As [`Self::waiting`], with the remedy for the cause.
    fn waiting_for(&self, reason: Reason, why: String, cause: Cause) -> Verdict {
        self.waiting(reason, why, cause, remedy(self.dir, self.stats, cause))
    }

    /// A verdict that is true since the first of the passes in a row in which readers waited for this cause.
    fn waiting(&self, reason: Reason, why: String, cause: Cause, todo: String) -> Verdict {
        let is_so = |pass: &Pass| waited(pass, cause) >= WAITED_LEAST * pass.seconds;
        self.verdict(reason, why, is_so, todo)
    }

    fn verdict(&self, reason: Reason, why: String, is_so: impl Fn(&Pass) -> bool, todo: String) -> Verdict {
        let earlier = self.passes[..self.at].iter().rev().take_while(|pass| is_so(pass)).last();
        let since = earlier.unwrap_or(self.pass).started_unix_seconds;
        let todo = todo.trim_end_matches('.').to_owned();
        Verdict { reason, why, since_unix_seconds: Some(since), todo, waited_ratio: 0.0 }
    }

    /// "readers waited 11 s of 240 s in pass 3 (4.6 %), 10 s of it for …".
    fn numbers(&self) -> String {
        let pass = self.pass;
        let most = longest(pass).map(|cause| {
            let of_it = if waited(pass, cause) < 0.95 * pass.stall_seconds {
                format!("{} of it for ", seconds(waited(pass, cause)))
            } else {
                "for ".to_owned()
            };
            format!("{of_it}{}", awaited(cause))
        });
        format!(
            "in pass {} readers waited {} of {} ({}), {}",
            pass.number,
            seconds(pass.stall_seconds),
            seconds(pass.seconds),
            percent(ratio_waited(pass)),
            most.unwrap_or_default()
        )
    }

    /// "62.4 % of the bytes asked for came from the cache, as promised".
    fn hits(&self) -> String {
        let Some(hit) = self.pass.hit_ratio else { return "nothing was read".to_owned() };
        let promised = self.promised();
        let whether = if self.pass.fills_cache() {
            String::new()
        } else if hit < promised - BELOW_PROMISE {
            format!(" instead of {}", percent(promised))
        } else {
            " as promised".to_owned()
        };
        format!("{} of the bytes asked for came from this cache{whether}", percent(hit))
    }

    fn promised(&self) -> f64 {
        self.pass.promised_ratio
    }

    fn origin_times(&self) -> String {
        let shown = |time: Option<f64>| time.map_or("more than 60 s".to_owned(), milliseconds);
        match (self.pass.origin_p50_seconds, self.pass.origin_p99_seconds) {
            (None, None) => String::new(),
            (half, most) => {
                format!(", which took up to {} in half of the cases and {} in 99 %", shown(half), shown(most))
            }
        }
    }

    fn disk_times(&self) -> String {
        let p99 = self.stats.reads.get("store").and_then(|times| times.p99_seconds);
        p99.map(|p99| format!("; 99 % of its reads took up to {}", milliseconds(p99))).unwrap_or_default()
    }

    fn command(&self, verb: &str, flag: &str) -> String {
        command(self.dir, verb, flag)
    }

    fn metric(&self, name: &str) -> u64 {
        self.stats.metrics.get(name).copied().unwrap_or(0)
    }
}

fn is_slow(p50_seconds: f64) -> bool {
    p50_seconds > SLOW_ORIGIN
}

fn retries(pass: &Pass, reason: &str) -> u64 {
    pass.origin_retries.get(reason).copied().unwrap_or(0)
}

pub(super) fn count(number: u64, what: &str) -> String {
    larder::output::count(number, what)
}

/// "62.4 %".
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}

/// "0.4 s", "240 s".
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// "900 ms", "2.5 s".
pub(crate) fn milliseconds(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} µs", 1e6 * seconds),
        0.001..1.0 => format!("{:.0} ms", 1e3 * seconds),
        _ => format!("{seconds:.1} s"),
    }
}
