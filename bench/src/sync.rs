//! Copies of a dataset to another S3 server: `larder sync`, with `rclone sync` and the `object_store` crate beside it.
//!
//! The cast: [`run`] lets the [`Tool`]s take turns, in every round; `outcome` has the figures and their table.
//!
//! Invariants: all tools copy the same objects between two servers that seem equally far away, as many at a time. Each
//! copy goes to a new, empty server, and every object there is read and compared afterwards. A second run of each tool,
//! when nothing is missing, is measured too.

mod outcome;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use larder_s3_server::{Distance, S3Server, S3ServerConfig};
use tokio::runtime::Runtime;

use crate::ceiling;
use crate::side_by_side::{Progress, Scratch};
use crate::systems::child::Child;
use crate::systems::{Corpus, CorpusOptions, Stop, find_program};
use larder_epochs::tree;
pub use outcome::{SyncConfig, SyncOutcome, SyncRow, Tool};

/// The prefix of the copies.
const COPY: &str = "copy";

/// Number of GETs in flight that check a copy.
const CHECKERS: u32 = 64;

/// The interval at which a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Measures everything. Must be called on the main thread. Errors stop the run.
pub fn run(config: &SyncConfig, progress: &dyn Progress) -> anyhow::Result<SyncOutcome> {
    let (_scratch, folder) = Scratch::new(&config.folder, "sync-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let rclone = find_program("rclone");
    let tools: Vec<Tool> = Tool::ALL.into_iter().filter(|tool| *tool != Tool::Rclone || rclone.is_some()).collect();
    progress.steps(tools.len() as u64 * u64::from(config.rounds));
    progress.doing("making the dataset");
    let distance = Distance { delay: Duration::from_millis(config.delay_ms), ..Distance::default() };
    let options = CorpusOptions {
        sizes: tree::sizes(config.files, config.mean_size, config.seed),
        seed: config.seed,
        folder,
        distance,
    };
    let (corpus, server) = Corpus::make(&options, runtime.handle(), &stop, |_, _| {})?;
    ensure!(corpus.in_memory, "the dataset is too large: the S3 server holds the copies in memory");
    let work = corpus.folder_of("sync")?;
    let lab = Lab { config, corpus: &corpus, server: &server, distance, runtime: &runtime, rclone, work };
    progress.doing("importing");
    lab.import().context("import the dataset")?;
    let mut outcome =
        SyncOutcome { config: config.clone(), bytes: corpus.bytes, rclone: lab.rclone.is_some(), rows: Vec::new() };
    for round in 0..config.rounds {
        let mut turns = tools.clone();
        turns.rotate_left(round as usize % tools.len());
        for tool in turns {
            stop.check()?;
            progress.doing(tool.name());
            let row = lab.measure(tool, round).with_context(|| tool.name())?;
            progress.measured(&format!("round {}: {row}", round + 1));
            outcome.rows.push(row);
        }
    }
    drop(lab);
    runtime.block_on(server.shutdown());
    Ok(outcome)
}

struct Lab<'a> {
    config: &'a SyncConfig,
    corpus: &'a Corpus,
    server: &'a S3Server,
    distance: Distance,
    runtime: &'a Runtime,
    rclone: Option<PathBuf>,
    /// Logs, and the home folder of Larder.
    work: PathBuf,
}

impl Lab<'_> {
    /// Copies to a new server, and once more.
    fn measure(&self, tool: Tool, round: u32) -> anyhow::Result<SyncRow> {
        let Corpus { bucket, access_key, secret_key, files, .. } = self.corpus;
        let config = S3ServerConfig {
            access_key: access_key.clone(),
            secret_key: secret_key.clone(),
            buckets: vec![bucket.clone()],
            unchecked_gets: true,
            distance: self.distance,
            ..S3ServerConfig::default()
        };
        let mirror = self.runtime.block_on(S3Server::start(config)).context("start the S3 server of the copy")?;
        let to = Corpus { endpoint: mirror.endpoint(), prefix: COPY.to_owned(), ..self.corpus.clone() };
        let requests = || {
            let of = |server: &S3Server| {
                let counted = server.counters();
                counted.gets + counted.heads + counted.lists + counted.puts
            };
            of(self.server) + of(&mirror)
        };
        self.server.reset_counters();
        let seconds = self.copy(tool, &to)?;
        let copied = requests();
        self.runtime
            .block_on(ceiling::read_all(&to, self.config.files, CHECKERS, self.config.seed))
            .context("compare the copy")?;
        self.server.reset_counters();
        mirror.reset_counters();
        let again = match tool {
            Tool::ObjectStore => None,
            Tool::Rclone | Tool::Larder => Some((self.copy(tool, &to).context("nothing is missing")?, requests())),
        };
        let puts = mirror.counters().puts;
        ensure!(puts == 0 || again.is_none(), "{puts} objects were copied again");
        self.runtime.block_on(mirror.shutdown());
        Ok(SyncRow {
            tool,
            round,
            files: files.len() as u64,
            bytes: self.corpus.bytes,
            seconds,
            requests: copied,
            again_seconds: again.map(|(seconds, _)| seconds),
            again_requests: again.map(|(_, requests)| requests),
        })
    }

    /// Copies with a tool. Returns the seconds that this took.
    fn copy(&self, tool: Tool, to: &Corpus) -> anyhow::Result<f64> {
        match tool {
            Tool::ObjectStore => self.runtime.block_on(ceiling::copy_all(self.corpus, to, self.config.transfers)),
            Tool::Rclone => self.timed(tool.name(), &mut self.rclone(to)?),
            Tool::Larder => {
                let mut command = self.larder();
                command
                    .args(["sync", &url(self.corpus), &url(to), "--endpoint", &self.corpus.endpoint])
                    .args(["--to-endpoint", &to.endpoint, "--origin-concurrency"])
                    .arg(self.config.transfers.to_string());
                self.timed(tool.name(), &mut command)
            }
        }
    }

    fn import(&self) -> anyhow::Result<()> {
        let mut command = self.larder();
        command.args(["import", &url(self.corpus), "--endpoint", &self.corpus.endpoint]);
        self.timed("larder import", &mut command).map(drop)
    }

    /// The command with a home folder of its own, and the keys in its environment.
    fn larder(&self) -> Command {
        let mut command = Command::new(&self.config.binary);
        command.env("LARDER_HOME", self.work.join("home")).envs(self.corpus.aws_variables()).env("RUST_BACKTRACE", "0");
        command
    }

    fn rclone(&self, to: &Corpus) -> anyhow::Result<Command> {
        let program = self.rclone.as_ref().context("rclone is not installed")?;
        let mut command = Command::new(program);
        // No configuration file: the environment defines the remotes.
        command.env("RCLONE_CONFIG", "");
        for (remote, corpus) in [("SRC", self.corpus), ("DST", to)] {
            let settings: [(&str, &str); 6] = [
                ("TYPE", "s3"),
                ("PROVIDER", "Other"),
                ("ENDPOINT", &corpus.endpoint),
                ("ACCESS_KEY_ID", &corpus.access_key),
                ("SECRET_ACCESS_KEY", &corpus.secret_key),
                // The bucket exists.
                ("NO_CHECK_BUCKET", "true"),
            ];
            for (name, value) in settings {
                command.env(format!("RCLONE_CONFIG_{remote}_{name}"), value);
            }
        }
        let transfers = self.config.transfers;
        command
            .arg("sync")
            .arg(format!("src:{}/{}", self.corpus.bucket, self.corpus.prefix))
            .arg(format!("dst:{}/{}", to.bucket, to.prefix))
            // Sizes and MD5s are in the listings; times of changes would take a HEAD for each object.
            .arg("--checksum")
            .args([format!("--transfers={transfers}"), format!("--checkers={transfers}")]);
        Ok(command)
    }

    /// Runs a command. Returns the seconds that this took.
    fn timed(&self, name: &str, command: &mut Command) -> anyhow::Result<f64> {
        let started = Instant::now();
        let mut child = Child::spawn(name, command, &self.work.join("copy.log"))?;
        let status = loop {
            if let Some(status) = child.ended()? {
                break status;
            }
            self.corpus.stop.check()?;
            std::thread::sleep(POLL_INTERVAL);
        };
        let seconds = started.elapsed().as_secs_f64();
        ensure!(status.success(), "{name} ended with {status}: {}", child.last_words());
        Ok(seconds)
    }
}

fn url(corpus: &Corpus) -> String {
    format!("s3://{}/{}", corpus.bucket, corpus.prefix)
}
