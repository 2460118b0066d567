//! Jobs that are in another cluster.

use anyhow::Context;
use larder_api::TrainingJob;
use larder_api::names::HERE;

use crate::args::cluster::{ClusterArgs, ObjectKey};
use crate::cluster::{Asked, Cluster, JOB};

/// The other cluster that a job is in, and the job there, which has the same name; `None` for a job that is here. The
/// user's rights there are those of the context with the name of the Cluster.
pub(super) async fn find(
    args: &ClusterArgs,
    key: &ObjectKey,
    job: &TrainingJob,
) -> anyhow::Result<Option<(Cluster, TrainingJob)>> {
    let placement = job.status.as_ref().and_then(|status| status.placement.as_ref());
    let name = placement.map(|placement| placement.cluster.clone()).unwrap_or_default();
    if name.is_empty() || name == HERE {
        return Ok(None);
    }
    let there = ClusterArgs { context: Some(name.clone()), kubeconfig: args.kubeconfig.clone() };
    let why = || format!("{key} is in cluster {name}, which is read with a context of that name in your kubeconfig");
    let there = Cluster::of(&there).await.with_context(why)?;
    let job = there.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await.with_context(why)?;
    Ok(Some((there, job)))
}
