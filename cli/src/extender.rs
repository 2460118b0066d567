//! A client of the scheduler extender, which fetches the last decisions about a pod.
//!
//! The cast: [`decision`] reads the extender's decisions. The extender listens only on the loopback of its pod, to
//! which the API server forwards a port, or at the address of `--extender`. All replicas are asked, because only one of
//! them answers the scheduler and no other program knows which.

pub(crate) mod decision;

use anyhow::{Context, anyhow, bail};
use futures::FutureExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use larder_api::names::SYSTEM_NAMESPACE;
use larder_dataset::Chain;
use larder_kube::Error;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::ExtenderUrl;
use crate::args::cluster::ObjectKey;
use crate::cluster::{ANSWER, Asked, CONNECT, Cluster, POD, PORT, typed};
use crate::http;

/// The `schedulerName` of the kube-scheduler in the extender's pod.
pub(crate) const SCHEDULER: &str = "larder";
/// The label selector of the extender's pods.
const SELECTOR: &str = "app.kubernetes.io/name=larder-scheduler";
/// The extender's port on the loopback of its pod.
const LISTENS_AT: u16 = 9468;
/// The largest response in bytes. The extender keeps decisions about 50,000 nodes, and serves up to 20,000 of them for
/// a pod.
const MOST: usize = 32 << 20;

/// The extender's answer.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The decisions about the pod as served, oldest first.
    pub(crate) decisions: Vec<Value>,
    /// The replicas that did not answer, as notes for the user.
    pub(crate) notes: Vec<String>,
}

/// Asks the extender at a URL. Errors: it cannot be reached, or the server is not an extender.
pub(crate) async fn at(url: &ExtenderUrl, pod: &ObjectKey) -> anyhow::Result<Told> {
    let asked = async {
        let stream = timeout(CONNECT, TcpStream::connect(&url.authority)).await;
        let stream = stream.map_err(|_| anyhow!("no connection within {} s", CONNECT.as_secs()))??;
        ask(stream, &url.authority, pod).await
    };
    let decisions = asked.await.with_context(|| format!("cannot ask --extender {url}"))?;
    Ok(Told { decisions, notes: Vec::new() })
}

/// Asks all extenders of the cluster. Errors: there is no extender, or none answers.
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
    told.notes = failures.iter().map(|error| format!("{}: its decisions are missing here", Chain(&**error))).collect();
    told.decisions.sort_by_key(|decision| decision.get("at").and_then(Value::as_u64));
    Ok(told)
}

/// The names of the extender's ready pods.
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
            "none of the pods {SELECTOR} in {SYSTEM_NAMESPACE} is ready: `{}` has the reason",
            cluster.command(&format!("kubectl describe pods -n {SYSTEM_NAMESPACE} -l {SELECTOR}"))
        ),
        _ => Ok(names),
    }
}

/// Asks the extender in a pod, through a port that the API server forwards.
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

/// Requests the decisions over a stream.
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
