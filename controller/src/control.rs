//! The main loop of the leading controller. The loop owns the state: events change it, pure decisions turn due work
//! into writes, and a limited number of writes run concurrently with the loop. The result of a write is an event as
//! well, so the next decision already sees its effect.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use larder_api::SnapshotCache;
use larder_api::names::{LEASE, REGISTRY_CONFIG_MAP};
use larder_kube::Client;
use larder_telemetry::Heartbeat;
use larder_telemetry::admin::AdminAddress;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::admin::{Counters, Status};
use crate::clusters::link::{Connect, Guarded};
use crate::datasets::decide;
use crate::datasets::{inline_registry, node_labels};
use crate::execute::{Written, execute_all, imports, warming};
use crate::jobs::discovery::{follow_clusters, follow_gangs, follow_jobs};
use crate::kueue::check;
use crate::kueue::discovery::follow_kueue;
use crate::objects::Key;
use crate::state::State;
use crate::state::watched::Object;
use crate::time::{Millis, Seconds};
use crate::watch::{News, follow};
use crate::work_queue::{Queue, RETRY_MILLIS, Work};
use crate::write::{Change, Write};
use larder_kube::kinds::Kind;
use larder_kube::lease::Election;
use larder_kube::watch::Turns;
use links::Links;
use writers::Writers;

mod clusters;
mod jobs;
mod links;
mod writers;

/// The limit of work items whose writes are in flight at the same time.
const WRITERS: usize = 32;

/// The limit of queued events. When it is reached, the watches block.
const NEWS: usize = 1024;

/// The minimum interval between two rounds.
const ROUND_MILLIS: u64 = 50;

/// A round is followed by a pause of this many times its own duration.
const REST: u64 = 4;

/// A wall clock that moves forwards by so many seconds is followed.
const FORWARDS_SECONDS: i64 = 5;

/// With a wall clock that moves back by so many seconds, the process ends.
const BACKWARDS_SECONDS: i64 = 60;

/// When the round after this one may begin. The pause keeps most of the loop's time for other work.
fn after_round(began: Millis, ended: Millis) -> Millis {
    ended + ROUND_MILLIS.max(REST * (ended - began))
}

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// The image of the pods that import and warm.
    pub image: String,
    /// The namespace in which Larder is installed.
    pub namespace: String,
    /// The identity of this process in the Lease.
    pub identity: String,
    /// The limit of pods that warm at the same time.
    pub max_warming: u32,
    /// How long pods of training jobs wait for nodes that an autoscaler adds; `None`: there is no autoscaler.
    pub wait_for_nodes: Option<Duration>,
    /// How long ended training jobs are kept; `None`: until somebody deletes them.
    pub keep_ended_jobs: Option<Duration>,
    /// How long a node may be not ready before its pods of training jobs are lost.
    pub node_lost_after: Duration,
    /// The address of the metrics server; `None` for none.
    pub admin_address: Option<AdminAddress>,
}

/// Runs until `stop`. Other clusters are those that `connect` makes clients of. Losing the Lease is an error, after
/// which the process must exit.
pub async fn run(
    client: Client,
    connect: Arc<dyn Connect>,
    config: Config,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let counters = Arc::new(Counters::default());
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    if let Some(at) = config.admin_address.clone() {
        let address = at.address;
        let (status, stopping) = (Arc::new(Status(Arc::clone(&counters))), stop.clone());
        tasks.spawn(async move {
            let served = larder_telemetry::admin::serve(at, status, async move { stopping.cancelled().await }).await;
            served.with_context(|| format!("--admin-address {address}"))
        });
    }
    let election = Election::new(client.clone(), &config.namespace, LEASE, &config.identity);
    let since = tokio::select! {
        since = election.win(|| counters.heartbeat.beat()) => since,
        () = stop.cancelled() => return Ok(()),
        Some(ended) = tasks.join_next() => return ended?,
    };
    counters.leading.store(true, Ordering::Relaxed);
    let (holding, acting) = (stop.clone(), stop.clone());
    // A process that does not hold the Lease writes neither in this cluster nor in others.
    let client = election.guard(client);
    let connect = Arc::new(Guarded { connect, election: election.clone() });
    tasks.spawn(async move { election.hold(since, holding).await });
    tasks.spawn(act(client, connect, config, counters, acting));
    // The first task that ends also ends the process: without its Lease a controller must not act, and without its loop
    // it must not lead.
    while let Some(ended) = tasks.join_next().await {
        ended??;
        if !stop.is_cancelled() {
            bail!("a task of the controller ended unexpectedly");
        }
    }
    Ok(())
}

/// Watches the cluster and acts on it until `stop`. Other clusters are those that `connect` makes clients of. The
/// caller ensures that no other controller acts.
pub async fn act(
    client: Client,
    connect: Arc<dyn Connect>,
    config: Config,
    counters: Arc<Counters>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (sender, mut news) = mpsc::channel(NEWS);
    let mut watches = JoinSet::new();
    let turns = Turns::default();
    for kind in Kind::WATCHED {
        watches.spawn(follow(client.clone(), kind, config.namespace.clone(), turns.clone(), sender.clone()));
    }
    let mut parts = JoinSet::new();
    parts.spawn(follow_kueue(client.clone(), turns.apart(), sender.clone()));
    parts.spawn(follow_gangs(client.clone(), turns.apart(), sender.clone()));
    parts.spawn(follow_clusters(client.clone(), turns.apart(), sender.clone()));
    parts.spawn(follow_jobs(client.clone(), turns.apart(), sender.clone()));
    let mut control = Control {
        state: State::default(),
        queue: Queue::default(),
        config,
        counters,
        started: Instant::now(),
        started_at: unix_seconds(),
        machine_started: std::time::Instant::now(),
        ahead: 0,
        writers: Writers::new(WRITERS),
        links: Links::new(client.clone(), connect, sender),
        next_round: Millis::default(),
        next_slots: Millis::default(),
    };
    control.state.settings.image.clone_from(&control.config.image);
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    control.state.settings.wait_for_nodes = control.config.wait_for_nodes.map(seconds);
    control.state.settings.keep_ended_jobs = control.config.keep_ended_jobs.map(seconds);
    control.state.settings.node_lost_after = seconds(control.config.node_lost_after);
    let mut writers: JoinSet<Written> = JoinSet::new();
    loop {
        control.counters.heartbeat.beat();
        control.follow_clock()?;
        let due = control.queue.next().filter(|_| control.state.is_complete() && writers.len() < WRITERS);
        let wait = due.map_or(Duration::MAX, |due| Duration::from_millis(due - control.millis()));
        tokio::select! {
            next = news.recv() => {
                let Some(next) = next else { bail!("the watches ended") };
                control.take_in(next);
                // Events that have queued up are applied together, before the next decision.
                while let Ok(next) = news.try_recv() {
                    control.take_in(next);
                }
            }
            Some(written) = writers.join_next() => control.written(written?),
            () = tokio::time::sleep(wait.min(Heartbeat::EVERY)) => {}
            () = stop.cancelled() => return Ok(()),
        }
        if !control.state.is_complete() {
            continue;
        }
        control.counters.synced.store(true, Ordering::Relaxed);
        while writers.len() < WRITERS {
            let Some((work, writes)) = control.next() else { break };
            writers.spawn(execute_all(client.clone(), Arc::clone(&control.counters), work, writes));
        }
    }
}

struct Control {
    state: State,
    queue: Queue,
    config: Config,
    counters: Arc<Counters>,
    started: Instant,
    /// The wall-clock time at which `Millis` was 0.
    started_at: Seconds,
    /// The same on the machine's monotonic clock.
    machine_started: std::time::Instant,
    /// By how many seconds the wall clock was set forwards since.
    ahead: i64,
    writers: Writers,
    links: Links,
    /// The next round over all training jobs starts no earlier.
    next_round: Millis,
    /// The slots for warming are shared out no earlier.
    next_slots: Millis,
}

impl Control {
    fn millis(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The wall-clock time, derived from the monotonic clock, so that time never runs backwards between two decisions.
    fn seconds(&self) -> Seconds {
        self.started_at + i64::try_from(self.started.elapsed().as_secs()).unwrap_or(0) + self.ahead
    }

    fn take_in(&mut self, news: News) {
        let unreadable = match &news {
            News::Unreadable(unreadable) => std::slice::from_ref(unreadable),
            News::All(_, _, unreadable) => unreadable.as_slice(),
            _ => &[],
        };
        for unreadable in unreadable {
            self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
            let (kind, key) = (unreadable.kind.name(), &unreadable.key);
            warn!(kind, %key, error = unreadable.why, "skip an unreadable object");
        }
        let now = self.millis();
        self.state.clusters.now = now;
        for work in self.state.apply(news) {
            self.add(work, now);
        }
    }

    /// Schedules work at `at`, or as soon afterwards as its rate limit allows.
    fn add(&mut self, work: Work, at: Millis) {
        let at = match work {
            Work::Jobs => at.max(self.next_round),
            Work::Slots => at.max(self.next_slots),
            _ => at,
        };
        self.queue.add(work, at);
    }

    /// The next due work that results in writes.
    fn next(&mut self) -> Option<(Work, Vec<Write>)> {
        loop {
            // Much work may be due at once, and most of it results in no write.
            self.counters.heartbeat.beat();
            let now = self.millis();
            let work = self.queue.take(now)?;
            let namespace = self.namespace(&work);
            let Some(work) = self.writers.admit(work, namespace.as_deref()) else { continue };
            let writes = self.plan(&work, now);
            if !writes.is_empty() {
                self.queue.begin(&work);
                self.writers.begin(&work, namespace);
                return Some((work, writes));
            }
            self.queue.rest(&work);
        }
    }

    fn plan(&mut self, work: &Work, now: Millis) -> Vec<Write> {
        match work {
            Work::Jobs => {
                self.round(now);
                Vec::new()
            }
            Work::Job(key) => self.plan_job(key),
            Work::Sweep(key) => self.plan_sweep(key, now),
            Work::DryRun(spec_hash) => self.plan_dry_run(spec_hash, now),
            Work::JobType(name) => self.plan_type(name),
            Work::JobTypes => self.plan_types(),
            Work::JobQueue(name) => self.plan_queue(name),
            Work::Elsewhere(key) => self.plan_elsewhere(key, now),
            Work::Links => {
                self.follow_clusters(now);
                Vec::new()
            }
            Work::Cluster(name) => self.plan_cluster(name, now),
            Work::Dataset(key) => self.plan_dataset(key, now),
            Work::Slots => {
                self.share_slots(now);
                Vec::new()
            }
            Work::CacheQuota(name) => self.state.quota_status(name, self.seconds()).into_iter().collect(),
            Work::Workload(key) => self.plan_workload(key, now),
            Work::Abandoned(key) => self.state.abandoned(key, self.seconds()).into_iter().collect(),
            Work::Moved(key) => self.plan_moved(key, now),
            Work::Nomination(key) => self.state.nomination(key).into_iter().collect(),
            Work::OrphanedPod(key) => self.state.orphaned_pod(key, self.seconds()).into_iter().collect(),
            Work::QueuedPod(key) => self.state.queued_pod(key).into_iter().collect(),
            Work::AdmissionCheck(name) => {
                let version = self.state.kueue.version;
                let check = self.state.kueue.data_check(name);
                check.and_then(|check| check::activate(check, version, self.seconds())).into_iter().collect()
            }
            Work::Promises(node) => {
                let key = Key::cluster(node);
                let Some(found) = self.state.nodes.get(&key) else {
                    self.queue.forget_node(node);
                    return Vec::new();
                };
                let (cache, clean) = (self.state.caches.get(&key), self.state.clean(node));
                let (promised, quotas) = (self.state.promised(node), self.state.node_quotas());
                let near = self.state.near_labels();
                node_labels::promises(found, cache, promised, &clean, quotas, &near).into_iter().collect()
            }
            Work::Labels(node) => {
                let key = Key::cluster(node);
                let Some(found) = self.state.nodes.get(&key) else {
                    self.state.forget_emitted(&key);
                    return Vec::new();
                };
                let current = |cached: &SnapshotCache| self.state.labelled(cached);
                let is_kept = |label: &str| self.state.is_label_of_unreadable(label);
                let cache = self.state.caches.get(&key);
                let labels = node_labels::labels(found, cache, current, is_kept);
                let event = cache.and_then(|cache| node_labels::not_ready_event(cache, self.seconds()));
                if event.is_none() {
                    self.state.forget_emitted(&key);
                }
                let event = event.filter(|event| !self.state.emitted(&key).contains(&event.name));
                labels.into_iter().chain(event).collect()
            }
            Work::Orphans(uid) => {
                let orphans = self.state.orphans(uid).into_iter();
                orphans
                    .map(|(kind, key, uid)| Write::new(kind, &key.namespace, &key.name, Change::Delete(uid)))
                    .collect()
            }
            Work::Registry => {
                let there = self.state.config_maps.get(&Key::new(&self.config.namespace, REGISTRY_CONFIG_MAP));
                let there = there.map(|map| map.text.as_str());
                let (state, endpoints) = (&self.state, &self.state.settings.endpoints);
                let made = inline_registry::registry(
                    &self.config.namespace,
                    there,
                    state.datasets.iter(),
                    &state.unreadable,
                    endpoints,
                );
                let before = std::mem::replace(&mut self.state.left_out, made.left_out);
                for key in before.symmetric_difference(&self.state.left_out) {
                    self.queue.add(Work::Dataset(key.clone()), now);
                }
                made.write.into_iter().collect()
            }
        }
    }

    fn plan_dataset(&mut self, key: &Key, now: Millis) -> Vec<Write> {
        self.counters.decisions.fetch_add(1, Ordering::Relaxed);
        let (all, ready) = self.state.counts();
        self.counters.datasets.store(all, Ordering::Relaxed);
        self.counters.datasets_ready.store(ready, Ordering::Relaxed);
        if self.state.unreadable.contains_key(key) {
            // Nothing is known about the dataset, not even which claims it must reject.
            return Vec::new();
        }
        if let Some(older) = self.state.undecided_before(key) {
            self.queue.add(Work::Dataset(older), now);
            self.queue.add(Work::Dataset(key.clone()), now + 1);
            return Vec::new();
        }
        let time = self.seconds();
        let (slots, had_needs) = (self.state.take_slots(key), self.state.slot_needs.contains_key(key));
        let view = self.state.dataset_view(key, time, slots);
        let uid = view.dataset.map(|dataset| dataset.meta.uid.clone());
        let is_nothing = view.dataset.is_none() && view.claims.is_empty();
        let decision = decide(&view);
        self.state.needs_slots(key, decision.needs, warming(&decision.writes));
        if slots == 0 && !decision.needs.are_met() {
            self.add(Work::Slots, now);
            if !had_needs {
                // Only now is it known that the dataset needs slots, so it is decided about once it may have some.
                self.queue.add(Work::Dataset(key.clone()), now.max(self.next_slots));
                return Vec::new();
            }
        }
        if is_nothing {
            self.state.forget_emitted(key);
        }
        let mark = |set: &mut std::collections::BTreeSet<Key>, on: bool| {
            if on {
                set.insert(key.clone())
            } else {
                set.remove(key)
            };
        };
        mark(&mut self.state.starved, decision.is_starved);
        mark(&mut self.state.cleaning, decision.is_cleaning);
        if let Some(uid) = uid {
            let mut work = Vec::new();
            self.state.limited(key, decision.over_quota, decision.awaits_import, &mut work);
            self.state.import_begins(key, imports(&decision.writes), &mut work);
            self.state.decide(&uid, decision.promises, decision.clean, &mut work);
            work.into_iter().for_each(|work| self.add(work, now));
        }
        let mut work = Vec::new();
        self.state.progressed(key, decision.progress, &mut work);
        work.into_iter().for_each(|work| self.add(work, now));
        self.again(Work::Dataset(key.clone()), decision.again_at, time, now);
        decision.writes
    }

    /// Shares out the slots for warming. That takes as long as there are datasets that wait, so it is done for all that
    /// have changed since the last time, and not for each of them.
    fn share_slots(&mut self, now: Millis) {
        let granted = self.state.share_slots(self.config.max_warming, self.seconds());
        let ended = self.millis();
        self.next_slots = after_round(now, ended);
        for key in granted {
            self.queue.add(Work::Dataset(key), ended);
        }
    }

    fn plan_workload(&mut self, key: &Key, now: Millis) -> Vec<Write> {
        let time = self.seconds();
        let Some(situation) = self.state.situation(key, time) else { return Vec::new() };
        let check::Outcome { write, again_at } = check::decide(&situation);
        self.again(Work::Workload(key.clone()), again_at, time, now);
        write.into_iter().collect()
    }

    /// Schedules work again at `at`. `time` and `now` are the current time on the two clocks.
    fn again(&mut self, work: Work, at: Option<Seconds>, time: Seconds, now: Millis) {
        if let Some(at) = at {
            let seconds = u64::try_from(at - time).unwrap_or(0).max(1);
            self.add(work, now + seconds.saturating_mul(1000));
        }
    }

    fn written(&mut self, written: Written) {
        let now = self.millis();
        self.state.remember_emitted(&written.work, &written.emitted);
        let mut work = Vec::new();
        if let Work::Dataset(key) = &written.work {
            if self.state.warming_begun.remove(key).is_some() {
                work.push(Work::Slots);
            }
            self.state.import_begins(key, false, &mut work);
            if written.wrote_status {
                let now = self.seconds();
                self.state.status_written.insert(key.clone(), now);
            }
            if written.refused.is_empty() {
                self.state.refused.remove(key);
            } else {
                self.state.refused.insert(key.clone(), written.refused.clone());
            }
            // Decide again: the next decision sees the effects of these writes.
            self.queue.add(written.work.clone(), now);
        }
        if let Work::Workload(key) = &written.work
            && written.wrote_status
        {
            let now = self.seconds();
            self.state.kueue.written.insert(key.clone(), now);
        }
        match &written.work {
            Work::Job(key) => self.job_written(&key.clone(), &written),
            Work::Sweep(key) => self.state.trials_written(key, &written.refused),
            Work::DryRun(spec_hash) => self.dry_run_answered(spec_hash, &written),
            _ => {}
        }
        for (kind, object, is_new) in written.objects {
            match Object::parse(kind, &object) {
                // An update of an object that is no longer known: the watch has reported its deletion before the answer
                // arrived.
                Ok(Some(object)) if !is_new && !self.state.has(kind, &object.key()) => {}
                Ok(Some(object)) => self.take_in(News::Written(kind, object)),
                Ok(None) => {}
                Err(unreadable) => self.take_in(News::Unreadable(unreadable)),
            }
        }
        for (kind, key, uid, deletion) in written.deleted {
            work.extend(self.state.deleted(kind, &key, &uid, deletion));
        }
        work.into_iter().for_each(|work| self.add(work, now));
        if !written.succeeded {
            self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
        }
        for work in self.writers.end(&written.work) {
            self.add(work, now);
        }
        // A round decides when a job's writes are retried.
        let succeeded = written.succeeded || matches!(written.work, Work::Job(_));
        let longest = match &written.work {
            Work::DryRun(_) => self.state.longest_dry_run_pause().max(RETRY_MILLIS),
            _ => RETRY_MILLIS,
        };
        self.queue.end(written.work, succeeded, now, longest);
    }

    /// The namespace whose pods or webhooks may delay the writes of this work; `None` if there is none.
    fn namespace(&self, work: &Work) -> Option<String> {
        match work {
            Work::Job(key)
            | Work::Sweep(key)
            | Work::Dataset(key)
            | Work::Workload(key)
            | Work::Abandoned(key)
            | Work::Moved(key)
            | Work::Nomination(key)
            | Work::OrphanedPod(key)
            | Work::QueuedPod(key)
            | Work::Elsewhere(key) => Some(key.namespace.clone()),
            Work::DryRun(spec_hash) => Some(self.state.jobs.dry_runs.get(spec_hash)?.asker()?.namespace.clone()),
            _ => None,
        }
    }

    /// Follows corrections of the machine's clock. Time never runs backwards.
    ///
    /// # Errors
    /// The clock was set back by more than [`BACKWARDS_SECONDS`]. The next process starts with the right time.
    fn follow_clock(&mut self) -> anyhow::Result<()> {
        let elapsed = i64::try_from(self.machine_started.elapsed().as_secs()).unwrap_or(i64::MAX);
        let ahead = (unix_seconds() - self.started_at) - elapsed;
        self.ahead = corrected(self.ahead, ahead).context("the clock was set back by more than a minute")?;
        Ok(())
    }
}

/// How many seconds the wall clock is ahead of the time since the start. Small differences are those of rounding.
/// `None`: the clock was set back.
fn corrected(before: i64, now: i64) -> Option<i64> {
    match now.saturating_sub(before) {
        moved if moved >= FORWARDS_SECONDS => Some(now),
        moved if moved <= -BACKWARDS_SECONDS => None,
        _ => Some(before),
    }
}

fn unix_seconds() -> Seconds {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_followed_forwards_and_ends_the_process_if_it_goes_back() {
        for (before, now, expected) in [
            (0, 4, Some(0)),
            (0, 5, Some(5)),
            (0, 3_600, Some(3_600)),
            (3_600, 3_541, Some(3_600)),
            (3_600, 3_540, None),
            (0, -60, None),
            (0, i64::MIN, None),
        ] {
            assert_eq!(corrected(before, now), expected, "{before} {now}");
        }
    }
}
