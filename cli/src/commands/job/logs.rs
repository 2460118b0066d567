//! `larder job logs`
//!
//! Only one line per pod is kept in memory. A stream that ends early resumes after the last received line.

mod line;
mod pods;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use larder_api::explain::job::Around;
use larder_api::{TrainingJob, explain_job};
use larder_kube::api::LogParams;
use larder_kube::{Error, ResourceExt};
use serde_json::json;

use super::{elsewhere, follow};
use crate::args::cluster::ObjectKey;
use crate::args::job::LogsArgs;
use crate::cluster::{Asked, Cluster, JOB, LOG, POD, typed};
use crate::output;
use line::{Lines, shown, stamped};
use pods::{JobPod, Which};

/// The most pods that are followed at the same time.
const FOLLOWED: usize = 32;
/// The interval at which new pods, and the start of a pod, are polled.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let key = args.job.within(&cluster.namespace);
    let job: TrainingJob = cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await?;
    let (cluster, job) = elsewhere::find(&args.cluster, &key, &job).await?.unwrap_or((cluster, job));
    let which = if args.all {
        Which::All
    } else {
        Which::One(args.role.as_deref().unwrap_or_else(|| pods::first_role(&job)).to_owned(), args.index)
    };
    let uid = follow::uid(&key, &job)?.to_owned();
    let reader = Reader { args, cluster, key, uid, is_terminal: std::io::stdout().is_terminal() };
    if args.follow {
        reader.follow(&which).await?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(if reader.print(&job, &which).await? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Reader<'a> {
    args: &'a LogsArgs,
    cluster: Cluster,
    key: ObjectKey,
    uid: String,
    is_terminal: bool,
}

impl Reader<'_> {
    async fn pods(&self, which: &Which) -> Result<Vec<JobPod>, Error> {
        pods::list(&self.cluster, &self.key, &self.uid, which).await
    }

    fn asked_for_pods(&self) -> Asked<'_> {
        Asked::all(POD, Some(&self.key.namespace))
    }

    /// Retries until the cluster answers. Errors: a retry is useless.
    async fn patiently<T, F>(&self, asked: Asked<'_>, ask: impl Fn() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut was_told = false;
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let is_final = follow::is_final(&error);
            let error = self.cluster.in_words(error, &asked);
            if is_final {
                return Err(error);
            }
            if !was_told {
                output::note(format_args!("{error}; retrying every {} s", LOOK_EVERY.as_secs()));
                was_told = true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Prints the existing logs. Returns false if a pod has no log.
    async fn print(&self, job: &TrainingJob, which: &Which) -> anyhow::Result<bool> {
        let listed = self.pods(which).await;
        let all = listed.map_err(|error| self.cluster.in_words(error, &self.asked_for_pods()))?;
        let has_pods = !all.is_empty();
        let chosen = pods::newest(all, self.args.previous);
        if chosen.is_empty() {
            let what = match which {
                Which::All => "pods".to_owned(),
                Which::One(role, index) => format!("pod {role}-{index}"),
            };
            if has_pods {
                bail!("{} has no previous {what}: spec.keepPods controls which pods are retained", self.key);
            }
            let sentence = explain_job(job, &Around::default()).sentence(&self.key.to_string());
            bail!("{} has no {what} (see --role and --index): {sentence}", self.key);
        }
        let mut all_went_well = true;
        for pod in &chosen {
            match self.read(pod, None).await {
                Ok(Some(_)) => {}
                Ok(None) => output::note(format_args!("{} has not written any logs", pod.name)),
                Err(Failure::Printing(error)) => return Err(error),
                Err(failure) => {
                    all_went_well = false;
                    output::error(&self.in_words(failure, pod));
                }
            }
        }
        Ok(all_went_well)
    }

    /// Prints log lines as they arrive, until the job has ended.
    async fn follow(&self, which: &Which) -> anyhow::Result<()> {
        let mut seen = BTreeSet::new();
        let mut streams = FuturesUnordered::new();
        let mut is_first = true;
        let mut has_ended = false;
        loop {
            let all = self.patiently(self.asked_for_pods(), || self.pods(which)).await?;
            // Of the pods that exist at the start, only the newest of each index is followed; later, every new pod is
            // followed.
            let chosen = if is_first { pods::newest(all.clone(), false) } else { all.clone() };
            let new: Vec<JobPod> = chosen.into_iter().filter(|pod| !seen.contains(&pod.name)).collect();
            is_first &= all.is_empty();
            seen.extend(all.into_iter().map(|pod| pod.name));
            if streams.len() + new.len() > FOLLOWED {
                bail!(
                    "{} has more than {FOLLOWED} pods, the most that can be followed at once: choose one with --role and \
                     --index",
                    self.key
                );
            }
            if has_ended && new.is_empty() && streams.is_empty() {
                return Ok(());
            }
            streams.extend(new.into_iter().map(|pod| self.follow_pod(pod)));
            tokio::select! {
                Some(done) = streams.next(), if !streams.is_empty() => done?,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if streams.is_empty() {
                let asked = Asked::one("get", JOB, &self.key.namespace, &self.key.name);
                has_ended = self.patiently(asked, || self.has_ended()).await?;
            }
        }
    }

    /// Whether the job has ended, was deleted, or was replaced by a job of the same name.
    async fn has_ended(&self) -> Result<bool, Error> {
        let found = self.cluster.api(JOB, Some(&self.key.namespace)).get_opt(&self.key.name).await?;
        let Some(object) = found.filter(|object| object.uid().as_ref() == Some(&self.uid)) else { return Ok(true) };
        let job: TrainingJob = typed(object).map_err(Error::SerdeError)?;
        let phase = job.status.and_then(|status| status.phase);
        Ok(phase.is_some_and(|phase| phase.is_terminal()))
    }

    /// Follows a pod to its end.
    async fn follow_pod(&self, pod: JobPod) -> anyhow::Result<()> {
        let which = Which::One(pod.role.clone(), pod.index);
        let mut last = None;
        let (mut was_told, mut was_read) = (false, false);
        loop {
            match self.read(&pod, last).await {
                Ok(at) => (last, was_read) = (at.or(last), true),
                Err(Failure::Printing(error)) => return Err(error),
                // The pod has not started yet (400), or it was deleted (404), which the list below shows.
                Err(Failure::Cluster(Error::Api(status))) if [400, 404].contains(&status.code) => {
                    if !was_told && status.code == 400 {
                        output::note(format_args!("{} has not started yet: {}", pod.name, status.message));
                        was_told = true;
                    }
                }
                Err(Failure::Cluster(error)) if follow::is_final(&error) => {
                    return Err(self.in_words(Failure::Cluster(error), &pod));
                }
                // A broken connection, or a temporary failure of the cluster: the loop retries.
                Err(Failure::Broken(at)) => last = at.or(last),
                Err(Failure::Cluster(_)) => {}
            }
            let all = self.patiently(self.asked_for_pods(), || self.pods(&which)).await?;
            let present = all.into_iter().find(|present| present.name == pod.name);
            if present.is_none_or(|present| present.has_ended) {
                // Reads what the pod wrote between the end of the stream and its own end. Without a timestamp this
                // would repeat the whole log.
                if was_read && last.is_none() {
                    return Ok(());
                }
                return match self.read(&pod, last).await {
                    Err(Failure::Printing(error)) => Err(error),
                    _ => Ok(()),
                };
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Prints the lines of a pod's log after the time `last`. Returns the time of the last line.
    async fn read(&self, pod: &JobPod, last: Option<Timestamp>) -> Result<Option<Timestamp>, Failure> {
        let tail = self.args.tail.0.filter(|_| last.is_none()).map(i64::from);
        let params = LogParams {
            container: self.container(pod).map_err(Failure::Printing)?,
            follow: self.args.follow,
            // Cut to whole seconds, because the client would round up and skip lines.
            since_time: last.and_then(|last| Timestamp::from_second(last.as_second()).ok()),
            tail_lines: tail,
            timestamps: true,
            ..LogParams::default()
        };
        let stream = self.cluster.pods(&self.key.namespace).log_stream(&pod.name, &params).await;
        let mut lines = Lines::new(Box::pin(stream.map_err(Failure::Cluster)?));
        let mut at = None;
        // Because of the cut, the stream repeats some lines; they are skipped.
        let mut is_old = false;
        loop {
            let line = match lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(at),
                Err(_) => return Err(Failure::Broken(at)),
            };
            let (stamp, text) = if line.begins { stamped(&line.bytes) } else { (None, &line.bytes[..]) };
            if line.begins {
                is_old = matches!((stamp, last), (Some(stamp), Some(last)) if stamp <= last);
            }
            at = stamp.or(at);
            if !is_old {
                self.print_line(pod, text).map_err(Failure::Printing)?;
            }
        }
    }

    fn container(&self, pod: &JobPod) -> anyhow::Result<Option<String>> {
        match &self.args.container {
            None => Ok(pod.containers.first().cloned()),
            Some(name) if pod.containers.contains(name) => Ok(Some(name.clone())),
            Some(name) => {
                let those = pod.containers.join(", ");
                Err(anyhow!("--container {name}: {} has {those}", pod.name))
            }
        }
    }

    fn print_line(&self, pod: &JobPod, text: &[u8]) -> anyhow::Result<()> {
        let JobPod { role, index, attempt, .. } = pod;
        if self.args.json {
            let line = String::from_utf8_lossy(text);
            return output::json_line(&json!({"role": role, "index": index, "attempt": attempt, "line": line}));
        }
        let prefix = if self.args.all { format!("{role}-{index} | ") } else { String::new() };
        if self.is_terminal {
            return output::line(format_args!("{prefix}{}", shown(text)));
        }
        output::bytes(&[prefix.as_bytes(), text, b"\n"].concat())
    }

    fn in_words(&self, failure: Failure, pod: &JobPod) -> anyhow::Error {
        match failure {
            Failure::Printing(error) => error,
            Failure::Cluster(Error::Api(status)) if status.code == 400 => {
                anyhow!("{} has no log: {}; use -f to wait for it", pod.name, status.message)
            }
            Failure::Cluster(error) => {
                self.cluster.in_words(error, &Asked::one("get", LOG, &self.key.namespace, &pod.name))
            }
            Failure::Broken(_) => anyhow!("the log of {} was cut off: try again", pod.name),
        }
    }
}

/// Why the reading of a log stopped early.
enum Failure {
    /// The request failed.
    Cluster(Error),
    /// The stream broke, after a line with this time.
    Broken(Option<Timestamp>),
    /// The output cannot be printed, or the request is invalid.
    Printing(anyhow::Error),
}
