//! The extender's response time in a large cluster: filter, then prioritize, over one persistent connection.
//!
//! The loop is open: requests are due at even intervals, and a response time starts when its request was due. A request
//! that waits for the previous request therefore includes that wait.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use larder_scheduler_ext::ring::Verb;
use serde::Serialize;

use super::connection::{Connection, post};
use super::serving::{Knowing, Known, News, Process};
use crate::systems::Stop;
use larder_epochs::figures::{Goal, Latencies, Spread, machine_load};
use larder_epochs::process::Usage;
use larder_epochs::table::figures_table;

/// About as many names as kube-scheduler sends in a cluster of a thousand nodes or more.
const SOME: usize = 500;
/// Number of datasets, which the pods read in turn.
const DATASETS: usize = 32;
/// The loop spins instead of sleeping for this long before a due time, because a sleep may last longer than requested.
const AWAKE: Duration = Duration::from_micros(200);

/// The goals: response times in microseconds (p99), the time to apply an event in microseconds (mean), and memory.
const SOME_US: f64 = 1_000.0;
const ALL_US: f64 = 4_000.0;
const NONE_US: f64 = 100.0;
const NEWS_US: f64 = 50.0;
const RSS_MIB: f64 = 150.0;

/// The nodes and the pod of a row's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// No names: the cost of the connection alone.
    Empty,
    /// A pod without a dataset, with about 500 names.
    NoDataset,
    /// A pod with a dataset, with about 500 names.
    Some,
    /// A pod with a dataset, with the names of all nodes.
    All,
}

impl Asked {
    const ALL: [Self; 4] = [Self::Empty, Self::NoDataset, Self::Some, Self::All];

    fn names(self, known: Known) -> usize {
        match self {
            Self::Empty => 0,
            Self::NoDataset | Self::Some => SOME.min(known.nodes),
            Self::All => known.nodes,
        }
    }

    /// The body of a request; `nth` picks the dataset.
    fn request(self, known: Known, nth: usize) -> Bytes {
        let reads = [Self::Some, Self::All].contains(&self);
        known.size().request(self.names(known), reads.then(|| nth % known.datasets.max(1)))
    }

    fn name(self, known: Known) -> String {
        let names = self.names(known);
        match self {
            Self::Empty => "an empty request".to_owned(),
            Self::NoDataset => format!("{names} names, no dataset"),
            Self::Some | Self::All => format!("{names} names"),
        }
    }
}

/// The load of the benchmark.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Load {
    /// The simulated cluster.
    pub known: Known,
    /// Requests per second, two for each pod.
    pub rate: u32,
    /// Number of pods of each kind in each round.
    pub asks: u32,
}

/// The response times of one kind in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AnswersRow {
    pub round: u32,
    /// The nodes and the pod of the requests.
    pub asked: Asked,
    /// The machine's one-minute load average before the round.
    pub load: f64,
    /// Both responses, over loopback.
    pub times: Latencies,
    /// Responses per second: fewer than the rate if the extender does not keep up.
    pub answered: f64,
}

/// The same requests within one process, without a network, one after another.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct InProcessRow {
    pub round: u32,
    /// The nodes and the pod of the requests.
    pub asked: Asked,
    /// The median of both responses together, in seconds.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// The cost of the serving process in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ServerRow {
    pub round: u32,
    /// Its resident memory at the end, and its peak.
    pub usage: Usage,
    /// The mean time to apply an event, in seconds.
    pub news_mean: f64,
    /// The time to apply each event.
    pub news: Latencies,
}

/// The measurements of all rounds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Answers {
    /// One row per round and kind.
    pub rows: Vec<AnswersRow>,
    /// One row per round and kind.
    pub in_process: Vec<InProcessRow>,
    /// One row per round.
    pub servers: Vec<ServerRow>,
}

impl fmt::Display for AnswersRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latencies { p50, p99, max, .. } = self.times;
        let [p50, p99, max] = [p50, p99, max].map(|seconds| seconds * 1e6);
        write!(f, "answers, {:?}: p50 {p50:.0}, p99 {p99:.0}, longest {max:.0} us", self.asked)
    }
}

impl Answers {
    /// Measures a round with a new serving process, `larder-bench extender --serve`.
    pub(super) fn round(
        &mut self,
        round: u32,
        larder: &Path,
        load: Load,
        stop: &Stop,
        mut said: impl FnMut(&str),
    ) -> anyhow::Result<()> {
        let server = Process::start(larder, load.known)?;
        let mut connection = Connection::open(server.address)?;
        for asked in Asked::ALL {
            let before = machine_load()[0];
            let (times, all) = ask_all(&mut connection, asked, load, stop)?;
            let answered = 2.0 * times.len() as f64 / all.as_secs_f64();
            let row = AnswersRow { round, asked, load: before, times: Latencies::of(times.into_iter()), answered };
            said(&row.to_string());
            self.rows.push(row);
        }
        let usage = server.usage();
        let News { mean, times } = server.end()?;
        self.servers.push(ServerRow { round, usage, news_mean: mean, news: times });
        stop.check()?;
        for (asked, times) in within(load)? {
            let Latencies { p50, p99, max, .. } = Latencies::of(times.into_iter());
            self.in_process.push(InProcessRow { round, asked, p50, p99, max });
        }
        Ok(())
    }
}

/// Makes the same number of requests within this process, without the network.
fn within(load: Load) -> anyhow::Result<[(Asked, Vec<Duration>); 3]> {
    let knowing = Knowing::of(load.known);
    let mut all = [Asked::NoDataset, Asked::Some, Asked::All].map(|asked| (asked, Vec::new()));
    for round in 0..load.asks as usize {
        for (asked, times) in &mut all {
            let request = asked.request(load.known, round);
            let begun = Instant::now();
            for verb in [Verb::Filter, Verb::Prioritize] {
                let answer = knowing.verbs.answer(verb, request.clone());
                answer.map_err(|why| anyhow::anyhow!("the extender rejects the request: {why:?}"))?;
            }
            times.push(begun.elapsed());
        }
    }
    Ok(all)
}

/// Sends the requests of `asks` pods, each when it is due. Returns the time of each pod and the total time.
fn ask_all(
    connection: &mut Connection,
    asked: Asked,
    load: Load,
    stop: &Stop,
) -> anyhow::Result<(Vec<Duration>, Duration)> {
    let requests: Vec<[Vec<u8>; 2]> = (0..DATASETS)
        .map(|nth| {
            let body = asked.request(load.known, nth);
            ["filter", "prioritize"].map(|verb| post(verb, &body))
        })
        .collect();
    check(connection, &requests[0], asked.names(load.known))?;
    let pause = Duration::from_secs(2) / load.rate;
    let started = Instant::now();
    let mut times = Vec::with_capacity(load.asks as usize);
    for nth in 0..load.asks {
        stop.check()?;
        let due = started + pause * nth;
        wait_until(due);
        for request in &requests[nth as usize % DATASETS] {
            connection.ask(request)?;
        }
        times.push(due.elapsed());
    }
    Ok((times, started.elapsed()))
}

/// Fails unless all nodes pass. Those that are not scored have the score 0.
fn check(connection: &mut Connection, [filter, prioritize]: &[Vec<u8>; 2], names: usize) -> anyhow::Result<()> {
    let count = |answer: &serde_json::Value| answer.as_array().map_or(0, Vec::len);
    let filtered: serde_json::Value =
        serde_json::from_slice(connection.ask(filter)?).context("parse the filter's response")?;
    let scores: serde_json::Value = serde_json::from_slice(connection.ask(prioritize)?).context("read scores")?;
    let (passing, scored) = (count(&filtered["NodeNames"]), count(&scores));
    ensure!(passing == names && scored <= names, "of {names} nodes, {passing} pass and {scored} are scored");
    Ok(())
}

fn wait_until(due: Instant) {
    let rest = due.saturating_duration_since(Instant::now());
    std::thread::sleep(rest.saturating_sub(AWAKE));
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

/// The spread over all rounds of values in seconds, in microseconds.
fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    Spread::of(values.map(|seconds| seconds * 1e6))
}

fn shown(Spread { median, min, max }: Spread) -> String {
    format!("{median:.0} ({min:.0}..{max:.0})")
}

pub(super) fn goals(answers: &Answers, Load { known, rate, .. }: Load) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut add = |figure: String, measured: String, goal: String, is_met| {
        goals.push(Goal { figure, measured, goal, is_met });
    };
    let p99 = |asked| spread(answers.rows.iter().filter(|row| row.asked == asked).map(|row| row.times.p99));
    for (asked, most) in [(Asked::Some, SOME_US), (Asked::All, ALL_US)] {
        let Some(spread) = p99(asked) else { continue };
        let figure = format!("filter + prioritize at {rate} requests/s, {}, p99, us", asked.name(known));
        add(figure, shown(spread), format!("<= {most}"), spread.median <= most);
    }
    let p50 = |asked| spread(answers.rows.iter().filter(|row| row.asked == asked).map(|row| row.times.p50));
    let above = |of: &dyn Fn(Asked) -> Option<Spread>| {
        let (none, floor) = (of(Asked::NoDataset)?.median, of(Asked::Empty)?.median);
        Some((none - floor, format!("{none:.0} - {floor:.0} = {:.0}", none - floor)))
    };
    if let (Some((middle, middle_shown)), Some((most, most_shown))) = (above(&p50), above(&p99)) {
        let figure = format!("  {}, minus an empty request, p50; p99, us", Asked::NoDataset.name(known));
        let is_met = middle <= NONE_US && most <= NONE_US;
        add(figure, format!("{middle_shown}; {most_shown}"), format!("<= {NONE_US}"), is_met);
    }
    let within = answers.in_process.iter().filter(|row| row.asked == Asked::NoDataset);
    if let Some(within) = spread(within.map(|row| row.p99)) {
        add(
            "  the same in one process, p99, us".to_owned(),
            shown(within),
            format!("<= {NONE_US}"),
            within.median <= NONE_US,
        );
    }
    if let Some(news) = spread(answers.servers.iter().map(|row| row.news_mean)) {
        add("an event in the index, mean, us".to_owned(), shown(news), format!("<= {NEWS_US}"), news.median <= NEWS_US);
    }
    let mib = answers.servers.iter().map(|row| row.usage.rss_bytes as f64 / f64::from(1 << 20));
    if let Some(spread) = Spread::of(mib) {
        add("resident memory, MiB".to_owned(), shown(spread), format!("<= {RSS_MIB}"), spread.median <= RSS_MIB);
    }
    goals
}

/// The rows of all rounds.
pub(super) fn table(answers: &Answers, Load { known, rate, asks }: Load) -> String {
    let Known { nodes, datasets, pods } = known;
    let mut text = format!(
        "Filter, then prioritize: {nodes} nodes, {datasets} datasets and {pods} pods known; {rate} requests/s, {asks} pods a \
         row; us\n"
    );
    let head = ["request", "round", "p50", "p99", "longest", "in process p50", "p99", "longest", "answered/s", "load"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for row in &answers.rows {
        let us = |seconds: f64| format!("{:.0}", seconds * 1e6);
        let within = answers.in_process.iter().find(|other| (other.round, other.asked) == (row.round, row.asked));
        let within = within.map_or_else(|| vec![String::new(); 3], |row| [row.p50, row.p99, row.max].map(us).into());
        let times = [row.times.p50, row.times.p99, row.times.max].map(us);
        let first = [row.asked.name(known), row.round.to_string()];
        rows.push(
            [&first[..], &times, &within, &[format!("{:.0}", row.answered), format!("{:.1}", row.load)]].concat(),
        );
    }
    text += &figures_table(&rows);
    text += "\nThe serving process, while it receives 100 events/s\n";
    let head = ["round", "event mean us", "p50", "p99", "longest", "events", "RSS MiB", "peak MiB", "CPU s"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ServerRow { round, usage, news_mean, news } in &answers.servers {
        let us = [*news_mean, news.p50, news.p99, news.max].map(|seconds| format!("{:.1}", seconds * 1e6));
        let mib =
            [usage.rss_bytes, usage.peak_rss_bytes].map(|bytes| format!("{:.0}", bytes as f64 / f64::from(1 << 20)));
        let cpu = format!("{:.1}", usage.cpu_seconds);
        rows.push([&[round.to_string()][..], &us, &[news.count.to_string()], &mib, &[cpu]].concat());
    }
    text + &figures_table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extender::serving::Serving;

    const LOAD: Load = Load { known: Known { nodes: 5_000, datasets: 1_000, pods: 50_000 }, rate: 500, asks: 100 };

    fn answers(some: f64, news: f64) -> Answers {
        let row = |asked, p99: f64| {
            let times = Latencies { count: 100, p50: 50e-6, p99: p99 * 1e-6, max: 1.0 };
            AnswersRow { round: 1, asked, load: 0.0, times, answered: 499.0 }
        };
        let within = |asked, p99: f64| InProcessRow { round: 1, asked, p50: 1e-6, p99: p99 * 1e-6, max: 3e-6 };
        Answers {
            rows: vec![
                row(Asked::Empty, 150.0),
                row(Asked::NoDataset, 250.0),
                row(Asked::Some, some),
                row(Asked::All, 4_001.0),
            ],
            in_process: vec![within(Asked::Some, 2.0), within(Asked::NoDataset, 101.0)],
            servers: vec![ServerRow {
                round: 1,
                usage: Usage { rss_bytes: 150 << 20, ..Usage::default() },
                news_mean: news * 1e-6,
                news: Latencies::default(),
            }],
        }
    }

    #[test]
    fn each_figure_is_shown_with_its_goal() {
        let goals = goals(&answers(999.0, 51.0), LOAD);
        let met: Vec<bool> = goals.iter().map(|goal| goal.is_met).collect();
        assert_eq!(met, [true, false, true, false, false, true]);
        assert_eq!(goals[2].measured, "50 - 50 = 0; 250 - 150 = 100");
        assert!(goals[0].figure.contains("500 requests/s, 500 names"), "{}", goals[0].figure);
        assert!(super::goals(&Answers::default(), LOAD).is_empty());
        let table = table(&answers(999.0, 51.0), LOAD);
        let line = table.lines().find(|line| line.starts_with("500 names ")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["500", "names", "1", "50", "999", "1000000", "1", "2", "3", "499", "0.0"]);
    }

    #[test]
    fn a_small_cluster_can_be_measured() {
        let load = Load { known: Known::of(600), rate: 2_000, asks: 20 };
        let serving = Serving::start(load.known).unwrap();
        let mut connection = Connection::open(serving.address).unwrap();
        for asked in Asked::ALL {
            let (times, all) = ask_all(&mut connection, asked, load, &Stop::default()).unwrap();
            // The last request is due after 19 ms.
            assert!(times.len() == 20 && all >= Duration::from_millis(19), "{asked:?}: {all:?}");
        }
        let stop = Stop::default();
        stop.request();
        assert!(ask_all(&mut connection, Asked::Some, load, &stop).is_err());
        let news = serving.news();
        assert!(news.times.count > 0 && news.mean > 0.0, "{news:?}");
    }

    #[test]
    fn a_response_without_some_node_is_an_error() {
        let serving = Serving::start(Known::of(10)).unwrap();
        let mut connection = Connection::open(serving.address).unwrap();
        let body = Known::of(10).size().request(10, Some(1));
        let requests = ["filter", "prioritize"].map(|verb| post(verb, &body));
        check(&mut connection, &requests, 10).unwrap();
        let error = check(&mut connection, &requests, 11).unwrap_err().to_string();
        assert!(error.starts_with("of 11 nodes, 10 pass and "), "{error}");
    }

    #[test]
    fn a_wait_ends_on_time_and_not_early() {
        let due = Instant::now() + Duration::from_millis(2);
        wait_until(due);
        assert!(Instant::now() >= due);
        wait_until(due);
    }
}
