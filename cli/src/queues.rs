//! The queues of a cluster and the jobs in them, as far as the user may list them.

use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use larder_api::queue::line::Priorities;
use larder_api::{Queue, TrainingJob};

use crate::cluster::{Asked, Cluster, JOB, PRIORITY_CLASS, QUEUE, is_denied, typed};

/// Jobs, with the priorities that decide their order.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) jobs: Vec<TrainingJob>,
    pub(crate) priorities: Priorities,
    /// Notes for the user about missing parts.
    pub(crate) notes: Vec<String>,
}

/// The current time in the API's format.
pub(crate) fn now() -> Timestamp {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or_default()
}

/// All queues. A queue that cannot be decoded is left out, because it cannot be shown.
async fn listed(cluster: &Cluster) -> Result<Vec<Queue>, larder_kube::Error> {
    let mut queues = Vec::new();
    cluster.list(&Asked::all(QUEUE, None), None, |object| queues.extend(typed::<Queue>(object).ok())).await?;
    Ok(queues)
}

/// All queues. Errors: the user may not list them, or the cluster cannot be reached.
pub(crate) async fn all(cluster: &Cluster) -> anyhow::Result<Vec<Queue>> {
    listed(cluster).await.map_err(|error| cluster.in_words(error, &Asked::all(QUEUE, None)))
}

/// All queues, or none if the user may not list them. Errors: the cluster cannot be reached.
pub(crate) async fn seen(cluster: &Cluster) -> anyhow::Result<Vec<Queue>> {
    match listed(cluster).await {
        Err(error) if is_denied(&error) => Ok(Vec::new()),
        listed => listed.map_err(|error| cluster.in_words(error, &Asked::all(QUEUE, None))),
    }
}

/// The jobs in these queues, or in none: from all namespaces if the user may list them, otherwise from `namespace`.
pub(crate) async fn jobs(
    cluster: &Cluster,
    namespace: &str,
    is_in: impl Fn(Option<&str>) -> bool,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    let mut jobs = Vec::new();
    for of in [None, Some(namespace)] {
        let asked = Asked::all(JOB, of);
        jobs.clear();
        let listed = cluster.list(&asked, None, |object| {
            let job = typed::<TrainingJob>(object).ok();
            jobs.extend(job.filter(|job| is_in(job.spec.queue.as_deref())));
        });
        match listed.await {
            Ok(()) => break,
            Err(error) if of.is_none() && is_denied(&error) => {
                seen.notes
                    .push(format!("you may not list the jobs of all namespaces: only those in {namespace} are shown"));
            }
            Err(error) if is_denied(&error) => {
                seen.notes = vec![format!("you may not list jobs, neither in all namespaces nor in {namespace}")];
            }
            Err(error) => return Err(cluster.in_words(error, &asked)),
        }
    }
    seen.jobs = jobs;
    let asked = Asked::all(PRIORITY_CLASS, None);
    let mut classes = Vec::new();
    match cluster.list(&asked, None, |object| classes.extend(typed::<PriorityClass>(object).ok())).await {
        Ok(()) => seen.priorities = priorities(&classes),
        Err(error) if is_denied(&error) => {
            seen.notes.push(
                "you may not list PriorityClasses: the order shown assumes that all jobs have the same priority"
                    .to_owned(),
            );
        }
        Err(error) => return Err(cluster.in_words(error, &asked)),
    }
    Ok(seen)
}

/// Adds the priorities that queues give to jobs.
pub(crate) fn with_queues(priorities: Priorities, queues: &[Queue]) -> Priorities {
    let named = queues.iter().filter_map(|queue| Some((queue.metadata.name.as_deref()?, &queue.spec.priorities)));
    priorities.with_queues(named)
}

fn priorities(classes: &[PriorityClass]) -> Priorities {
    let parts =
        |class: &PriorityClass| Some((class.metadata.name.clone()?, class.value?, class.global_default == Some(true)));
    Priorities::new(classes.iter().filter_map(parts))
}
