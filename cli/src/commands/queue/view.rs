//! The output of `larder queue`: one line per queue, or the details of one queue.

use std::fmt::Write;

use larder_api::quantity::words::{number, show_part, unit_of_row};
use larder_api::queue::account::{Account, accounts};
use larder_api::queue::line::{self, Priorities};
use larder_api::{Queue, TrainingJob};
use larder_kube::ResourceExt;
use serde::Serialize;

use crate::output::{cell, table};

/// A queue, its quota, and its jobs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QueueView {
    name: String,
    namespaces: Vec<String>,
    cohort: Option<String>,
    /// The queue above it.
    parent: Option<String>,
    weight: u32,
    stop: Option<String>,
    /// The numbers of jobs in the queue's status.
    waiting_jobs: u32,
    running_jobs: u32,
    quota: Vec<Account>,
    /// The waiting jobs, in the queue's order.
    waiting: Vec<JobView>,
    running: Vec<JobView>,
}

/// A job of a queue.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobView {
    job: String,
    priority: i32,
    phase: String,
    /// Devices by resource: the job's minimum if it waits, or its current devices if it runs.
    devices: Vec<(String, u64)>,
    why: String,
    /// The time of its deadline, at which it ends at the latest.
    ends: Option<String>,
}

impl JobView {
    fn of(job: &TrainingJob, priorities: &Priorities, is_waiting: bool) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let devices = if is_waiting { line::needs(job) } else { line::holds(job) };
        let why = status.waiting_for.unwrap_or_default();
        Self {
            job: format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any()),
            priority: priorities.of_job(job),
            phase: status.phase.map_or("Submitted".to_owned(), |phase| format!("{phase:?}")),
            devices: devices.into_iter().collect(),
            why: if why.is_empty() { status.shown.unwrap_or_default().why } else { why },
            ends: line::ends(job).map(|time| time.to_string()),
        }
    }

    fn devices(&self) -> String {
        let one = |(resource, amount): &(String, u64)| format!("{amount} {}", short(resource));
        self.devices.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// `gpu` of `nvidia.com/gpu`.
fn short(resource: &str) -> &str {
    resource.rsplit('/').next().unwrap_or(resource)
}

impl QueueView {
    pub(super) fn of(queue: &Queue, all: &[Queue], jobs: &[TrainingJob], priorities: &Priorities) -> Self {
        let name = queue.name_any();
        let status = queue.status.clone().unwrap_or_default();
        let running = jobs.iter().filter(|job| line::is_admitted_in(job, &name));
        Self {
            namespaces: queue.spec.namespaces.clone(),
            cohort: queue.spec.cohort.clone(),
            parent: queue.spec.parent.clone(),
            weight: queue.spec.weight.unwrap_or(1),
            stop: queue.spec.stop.map(|stop| format!("{stop:?}").to_lowercase()),
            waiting_jobs: status.waiting,
            running_jobs: status.running,
            quota: accounts(queue, all),
            waiting: line::waiting(jobs, &name, priorities)
                .into_iter()
                .map(|job| JobView::of(job, priorities, true))
                .collect(),
            running: running.map(|job| JobView::of(job, priorities, false)).collect(),
            name,
        }
    }
}

/// A table with one line per queue.
pub(super) fn all(views: &[QueueView]) -> String {
    let row = |view: &QueueView| {
        let uses = |account: &Account| match account.borrowed {
            0 => show_part(&account.resource, account.used, account.nominal),
            borrowed => {
                let used = show_part(&account.resource, account.used, account.nominal);
                format!("{used} ({} borrowed)", number(&account.resource, borrowed))
            }
        };
        let uses: Vec<String> = view.quota.iter().map(uses).collect();
        [
            cell(&view.name),
            cell(
                &view
                    .parent
                    .as_ref()
                    .map_or_else(|| view.cohort.clone().unwrap_or_default(), |parent| format!("below {parent}")),
            ),
            view.waiting_jobs.to_string(),
            view.running_jobs.to_string(),
            view.stop.clone().unwrap_or_default(),
            cell(&uses.join(", ")),
        ]
    };
    let rows: Vec<_> = views.iter().map(row).collect();
    table(["NAME", "COHORT", "WAITING", "RUNNING", "STOP", "USED"], &rows)
}

/// The details of one queue.
pub(super) fn one(view: &QueueView) -> String {
    let mut text = format!("queue {}", cell(&view.name));
    if let Some(cohort) = &view.cohort {
        let _ = write!(text, ", cohort {} with weight {}", cell(cohort), view.weight);
    }
    if let Some(parent) = &view.parent {
        let _ = write!(text, ", below {} with weight {}", cell(parent), view.weight);
    }
    let namespaces = if view.namespaces.is_empty() { "none".to_owned() } else { view.namespaces.join(", ") };
    let _ = writeln!(text, ", for jobs of: {}", cell(&namespaces));
    match view.stop.as_deref() {
        Some("drain") => {
            text += "Stopped: no job starts, and running jobs are sent back to the queue (spec.stop: drain).\n"
        }
        Some(_) => text += "Stopped: no job starts, and running jobs continue (spec.stop: hold).\n",
        None => {}
    }
    text.push('\n');
    if view.quota.is_empty() {
        text += "No quota: nothing is limited.\n";
    } else {
        let row = |account: &Account| {
            let Account { resource, nominal, used, borrowed, lent, may_use } = account;
            let amount = |amount: u64| format!("{}{}", number(resource, amount), unit_of_row(resource));
            [cell(resource), amount(*nominal), amount(*used), amount(*borrowed), amount(*lent), amount(*may_use)]
        };
        let rows: Vec<_> = view.quota.iter().map(row).collect();
        text += &table(["RESOURCE", "QUOTA", "USED", "BORROWED", "LENT", "MAY USE"], &rows);
    }
    text.push('\n');
    if view.waiting.is_empty() {
        text += "No job is waiting.\n";
    } else {
        let row = |(at, job): (usize, &JobView)| {
            let place = (at + 1).to_string();
            [place, cell(&job.job), job.priority.to_string(), cell(&job.devices()), cell(&job.why)]
        };
        let rows: Vec<_> = view.waiting.iter().enumerate().map(row).collect();
        text += &table(["", "WAITING", "PRIORITY", "NEEDS", "WHY"], &rows);
    }
    if !view.running.is_empty() {
        let row = |job: &JobView| {
            let ends = job.ends.clone().unwrap_or_default();
            [cell(&job.job), job.priority.to_string(), cell(&job.phase), cell(&job.devices()), ends]
        };
        let rows: Vec<_> = view.running.iter().map(row).collect();
        text.push('\n');
        text += &table(["RUNNING", "PRIORITY", "PHASE", "HAS", "ENDS AT THE LATEST"], &rows);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn queue(name: &str, used: &str) -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
            "spec": {
                "namespaces": ["team-a", "team-b"], "cohort": "research", "weight": 2,
                "quota": {"nvidia.com/gpu": {"nominal": 8}, "memory": {"nominal": "64Gi"}},
            },
            "status": {"waiting": 2, "running": 1, "usage": {"nvidia.com/gpu": {"used": used, "borrowed": "0"}}},
        }))
        .unwrap()
    }

    fn job(name: &str, status: Value) -> TrainingJob {
        serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"namespace": "team-a", "name": name, "creationTimestamp": "2026-01-31T09:00:00Z"},
            "spec": {"type": "single", "queue": "vision", "activeDeadline": "1h", "roles": [{
                "name": "worker", "replicas": 2,
                "template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}},
            }]},
            "status": status,
        }))
        .unwrap()
    }

    fn shown() -> QueueView {
        let all = [queue("vision", "10"), queue("speech", "1")];
        let jobs = [
            job("b-waits", json!({"phase": "Queued", "waitingFor": "queue vision uses all\u{1b}[2J"})),
            job("a-waits", json!({"phase": "Queued", "shown": {"why": "NotItsTurn"}})),
            job("runs", json!({"phase": "Running", "started": "2026-01-31T10:00:00Z"})),
        ];
        QueueView::of(&all[0], &all, &jobs, &Priorities::default())
    }

    #[test]
    fn the_view_of_a_queue_has_quota_usage_and_jobs_in_order() {
        let text = one(&shown());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "queue vision, cohort research with weight 2, for jobs of: team-a, team-b",
                "",
                "RESOURCE        QUOTA   USED   BORROWED  LENT   MAY USE",
                "memory          64 GiB  0 GiB  0 GiB     0 GiB  128 GiB",
                "nvidia.com/gpu  8       10     2         0      15",
                "",
                "   WAITING         PRIORITY  NEEDS  WHY",
                "1  team-a/a-waits  0         4 gpu  NotItsTurn",
                "2  team-a/b-waits  0         4 gpu  queue vision uses all [2J",
                "",
                "RUNNING      PRIORITY  PHASE    HAS    ENDS AT THE LATEST",
                "team-a/runs  0         Running  4 gpu  2026-01-31T11:00:00Z",
            ]
        );
    }

    #[test]
    fn a_queue_below_another_says_so() {
        let mut below = queue("vision", "2");
        (below.spec.cohort, below.spec.parent) = (None, Some("research".to_owned()));
        let view = QueueView::of(&below, &[], &[], &Priorities::default());
        assert!(all(std::slice::from_ref(&view)).contains("vision  below research  2"));
        assert!(one(&view).starts_with("queue vision, below research with weight 2, for jobs of: team-a, team-b\n"));
    }

    #[test]
    fn the_row_of_a_queue_shows_its_usage() {
        let text = all(&[shown()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "NAME    COHORT    WAITING  RUNNING  STOP  USED",
                "vision  research  2        1              0 of 64 GiB of memory, 10 of 8 GPUs (2 borrowed)",
            ]
        );
    }

    #[test]
    fn the_view_of_an_empty_queue_says_so() {
        let bare: Queue = serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {"stop": "drain"},
        }))
        .unwrap();
        let text = one(&QueueView::of(&bare, &[], &[], &Priorities::default()));
        for words in ["for jobs of: none", "(spec.stop: drain)", "nothing is limited", "No job is waiting."] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
