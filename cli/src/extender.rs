//! The extender of the scheduler, as far as the command asks it: for the last decisions about a pod.
//!
//! The cast: [`decision`] is what it serves. It listens inside its pod alone, where the API server
//! forwards a port to; or at the address that `--extender` names. Of several replicas each is asked: only one of them answers the
//! scheduler, and nobody else knows which.

pub(crate) mod decision;

use anyhow::{Context, anyhow, bail};
use futures::FutureExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use larder_api::names::SYSTEM_NAMESPACE;
use larder_kube::Error;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::ExtenderUrl;
use crate::args::cluster::ObjectKey;
use crate::cluster::{ANSWER, Asked, CONNECT, Cluster, POD, PORT, typed};
use crate::http;

/// The name of the scheduler beside it in its pod.
pub(crate) const SCHEDULER: &str = "larder";
/// Its pods.
const SELECTOR: &str = "app.kubernetes.io/name=larder-scheduler";
/// Its port, on the loopback of its pod.
const LISTENS_AT: u16 = 9468;
/// The most bytes of an answer. The extender keeps decisions about 50,000 nodes, and serves those of 20,000 for a pod.
const MOST: usize = 32 << 20;

/// What the extender has told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The decisions about the pod as they were served, the oldest first.
    pub(crate) decisions: Vec<Value>,
    /// Which replicas did not answer, for people.
    pub(crate) notes: Vec<String>,
}

/// Asks the extender that listens there. Errors: it cannot be reached, or is none.
pub(crate) async fn at(url: &ExtenderUrl, pod: &ObjectKey) -> anyhow::Result<Told> {
    let asked = async {
        let stream = timeout(CONNECT, TcpStream::connect(&url.authority)).await;
        let stream = stream.map_err(|_| anyhow!("no connection within {} s", CONNECT.as_secs()))??;
        ask(stream, &url.authority, pod).await
    };
    let decisions = asked.await.with_context(|| format!("cannot ask --extender {url}"))?;
    Ok(Told { decisions, notes: Vec::new() })
}

/// Asks the extenders of the cluster. Errors: there is none, or none answers.
pub(crate) async fn of(cluster: &Cluster, pod: &ObjectKey) -> anyhow::Result<Told> {
    let names = ready(cluster).await?;
    let mut told = Told::default();
    let mut failures = Vec::new();
    for answer in join_all(names.iter().map(|name| within(cluster, name, pod))).await {
        match answer {
            Ok(decisions) => told.decisions.extend(decisions),
            Err(error) => failures.push(error),
        }
    }
    if failures.len() == names.len()
        && let Some(first) = failures.pop()
    {
        return Err(first);
    }
    told.notes = failures.iter().map(|error| format!("{error:#}")).collect();
    told.decisions.sort_by_key(|decision| decision.get("at").and_then(Value::as_u64));
    Ok(told)
}

/// The names of its pods that are ready.
async fn ready(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let asked = Asked::all(POD, Some(SYSTEM_NAMESPACE));
    let mut pods = Vec::new();
    let listed = cluster.list(&asked, Some(SELECTOR.to_owned()), |object| pods.extend(typed::<Pod>(object).ok())).await;
    listed
        .map_err(|error| cluster.in_words(error, &asked))
        .context("cannot find the extender's pods; use --extender URL to name an extender")?;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        pod.metadata.deletion_timestamp.is_none()
            && conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let all = pods.len();
    let names: Vec<String> = pods.into_iter().filter(is_ready).filter_map(|pod| pod.metadata.name).collect();
    match (all, names.is_empty()) {
        (0, _) => bail!(
            "Larder's scheduler does not run in {SYSTEM_NAMESPACE}: an administrator enables it with the component \
             `scheduler` (docs/kubernetes/scheduling.md); for an extender elsewhere use --extender URL"
        ),
        (_, true) => bail!(
            "none of the pods {SELECTOR} in {SYSTEM_NAMESPACE} is ready: `kubectl describe pods -n {SYSTEM_NAMESPACE} -l \
             {SELECTOR}` has the reason"
        ),
        _ => Ok(names),
    }
}

/// Asks the extender in a pod, at a port that the API server forwards.
async fn within(cluster: &Cluster, name: &str, pod: &ObjectKey) -> anyhow::Result<Vec<Value>> {
    let opened = timeout(ANSWER, cluster.pods(SYSTEM_NAMESPACE).portforward(name, &[LISTENS_AT])).await;
    let opened = opened.map_err(|_| anyhow!("cannot reach {name}: no answer within {} s", ANSWER.as_secs()))?;
    let mut ports = opened.map_err(|error| not_opened(cluster, error, name))?;
    let (Some(stream), Some(error)) = (ports.take_stream(LISTENS_AT), ports.take_error(LISTENS_AT)) else {
        bail!("cannot reach {name}: its port was not forwarded");
    };
    let mut error = std::pin::pin!(error.fuse());
    let answer = tokio::select! {
        biased;
        Some(why) = &mut error => Err(anyhow!("{}", why.trim())),
        answer = ask(stream, "127.0.0.1", pod) => match (answer, error.now_or_never().flatten()) {
            (Err(_), Some(why)) => Err(anyhow!("{}", why.trim())),
            (answer, _) => answer,
        },
    };
    ports.abort();
    answer.with_context(|| format!("cannot ask {name} in {SYSTEM_NAMESPACE}"))
}

fn not_opened(cluster: &Cluster, error: Error, name: &str) -> anyhow::Error {
    match error {
        Error::Api(status) if status.code == 403 => anyhow!(
            "cannot reach {name}: needs `get` and `create` on pods/portforward in {SYSTEM_NAMESPACE}, or --extender URL \
             ({})",
            status.message
        ),
        Error::UpgradeConnection(why) => anyhow!(
            "cannot reach {name}: the API server, or a proxy in front of it, does not forward ports over WebSocket ({why}); --extender \
             URL asks without it"
        ),
        error => {
            let error = cluster.in_words(error, &Asked::one("create", PORT, SYSTEM_NAMESPACE, name));
            error.context(format!("cannot reach {name}"))
        }
    }
}

/// Asks whoever listens on the other side of a stream.
async fn ask<S>(stream: S, host: &str, pod: &ObjectKey) -> anyhow::Result<Vec<Value>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    #[derive(Deserialize)]
    struct Served {
        decisions: Vec<Value>,
    }
    let body = timeout(ANSWER, http::get(stream, host, &format!("/decisions?pod={pod}"), MOST)).await;
    let body = body.map_err(|_| anyhow!("no complete response within {} s", ANSWER.as_secs()))??;
    let served = serde_json::from_slice::<Served>(&body).context("the response is not an extender's");
    Ok(served?.decisions)
}
