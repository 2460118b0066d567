//! The controller at scale: how soon many Datasets are ready, how many API writes that takes, what the controller uses
//! while idle, how soon labels follow the bytes, and how long a restart takes.
//!
//! The cast: [`run`] has the steps; `cluster` creates and removes the benchmark's objects; `observer` records when
//! Datasets become ready and when labels are added and removed; `outcome` has the figures, their goals and the table.
//! `larder-fake-platform` simulates the pods of jobs and the larderds; kwok simulates the nodes.
//!
//! Invariants: a cluster with other users' Datasets is rejected before any object is created. The benchmark removes its
//! objects at the end, also after an error or Ctrl-C; the next run first removes the objects of a killed run.

mod cluster;
mod observer;
mod outcome;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_fake_platform::{Config as Play, FakePlatform, handover};
use larder_kube::Client;

pub use crate::kubernetes::Places;
use crate::kubernetes::objects::{self, NAMESPACE};
use crate::kubernetes::running::Running;
use crate::kubernetes::{connect, wait};
use crate::side_by_side::Progress;
use crate::systems::Stop;
use cluster::Objects;
use larder_epochs::figures::machine_load;
use larder_epochs::process::Usage;
use observer::Observer;
pub use outcome::{ControllerConfig, ControllerOutcome, Latencies, Rest, Restart, WriteRow};

/// Bytes of a dataset. A node's cache has room for [`ROOM`] times the bytes that it will get.
const BYTES: u64 = 100_000_000_000;
const ROOM: u64 = 3;

/// How long a job warms a node, and the shortest interval between two reports of a larderd. The real larderd has the
/// same.
const WARMING: Duration = Duration::from_secs(2);
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The longest that a step may take.
const NODES: Duration = Duration::from_secs(300);
const READY: Duration = Duration::from_secs(3600);
const OTHERS: Duration = Duration::from_secs(600);

/// The controller counts as idle after this long without a write.
const QUIET: Duration = Duration::from_secs(20);

/// How long a restarted controller is watched for writes that it should not make.
const AFTER_RESTART: Duration = Duration::from_secs(15);

/// One in this many Datasets is deleted at the end.
const DELETED_ONE_OF: u32 = 10;

/// Measures everything. Must be called on the main thread. Errors stop the run.
pub fn run(config: &ControllerConfig, places: &Places, progress: &dyn Progress) -> anyhow::Result<ControllerOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    runtime.block_on(async {
        let client = connect(places).await?;
        let objects = Objects::new(&client, config);
        objects.refuse_a_cluster_in_use().await?;
        progress.steps(5 + u64::from(config.restarts));
        progress.doing("removing the objects of an earlier run");
        objects.remove().await?;
        let bench = Bench { client: &client, config, places, objects: &objects, progress, stop: &stop };
        let measured = bench.measure().await;
        progress.doing("removing everything");
        let removed = objects.remove().await;
        match (measured, removed) {
            (Ok(outcome), Ok(())) => Ok(outcome),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(left)) => {
                Err(error
                    .context(format!("some objects could not be removed; run this again to remove them: {left:#}")))
            }
        }
    })
}

struct Bench<'a> {
    client: &'a Client,
    config: &'a ControllerConfig,
    places: &'a Places,
    objects: &'a Objects,
    progress: &'a dyn Progress,
    stop: &'a Stop,
}

impl Bench<'_> {
    async fn measure(&self) -> anyhow::Result<ControllerOutcome> {
        let load = machine_load();
        self.progress.doing("creating the nodes");
        objects::make_namespace(self.client).await?;
        let observer = Observer::start(self.client);
        objects::make_nodes(self.client, 0..self.config.nodes).await?;
        let nodes = u64::from(self.config.nodes);
        let all_ready = || observer.times().ready_nodes.len() as u64 == nodes;
        self.wait("the nodes are ready (kwok must run: tests/cluster/kwok.sh)", NODES, None, all_ready).await?;
        handover::hand_over(self.client, NAMESPACE).await?;
        let held = u64::from(self.config.datasets) * u64::from(self.config.count) * BYTES;
        let play = Play {
            namespace: NAMESPACE.to_owned(),
            nodes: (0..self.config.nodes).map(objects::node).collect(),
            capacity_bytes: (held.div_ceil(nodes).max(BYTES)) * ROOM,
            files: 1_000_000,
            bytes: BYTES,
            warming: WARMING,
            report_every: REPORT_EVERY,
        };
        let platform = FakePlatform::start(self.client, play);
        let logs = tempfile::tempdir().context("create a directory for logs")?;
        let mut controller = Running::start(self.places, logs.path())?;
        let reporting = || platform.seen().reporting() == nodes;
        self.wait("every node reports its cache", NODES, Some(&mut controller), reporting).await?;
        self.progress.measured(&format!("{nodes} nodes report"));

        let mut outcome = ControllerOutcome { config: self.config.clone(), load, ..ControllerOutcome::default() };
        self.ramp(&mut outcome, &observer, &platform, &mut controller).await?;
        self.rest(&mut outcome, &mut controller).await?;
        for _ in 0..self.config.restarts {
            self.progress.doing("restarting the controller");
            let restart = self.restart(&mut controller).await?;
            self.progress.measured(&restart.to_string());
            outcome.restarts.push(restart);
        }
        self.delete(&mut outcome, &observer, &mut controller).await?;
        controller.stop();
        outcome.load_after = machine_load();
        outcome.watch_errors.clone_from(&observer.times().errors);
        Ok(outcome)
    }

    /// Creates the Datasets and waits until all are ready.
    async fn ramp(
        &self,
        outcome: &mut ControllerOutcome,
        observer: &Observer,
        platform: &FakePlatform,
        controller: &mut Running,
    ) -> anyhow::Result<()> {
        self.progress.doing("waiting for the datasets");
        let datasets = u64::from(self.config.datasets);
        let (figures, usage) = (controller.figures().await?, Usage::of(&[controller.id()]));
        let platform_writes = platform.seen().writes();
        let started = Instant::now();
        let created = self.objects.make_datasets().await?;
        outcome.created_seconds = started.elapsed().as_secs_f64();
        let all_ready = || observer.times().ready.len() as u64 == datasets;
        self.wait("all datasets are ready", READY, Some(&mut *controller), all_ready).await?;
        let times = observer.times().clone();
        let last = times.ready.values().max().copied().unwrap_or(started);
        outcome.ready_seconds = last.duration_since(started).as_secs_f64();
        outcome.ready = Latencies::of(times.ready.iter().filter_map(|(name, at)| Some(*at - *created.get(name)?)));
        self.progress.measured(&format!("{datasets} Datasets ready in {:.1} s", outcome.ready_seconds));

        self.progress.doing("waiting until the controller is idle");
        self.quiet(controller).await?;
        let after = Usage::of(&[controller.id()]);
        outcome.cpu_seconds = after.cpu_seconds - usage.cpu_seconds;
        outcome.peak_rss_bytes = after.peak_rss_bytes;
        outcome.platform_writes = platform.seen().writes() - platform_writes;
        let before = figures.writes();
        let figures = controller.figures().await?;
        let grown = figures.writes().into_iter().map(|((resource, verb), count)| {
            let before = before.get(&(resource.clone(), verb.clone())).copied().unwrap_or_default();
            WriteRow { resource, verb, count: count - before }
        });
        outcome.writes = grown.filter(|row| row.count > 0).collect();
        outcome.decisions = figures.get("decisions_total");
        outcome.write_errors = figures.get("write_errors_total");
        let labelled = observer.times().labelled.clone();
        let filled = platform.seen().filled().into_iter();
        outcome.fill_to_label = Latencies::of(filled.filter_map(|filled| {
            let at = labelled.get(&(filled.node, filled.dataset))?;
            Some(at.saturating_duration_since(filled.at))
        }));
        let all = datasets * u64::from(self.config.count);
        if outcome.fill_to_label.count as u64 != all {
            bail!("{} labels appeared for {all} filled nodes", outcome.fill_to_label.count);
        }
        self.progress.measured(&format!("fill to label: {}", outcome.fill_to_label));
        Ok(())
    }

    /// Measures the controller's cost while nothing happens.
    async fn rest(&self, outcome: &mut ControllerOutcome, controller: &mut Running) -> anyhow::Result<()> {
        self.progress.doing("measuring the idle controller");
        let (writes, usage) = (controller.figures().await?.all_writes(), Usage::of(&[controller.id()]));
        let started = Instant::now();
        self.pass(Duration::from_secs(self.config.rest_seconds), controller).await?;
        let (seconds, after) = (started.elapsed().as_secs_f64(), Usage::of(&[controller.id()]));
        let writes = controller.figures().await?.all_writes() - writes;
        let cpu = (after.cpu_seconds - usage.cpu_seconds) / seconds;
        outcome.rest = Rest { seconds, writes, cpu, rss_bytes: after.rss_bytes };
        self.progress.measured(&format!("idle: {writes} writes, {:.2} % of a core", cpu * 100.0));
        Ok(())
    }

    async fn restart(&self, controller: &mut Running) -> anyhow::Result<Restart> {
        let datasets = u64::from(self.config.datasets);
        let started = controller.restart(self.places)?;
        let mut first = None;
        let all = loop {
            self.stop.check()?;
            controller.check()?;
            let decisions = controller.try_figures().await.map_or(0, |figures| figures.get("decisions_total"));
            if decisions > 0 {
                first.get_or_insert(started.elapsed());
            }
            if decisions >= datasets {
                break started.elapsed();
            }
            if started.elapsed() > OTHERS {
                bail!("a restarted controller made only {decisions} decisions in {} s", OTHERS.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        self.pass(AFTER_RESTART, controller).await?;
        let first = first.unwrap_or(all);
        Ok(Restart {
            first_seconds: first.as_secs_f64(),
            all_seconds: all.as_secs_f64(),
            writes: controller.figures().await?.all_writes(),
            peak_rss_bytes: Usage::of(&[controller.id()]).peak_rss_bytes,
        })
    }

    async fn delete(
        &self,
        outcome: &mut ControllerOutcome,
        observer: &Observer,
        controller: &mut Running,
    ) -> anyhow::Result<()> {
        self.progress.doing("deleting datasets");
        let count = self.config.datasets.div_ceil(DELETED_ONE_OF);
        let labels: Vec<(String, String)> = observer.times().labelled.keys().cloned().collect();
        let deleted: BTreeMap<String, Instant> = self.objects.delete_datasets(count).await?;
        let labels: Vec<_> = labels.into_iter().filter(|(_, dataset)| deleted.contains_key(dataset)).collect();
        let all_gone = || {
            let times = observer.times();
            labels.iter().all(|label| times.unlabelled.contains_key(label))
                && deleted.keys().all(|name| times.gone.contains_key(name))
        };
        self.wait("the deleted datasets and their labels are gone", OTHERS, Some(controller), all_gone).await?;
        let times = observer.times().clone();
        outcome.delete_to_unlabelled =
            Latencies::of(labels.iter().filter_map(|label| {
                Some(times.unlabelled.get(label)?.saturating_duration_since(*deleted.get(&label.1)?))
            }));
        outcome.delete_to_gone = Latencies::of(
            deleted.iter().filter_map(|(name, at)| Some(times.gone.get(name)?.saturating_duration_since(*at))),
        );
        self.progress.measured(&format!("delete to label gone: {}", outcome.delete_to_unlabelled));
        Ok(())
    }

    /// Waits until the controller has made no write for a while.
    async fn quiet(&self, controller: &mut Running) -> anyhow::Result<()> {
        let started = Instant::now();
        let (mut writes, mut since) = (controller.figures().await?.all_writes(), Instant::now());
        while since.elapsed() < QUIET {
            self.pass(Duration::from_secs(1), controller).await?;
            let now = controller.figures().await?.all_writes();
            if now != writes {
                (writes, since) = (now, Instant::now());
            }
            if started.elapsed() > OTHERS {
                bail!("the controller is not idle after {} s", OTHERS.as_secs());
            }
        }
        Ok(())
    }

    async fn pass(&self, time: Duration, controller: &mut Running) -> anyhow::Result<()> {
        let started = Instant::now();
        self.wait("time passes", Duration::MAX, Some(controller), || started.elapsed() >= time).await
    }

    async fn wait(
        &self,
        what: &str,
        limit: Duration,
        controller: Option<&mut Running>,
        done: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        wait::until(self.stop, what, limit, controller, done).await
    }
}
