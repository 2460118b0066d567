//! `larder job list`

use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use larder_api::TrainingJob;
use larder_kube::ResourceExt;
use larder_kube::api::DynamicObject;
use serde::Serialize;

use crate::args::job::ListArgs;
use crate::cluster::{Asked, Cluster, JOB, typed};
use crate::output::{self, cell};
use crate::queues;

/// One line of the list.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    job: String,
    namespace: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    queue: String,
    phase: String,
    ready: String,
    data: String,
    restarts: u32,
    created: Option<String>,
    why: String,
    waiting_for: String,
    #[serde(skip)]
    age: String,
}

pub(super) async fn run(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let now = queues::now();
    let (mut rows, mut all_went_well) = (Vec::new(), true);
    if args.jobs.is_empty() {
        let asked = Asked::all(JOB, namespace);
        let listed = cluster.list(&asked, None, |object| rows.push(row(object, now))).await;
        listed.map_err(|error| cluster.in_words(error, &asked))?;
        rows.retain(|row: &Row| args.queue.as_ref().is_none_or(|queue| row.queue == *queue));
    }
    for name in &args.jobs {
        let key = name.within(&cluster.namespace);
        match cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await {
            Ok(object) => rows.push(row(object, now)),
            Err(error) => {
                all_went_well = false;
                output::error(&error);
            }
        }
    }
    if args.json {
        output::json(&rows)?;
    } else if rows.is_empty() && args.jobs.is_empty() {
        let of = namespace.map_or("there is no job".to_owned(), |namespace| {
            format!("there are no jobs in {namespace}; use -A for all namespaces")
        });
        output::note(format_args!("{of}"));
    } else if !rows.is_empty() {
        let namespaces = rows.iter().any(|row| row.namespace != cluster.namespace);
        output::text(&table(&rows, args.all_namespaces || namespaces))?;
    }
    Ok(if all_went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The row of a job. A job that cannot be decoded has a row too.
fn row(object: DynamicObject, now: Timestamp) -> Row {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let created = object.creation_timestamp().map(|time| time.0);
    let row = Row {
        job: format!("{namespace}/{name}"),
        namespace,
        name,
        created: created.map(|time| time.to_string()),
        age: created.map(|time| age(now.duration_since(time).as_secs())).unwrap_or_default(),
        ..Row::default()
    };
    let Ok(job) = typed::<TrainingJob>(object) else {
        return Row { why: "Unreadable".to_owned(), waiting_for: "update larder, which is older".to_owned(), ..row };
    };
    let is_deleted = job.metadata.deletion_timestamp.is_some();
    let status = job.status.unwrap_or_default();
    let shown = status.shown.unwrap_or_default();
    let phase = status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
    let (ready, desired) = status.roles.iter().fold((0_u64, 0_u64), |(ready, desired), role| {
        (ready + u64::from(role.ready), desired + u64::from(role.desired))
    });
    let ready = if status.roles.is_empty() { String::new() } else { format!("{ready}/{desired}") };
    Row {
        kind: job.spec.type_,
        queue: job.spec.queue.unwrap_or_default(),
        phase: if is_deleted { "Deleting".to_owned() } else { phase },
        ready: if shown.ready.is_empty() { ready } else { shown.ready },
        data: shown.data,
        restarts: status.restarts.total(),
        why: shown.why,
        waiting_for: status.waiting_for.unwrap_or_default(),
        ..row
    }
}

/// A duration in kubectl's format.
pub(super) fn age(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn table(rows: &[Row], has_namespace: bool) -> String {
    let cells = |row: &Row| {
        let name = if has_namespace { &row.job } else { &row.name };
        let texts = [name, &row.kind, &row.queue, &row.phase, &row.ready, &row.data].map(|text| cell(text));
        let [name, kind, queue, phase, ready, data] = texts;
        [name, kind, queue, phase, ready, data, row.restarts.to_string(), row.age.clone(), cell(&row.why)]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    output::table(["NAME", "TYPE", "QUEUE", "PHASE", "READY", "DATA", "RESTARTS", "AGE", "WHY"], &rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(job: Value) -> String {
        let object: DynamicObject = serde_json::from_value(job).unwrap();
        let rows = [row(object, "2026-01-31T12:00:00Z".parse().unwrap())];
        table(&rows, true).lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn job(status: Value) -> Value {
        json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"namespace": "team-a", "name": "resnet", "creationTimestamp": "2026-01-31T09:00:00Z"},
            "spec": {"type": "pytorch", "queue": "vision", "roles": []},
            "status": status,
        })
    }

    #[test]
    fn a_row_shows_the_status() {
        let status = json!({
            "phase": "Queued",
            "shown": {"ready": "0/4", "data": "62%", "restarts": 3, "why": "QuotaUsed"},
            "restarts": {"crashed": 1, "preempted": 2},
        });
        assert_eq!(shown(job(status)), "team-a/resnet pytorch vision Queued 0/4 62% 3 3h QuotaUsed");
        let role =
            |ready: u32, desired: u32| json!({"name": "r", "desired": desired, "active": 0, "ready": ready, "done": 0});
        let status = json!({"phase": "Running", "roles": [role(1, 2), role(3, 4)]});
        assert_eq!(shown(job(status)), "team-a/resnet pytorch vision Running 4/6 0 3h");
    }

    #[test]
    fn odd_jobs_have_a_row_and_no_control_characters() {
        assert_eq!(shown(job(json!({"phase": "Hibernating"}))), "team-a/resnet 0 3h Unreadable");
        let hostile = json!({"phase": "Queued", "shown": {"why": "a\u{1b}[2Jb\nc", "ready": "\r1"}});
        assert_eq!(shown(job(hostile)), "team-a/resnet pytorch vision Queued 1 0 3h a [2Jb c");
        let bare = json!({"apiVersion": "v", "kind": "k", "metadata": {}});
        assert_eq!(shown(bare), "/ 0 Unreadable");
        let mut deleted = job(json!({"phase": "Running"}));
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-31T09:00:00Z");
        assert_eq!(shown(deleted), "team-a/resnet pytorch vision Deleting 0 3h");
    }

    #[test]
    fn ages_are_short() {
        let ages: Vec<String> = [-5, 59, 120, 7_199, 7_200, 172_800].into_iter().map(age).collect();
        assert_eq!(ages, ["0s", "59s", "2m", "119m", "2h", "2d"]);
    }
}
