//! `larder job events`

use std::process::ExitCode;

use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use larder_api::TrainingJob;
use serde::Serialize;

use super::elsewhere;
use super::list::age;
use crate::args::cluster::ObjectKey;
use crate::args::job::EventsArgs;
use crate::cluster::{Asked, Cluster, EVENT, JOB, typed};
use crate::output::{self, cell};
use crate::queues;

/// One line of the list.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    last_seen: Option<String>,
    object: String,
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
    count: i32,
    #[serde(skip)]
    age: String,
}

pub(super) async fn run(args: &EventsArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let key = args.job.within(&cluster.namespace);
    let job: TrainingJob = cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await?;
    let now = queues::now();
    let mut rows = list(&cluster, &key, &job, now).await?;
    let there = async {
        match elsewhere::find(&args.cluster, &key, &job).await? {
            Some((there, copy)) => list(&there, &key, &copy, now).await,
            None => Ok(Vec::new()),
        }
    };
    // The events here are shown even if the other cluster cannot be asked.
    let (of_copy, failure) = match there.await {
        Ok(of_copy) => (of_copy, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    rows.extend(of_copy);
    rows.sort();
    if args.json {
        output::json(&rows)?;
    } else if rows.is_empty() && failure.is_none() {
        output::note(format_args!("there are no events of {key}; `larder explain job {key}` says how it is"));
    } else {
        output::text(&table(&rows))?;
    }
    if let Some(error) = failure {
        output::error(&error);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The events of a job and of its pods in a cluster.
async fn list(cluster: &Cluster, key: &ObjectKey, job: &TrainingJob, now: Timestamp) -> anyhow::Result<Vec<Row>> {
    let asked = Asked::all(EVENT, Some(&key.namespace));
    let mut rows = Vec::new();
    let listed = cluster.list(&asked, None, |object| {
        let event = typed::<Event>(object).ok().filter(|event| is_about(job, &event.involved_object));
        rows.extend(event.map(|event| row(event, now)));
    });
    listed.await.map_err(|error| cluster.in_words(error, &asked))?;
    Ok(rows)
}

/// True if an event is about the job, or about one of its pods, which may be gone.
fn is_about(job: &TrainingJob, object: &ObjectReference) -> bool {
    let name = object.name.as_deref().unwrap_or_default();
    let of_job = job.metadata.name.as_deref().unwrap_or_default();
    match object.kind.as_deref() {
        Some("TrainingJob") => name == of_job && (object.uid.is_none() || object.uid == job.metadata.uid),
        Some("Pod") => is_pod_of(job, of_job, name),
        _ => false,
    }
}

/// True for `JOB-ROLE-INDEX-ATTEMPT`. The name of another job may begin with that of this one.
fn is_pod_of(job: &TrainingJob, of_job: &str, pod: &str) -> bool {
    let behind = |text: &str, name: &str| text.strip_prefix(name)?.strip_prefix('-').map(str::to_owned);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = behind(pod, of_job) else { return false };
    job.spec.roles.iter().any(|role| {
        let numbers = behind(&rest, &role.name);
        numbers
            .as_deref()
            .and_then(|numbers| numbers.split_once('-'))
            .is_some_and(|(index, attempt)| is_number(index) && is_number(attempt))
    })
}

fn row(event: Event, now: Timestamp) -> Row {
    let series = event.series.unwrap_or_default();
    let times = [
        series.last_observed_time.map(|time| time.0),
        event.last_timestamp.map(|time| time.0),
        event.event_time.map(|time| time.0),
        event.first_timestamp.map(|time| time.0),
        event.metadata.creation_timestamp.map(|time| time.0),
    ];
    let last = times.into_iter().flatten().next();
    let of = event.involved_object;
    Row {
        last_seen: last.map(|time| time.to_string()),
        object: format!("{}/{}", of.kind.unwrap_or_default(), of.name.unwrap_or_default()),
        kind: event.type_.unwrap_or_default(),
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
        count: series.count.or(event.count).unwrap_or(1),
        age: last.map(|time| age(now.duration_since(time).as_secs())).unwrap_or_default(),
    }
}

fn table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let seen = if row.count > 1 { format!("{} (x{})", row.age, row.count) } else { row.age.clone() };
        [seen, cell(&row.kind), cell(&row.reason), cell(&row.object), cell(&row.message)]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    output::table(["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"], &rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn events_of_the_job_and_of_its_pods_are_distinguished_from_those_of_others() {
        let roles = json!([{"name": "worker", "template": {}}, {"name": "ps", "template": {}}]);
        let metadata = json!({"name": "resnet", "uid": "u"});
        let job = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata,
            "spec": {"type": "single", "roles": roles}});
        let job: TrainingJob = serde_json::from_value(job).unwrap();
        let is = |object: Value| is_about(&job, &serde_json::from_value(object).unwrap());
        let pod = |name: &str| is(json!({"kind": "Pod", "name": name}));
        assert!(pod("resnet-worker-0-0") && pod("resnet-ps-11-2"));
        for other in ["resnet-2-worker-0-0", "resnet-worker-0", "resnet-worker-0-0-1", "resnet-chief-0-0", "resnet", ""]
        {
            assert!(!pod(other), "{other}");
        }
        assert!(is(json!({"kind": "TrainingJob", "name": "resnet", "uid": "u"})));
        assert!(!is(json!({"kind": "TrainingJob", "name": "resnet", "uid": "of an earlier one"})));
        assert!(!is(json!({"kind": "Deployment", "name": "resnet"})));
    }
}
