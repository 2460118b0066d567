//! `larder job top`

use std::collections::BTreeMap;
use std::process::ExitCode;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::explain::job::Around;
use larder_api::names::{JOB_LABEL, JOB_UID_LABEL};
use larder_api::quantity::{amount, is_gpu};
use larder_api::{TrainingJob, explain_job};
use larder_kube::ResourceExt;
use larder_kube::api::DynamicObject;
use larder_kube::pod::{has_ended, node, requests::requests};
use serde::Serialize;

use super::{elsewhere, follow};
use crate::args::job::TopArgs;
use crate::cluster::{Asked, Cluster, JOB, POD, POD_METRICS, typed};
use crate::output::{self, cell};

/// The namespace and the name of a pod.
type PodKey = (String, String);

/// The amounts that one pod or all pods of a job use and request.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    job: String,
    /// `None` for a whole job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    pods: u64,
    /// `None` if nothing is known of it yet.
    cpu_millicores: Option<u64>,
    cpu_requested_millicores: u64,
    memory_bytes: Option<u64>,
    memory_requested_bytes: u64,
    gpus: u64,
}

pub(super) async fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let key = args.job.as_ref().map(|job| job.within(&cluster.namespace));
    let namespace = key.as_ref().map_or(cluster.namespace.as_str(), |key| key.namespace.as_str());
    let namespace = (!args.all_namespaces).then_some(namespace);
    let job: Option<TrainingJob> = match &key {
        Some(key) => Some(cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await?),
        None => None,
    };
    let there = match (&key, &job) {
        (Some(key), Some(job)) => elsewhere::find(&args.cluster, key, job).await?,
        _ => None,
    };
    let (cluster, job) = match there {
        Some((there, copy)) => (there, Some(copy)),
        None => (cluster.clone(), job),
    };
    let selector = key.as_ref().map_or(JOB_LABEL.to_owned(), |key| format!("{JOB_LABEL}={}", key.name));
    let mut used: BTreeMap<PodKey, [u64; 2]> = BTreeMap::new();
    let asked = Asked::all(POD_METRICS, namespace);
    let listed = cluster.list(&asked, Some(selector.clone()), |object| used.extend([usage(&object)])).await;
    listed.map_err(|error| cluster.in_words(error, &asked))?;
    let uid = key.as_ref().zip(job.as_ref()).map(|(key, job)| follow::uid(key, job)).transpose()?;
    let mut rows = Vec::new();
    let asked = Asked::all(POD, namespace);
    let listed = cluster.list(&asked, Some(selector), |object| {
        // An earlier job of the same name may have left pods.
        let is_own = uid.is_none_or(|uid| object.labels().get(JOB_UID_LABEL).is_none_or(|own| own == uid));
        rows.extend(Some(object).filter(|_| is_own).and_then(|object| row(object, &used)));
    });
    listed.await.map_err(|error| cluster.in_words(error, &asked))?;
    rows.sort_by(|one: &Row, other| (&one.job, &one.pod).cmp(&(&other.job, &other.pod)));
    if key.is_none() {
        rows = by_job(rows);
    }
    if args.json {
        output::json(&rows)?;
    } else if let (true, Some((key, job))) = (rows.is_empty(), key.as_ref().zip(job.as_ref())) {
        let sentence = explain_job(job, &Around::default()).sentence(&key.to_string());
        output::note(format_args!("{key} has no running pods: {sentence}"));
    } else if rows.is_empty() {
        let place = namespace.map_or("any namespace".to_owned(), str::to_owned);
        output::note(format_args!("no job has running pods in {place}"));
    } else {
        output::text(&table(&rows, args.all_namespaces))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The CPU and the memory that the containers of a pod use together.
fn usage(object: &DynamicObject) -> (PodKey, [u64; 2]) {
    let containers = object.data["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = ["cpu", "memory"].map(|resource| {
        let used = containers.iter().filter_map(|container| container["usage"][resource].as_str());
        let used = used.filter_map(|text| amount(resource, &Quantity(text.to_owned())));
        used.fold(0, u64::saturating_add)
    });
    ((object.namespace().unwrap_or_default(), object.name_any()), sum)
}

/// The row of a pod; `None` for one that has ended or has no node.
fn row(object: DynamicObject, used: &BTreeMap<PodKey, [u64; 2]>) -> Option<Row> {
    let key = (object.namespace().unwrap_or_default(), object.name_any());
    let job = format!("{}/{}", key.0, object.labels().get(JOB_LABEL)?);
    let pod: Pod = typed(object).ok()?;
    if has_ended(&pod) || node(&pod).is_empty() {
        return None;
    }
    let requested = pod.spec.as_ref().map(requests).unwrap_or_default();
    let used = used.get(&key);
    Some(Row {
        job,
        node: Some(node(&pod).to_owned()),
        pod: Some(key.1),
        pods: 1,
        cpu_millicores: used.map(|used| used[0]),
        cpu_requested_millicores: requested.get("cpu"),
        memory_bytes: used.map(|used| used[1]),
        memory_requested_bytes: requested.get("memory"),
        gpus: requested.iter().filter(|(resource, _)| is_gpu(resource)).map(|(_, amount)| amount).sum(),
    })
}

/// One row for each job, from the sorted rows of pods. Unknown amounts count as nothing.
fn by_job(pods: Vec<Row>) -> Vec<Row> {
    let mut jobs: Vec<Row> = Vec::new();
    for pod in pods {
        if jobs.last().is_none_or(|last| last.job != pod.job) {
            jobs.push(Row { job: pod.job.clone(), ..Row::default() });
        }
        let Some(job) = jobs.last_mut() else { continue };
        let add = |sum: &mut Option<u64>, one: Option<u64>| {
            *sum = sum.map_or(one, |sum| Some(sum.saturating_add(one.unwrap_or(0))));
        };
        job.pods += 1;
        add(&mut job.cpu_millicores, pod.cpu_millicores);
        add(&mut job.memory_bytes, pod.memory_bytes);
        job.cpu_requested_millicores = job.cpu_requested_millicores.saturating_add(pod.cpu_requested_millicores);
        job.memory_requested_bytes = job.memory_requested_bytes.saturating_add(pod.memory_requested_bytes);
        job.gpus = job.gpus.saturating_add(pod.gpus);
    }
    jobs
}

/// The columns are those of `kubectl top`.
fn table(rows: &[Row], has_namespace: bool) -> String {
    let unknown = || "<unknown>".to_owned();
    let percent = |used: Option<u64>, requested: u64| {
        let part = used.and_then(|used| (u128::from(used) * 100).checked_div(u128::from(requested)));
        part.map_or_else(String::new, |part| format!("{part}%"))
    };
    let cells = |row: &Row| {
        let name = row.job.split_once('/').map_or(row.job.as_str(), |(_, name)| name);
        let job = if has_namespace { row.job.as_str() } else { name };
        let place = row.node.as_deref().map_or_else(|| row.pods.to_string(), cell);
        [
            cell(row.pod.as_deref().unwrap_or(job)),
            place,
            row.cpu_millicores.map_or_else(unknown, |cpu| format!("{cpu}m")),
            percent(row.cpu_millicores, row.cpu_requested_millicores),
            row.memory_bytes.map_or_else(unknown, |bytes| format!("{}Mi", bytes >> 20)),
            percent(row.memory_bytes, row.memory_requested_bytes),
            row.gpus.to_string(),
        ]
    };
    let place = if rows.iter().any(|row| row.pod.is_some()) { "NODE" } else { "PODS" };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    output::table(["NAME", place, "CPU(cores)", "CPU%", "MEMORY(bytes)", "MEMORY%", "GPUS"], &rows)
}
