//! The surroundings of a waiting job: its queue and the other jobs in the queue, as far as the user may list them.

use larder_api::explain::job::Around;
use larder_api::{Phase, TrainingJob};

use crate::cluster::Cluster;
use crate::queues::{self, Seen};

/// Reads the queue and its jobs. Errors: the cluster can no longer be reached.
pub(super) async fn around(cluster: &Cluster, job: &TrainingJob) -> anyhow::Result<Around> {
    let now = queues::now();
    let phase = job.status.as_ref().and_then(|status| status.phase);
    let queue = job.spec.queue.as_ref().filter(|_| matches!(phase, None | Some(Phase::Queued)));
    let Some(queue) = queue else { return Ok(Around { now, ..Around::default() }) };
    let namespace = job.metadata.namespace.as_deref().unwrap_or(&cluster.namespace);
    let Seen { jobs, priorities, .. } = queues::jobs(cluster, namespace, |name| name == Some(queue.as_str())).await?;
    let queues = queues::seen(cluster).await?;
    let priorities = queues::with_queues(priorities, &queues);
    Ok(Around { queues, jobs, priorities, now })
}
