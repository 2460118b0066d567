//! The extender's server in a separate process, with a large simulated cluster.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use arc_swap::ArcSwap;
use larder_scheduler_ext::admin::Counters;
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::verbs::{Keeper, Verbs};
use larder_scheduler_ext::http::{LIMITS, Server};
use larder_scheduler_ext::index::facts::Name;
use larder_scheduler_ext::index::state::Snapshot;
use larder_scheduler_ext::index::{Event, Index, Kind};
use larder_scheduler_ext::load::Size;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use larder_epochs::figures::Latencies;
use larder_epochs::process::Usage;

/// API events per second while the server answers: 5,000 nodes that each report their cache every minute, and about as
/// many events of pods.
const NEWS_A_SECOND: u32 = 100;
/// The number of added pods that stay. After that, one pod is deleted for each pod that is added.
const GUESTS: usize = 100;

/// The size of the simulated cluster; JSON on the command line of the process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Known {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of datasets.
    pub datasets: usize,
    /// Number of bound pods.
    pub pods: usize,
}

impl Known {
    /// A cluster of this many nodes, with a fifth as many datasets and ten times as many pods.
    pub fn of(nodes: usize) -> Self {
        Self { nodes, datasets: nodes / 5, pods: nodes * 10 }
    }

    pub(super) fn size(self) -> Size {
        Size { nodes: self.nodes, datasets: self.datasets, pods: self.pods }
    }
}

/// The figures that the process prints at the end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct News {
    /// The mean time to apply an event, in seconds.
    pub(super) mean: f64,
    /// The time to apply each event and to publish the new index to readers.
    pub(super) times: Latencies,
}

/// Serves until standard input ends. Prints its address on standard output, and at the end the cost of the events.
pub fn serve(known: &str) -> anyhow::Result<()> {
    let known: Known = serde_json::from_str(known).context("parse --serve")?;
    let serving = Serving::start(known)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serving.address).and_then(|()| out.flush()).context("print the address")?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    writeln!(out, "{}", serde_json::to_string(&serving.news())?).context("print the cost of events")
}

/// The verbs, and the index from which they answer.
pub(super) struct Knowing {
    index: Index,
    shown: Arc<ArcSwap<Snapshot>>,
    counters: Arc<Counters>,
    pub(super) verbs: Verbs,
    keeper: Keeper,
}

impl Knowing {
    /// Loads the whole cluster into an index.
    pub(super) fn of(known: Known) -> Self {
        let settings = Arc::new(Settings::default());
        let mut index = Index::new(settings.devices.iter().map(|device| device.resource.clone()).collect());
        for event in known.size().events() {
            index.apply(event);
        }
        let (shown, counters) = (Arc::new(ArcSwap::from(index.show())), Arc::new(Counters::default()));
        let (verbs, keeper) = Verbs::new(settings, Arc::clone(&shown), Arc::clone(&counters));
        Self { index, shown, counters, verbs, keeper }
    }
}

/// A running server. Dropping it stops the server.
pub(super) struct Serving {
    pub(super) address: SocketAddr,
    times: Arc<Mutex<Vec<Duration>>>,
    _runtime: Runtime,
}

impl Serving {
    /// Starts a server that has loaded the whole cluster.
    pub(super) fn start(known: Known) -> anyhow::Result<Self> {
        // Two worker threads, as in larder-scheduler-ext.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.context("start the runtime")?;
        let Knowing { index, shown, counters, verbs, keeper } = Knowing::of(known);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = runtime.block_on(Server::bind(address, None, LIMITS, verbs, counters))?;
        let address = server.address()?;
        let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
        // All pods read existing datasets, so the keeper has no Events to send.
        runtime.spawn(keeper.run(mpsc::channel(1).0));
        runtime.spawn(server.serve(CancellationToken::new()));
        runtime.spawn(hear(index, known.size(), shown, Arc::clone(&times)));
        Ok(Self { address, times, _runtime: runtime })
    }

    /// The cost of the events so far.
    pub(super) fn news(&self) -> News {
        News::of(&self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Applies events one by one and records the time of each. Never returns.
async fn hear(mut index: Index, size: Size, shown: Arc<ArcSwap<Snapshot>>, times: Arc<Mutex<Vec<Duration>>>) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / NEWS_A_SECOND);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut guests = VecDeque::new();
    let mut version = 1;
    for number in 0.. {
        for event in news(size, number, &mut version, &mut guests) {
            pace.tick().await;
            let begun = Instant::now();
            index.apply(event);
            shown.store(index.show());
            let took = begun.elapsed();
            times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        }
    }
}

/// The next events: a node reports its cache, or a pod is added and an older pod is deleted, so that the number of pods
/// stays constant.
fn news(size: Size, number: usize, version: &mut u64, guests: &mut VecDeque<Name>) -> Vec<Event> {
    *version += 1;
    let event = size.event(number, *version);
    if let Event::Changed(Kind::Pod, pod) = &event {
        guests.push_back(Arc::clone(&pod.key));
    }
    let mut news = vec![event];
    if guests.len() > GUESTS
        && let Some(guest) = guests.pop_front()
    {
        *version += 1;
        news.push(Event::Gone(Kind::Pod, guest, *version));
    }
    news
}

impl News {
    fn of(times: &[Duration]) -> Self {
        let mean = times.iter().sum::<Duration>().as_secs_f64() / times.len().max(1) as f64;
        Self { mean, times: Latencies::of(times.iter().copied()) }
    }
}

/// The serving process. It ends when its standard input is closed, and therefore no later than this process.
pub(super) struct Process {
    child: std::process::Child,
    said: BufReader<std::process::ChildStdout>,
    pub(super) address: SocketAddr,
}

impl Process {
    /// Starts `larder-bench extender --serve`.
    pub(super) fn start(larder: &Path, known: Known) -> anyhow::Result<Self> {
        let mut command = Command::new(larder);
        command.args(["extender", "--serve", &serde_json::to_string(&known)?]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start the server")?;
        let mut said = BufReader::new(child.stdout.take().context("open the server's output")?);
        let mut line = String::new();
        said.read_line(&mut line).context("read the server's address")?;
        let address =
            line.trim().parse().with_context(|| format!("the server printed {line:?} instead of its address"))?;
        Ok(Self { child, said, address })
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::of(&[self.child.id()])
    }

    /// Ends the process and returns the cost of the events.
    pub(super) fn end(mut self) -> anyhow::Result<News> {
        drop(self.child.stdin.take());
        let mut line = String::new();
        self.said.read_line(&mut line).context("read the server's final report")?;
        let status = self.child.wait().context("wait for the server")?;
        ensure!(status.success(), "the server ended: {status}");
        serde_json::from_str(&line).with_context(|| format!("the server printed {line:?} instead of its figures"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_events_keep_the_number_of_pods_constant() {
        let size = Known::of(10).size();
        let mut index = Index::new(Vec::new());
        size.events().into_iter().for_each(|event| index.apply(event));
        let (mut version, mut guests) = (1, VecDeque::new());
        for number in 0..1_000 {
            news(size, number, &mut version, &mut guests).into_iter().for_each(|event| index.apply(event));
        }
        assert_eq!((guests.len(), index.count(Kind::Pod)), (GUESTS, size.pods + GUESTS));
    }

    #[test]
    fn the_cost_of_events_is_reported() {
        let News { mean, times } = News::of(&[Duration::from_micros(10), Duration::from_micros(30)]);
        assert_eq!((times.count, times.max), (2, 30e-6));
        assert!((mean - 20e-6).abs() < 1e-12, "{mean}");
        assert_eq!(News::of(&[]).mean, 0.0);
    }
}
