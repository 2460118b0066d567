//! `larder job logs`

use serde_json::{Value, json};

use crate::jobs::{job, list};
use crate::server::{Server, out, said, status};

const JOB: &str = "GET /apis/larder.dev/v1alpha1/namespaces/team-a/trainingjobs/resnet";
const PODS: &str = "GET /api/v1/namespaces/team-a/pods";

fn pod(index: u32, attempt: u32, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("resnet-worker-{index}-{attempt}"), "ownerReferences": [{
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "resnet", "uid": "uid-resnet",
        }], "labels": {
            "larder.dev/job": "resnet", "larder.dev/job-role": "worker",
            "larder.dev/job-index": index.to_string(), "larder.dev/job-attempt": attempt.to_string(),
        }},
        "spec": {"containers": [{"name": "train"}, {"name": "side"}]},
        "status": {"phase": phase},
    })
}

fn log(index: u32, attempt: u32) -> String {
    format!("{PODS}/resnet-worker-{index}-{attempt}/log")
}

fn server(phase: &str, pods: &[Value]) -> Server {
    Server::start().answers(JOB, 200, &job("resnet", json!({"phase": phase})).to_string()).answers(
        PODS,
        200,
        &list("Pod", pods),
    )
}

const ONE: &str = "2026-01-31T09:00:01.5Z step 1\n";
const TWO: &str = "2026-01-31T09:00:02.5Z \u{1b}[31mstep 2\n";
const THREE: &str = "2026-01-31T09:00:02.7Z step 3\n";

#[test]
fn the_newest_pod_of_the_first_index_is_read_from_its_first_container() {
    let pods = [pod(0, 0, "Failed"), pod(0, 1, "Running")];
    let server = server("Running", &pods).answers(&log(0, 1), 200, &format!("{ONE}{TWO}"));
    let output = server.larder(&["job", "logs", "resnet"]);
    // A pipe gets every byte.
    assert_eq!(out(&output), "step 1\n\u{1b}[31mstep 2\n", "{}", said(&output));
    let asked = server.asked();
    assert!(asked[1].line.contains("larder.dev%2Fjob-role%3Dworker%2Clarder.dev%2Fjob-index%3D0"), "{}", asked[1].line);
    assert!(asked[2].line.contains("container=train") && asked[2].line.contains("tailLines=1000"), "{}", asked[2].line);
    let server = server.answers(&log(0, 0), 200, ONE);
    assert_eq!(out(&server.larder(&["job", "logs", "resnet", "--previous", "--tail", "all"])), "step 1\n");
    assert!(!server.asked().last().unwrap().line.contains("tailLines"));
}

#[test]
fn lines_of_all_pods_are_prefixed() {
    let server = server("Running", &[pod(1, 0, "Running"), pod(0, 0, "Running")])
        .answers(&log(0, 0), 200, ONE)
        .answers(&log(1, 0), 200, TWO);
    let output = server.larder(&["job", "logs", "resnet", "--all"]);
    assert_eq!(out(&output), "worker-0 | step 1\nworker-1 | \u{1b}[31mstep 2\n", "{}", said(&output));
    let output = server.larder(&["job", "logs", "resnet", "--all", "--json"]);
    let lines: Vec<Value> = out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[1], json!({"role": "worker", "index": 1, "attempt": 0, "line": "\u{1b}[31mstep 2"}));
}

/// A job that runs at the first request, with a running pod. At later requests it has ended, with these pods.
fn ending(pods: &[Value]) -> Server {
    Server::start()
        .answers_once(JOB, 200, &job("resnet", json!({"phase": "Running"})).to_string())
        .answers_once(PODS, 200, &list("Pod", &[pod(0, 0, "Running")]))
        .answers(PODS, 200, &list("Pod", pods))
        .answers(JOB, 200, &job("resnet", json!({"phase": "Succeeded"})).to_string())
}

#[test]
fn following_continues_after_the_last_line_and_into_a_replacement_pod() {
    let server = ending(&[pod(0, 0, "Failed"), pod(0, 1, "Succeeded")])
        // The stream breaks, and resumes with the second of its last line.
        .answers_once(&log(0, 0), 200, &format!("{ONE}{TWO}"))
        .answers(&log(0, 0), 200, &format!("{TWO}{THREE}"))
        .answers(&log(0, 1), 200, "2026-01-31T09:00:09Z again\n");
    let output = server.larder(&["job", "logs", "resnet", "-f"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = out(&output);
    let (again, first): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| *line == "again");
    assert_eq!(first, ["step 1", "\u{1b}[31mstep 2", "step 3"], "no line twice: {text:?}");
    assert_eq!(again.len(), 1, "{text:?}");
    // A start at the next second would lose lines.
    let asked = server.asked();
    let since = |second: &str| {
        asked.iter().any(|asked| asked.line.contains(&format!("sinceTime=2026-01-31T09%3A00%3A{second}Z")))
    };
    assert!(since("02") && !since("03"), "{asked:?}");
}

#[test]
fn following_waits_for_a_pod_that_has_not_started() {
    let waiting = status(400, "BadRequest", "container \"train\" is waiting to start");
    let server =
        ending(&[pod(0, 0, "Succeeded")]).answers_once(&log(0, 0), 400, &waiting).answers(&log(0, 0), 200, ONE);
    let output = server.larder(&["job", "logs", "resnet", "-f"]);
    assert_eq!(out(&output), "step 1\n", "{}", said(&output));
    assert!(said(&output).contains("resnet-worker-0-0 has not started yet: container"), "{}", said(&output));
}

#[test]
fn the_error_for_a_missing_pod_lists_the_alternatives() {
    let queued = server("Queued", &[]).larder(&["job", "logs", "resnet", "--role", "ps", "--index", "3"]);
    assert_eq!(queued.status.code(), Some(1));
    let words = "team-a/resnet has no pod ps-3 (see --role and --index): team-a/resnet waits";
    assert!(said(&queued).contains(words), "{}", said(&queued));
    let first = server("Running", &[pod(0, 0, "Running")]).larder(&["job", "logs", "resnet", "--previous"]);
    assert!(said(&first).contains("has no previous pod worker-0"), "{}", said(&first));
    let silent =
        server("Running", &[pod(0, 0, "Pending")]).answers(&log(0, 0), 200, "").larder(&["job", "logs", "resnet"]);
    assert_eq!((said(&silent).as_str(), out(&silent).as_str()), ("resnet-worker-0-0 has not written any logs\n", ""));
    let container = server("Running", &[pod(0, 0, "Running")]).larder(&["job", "logs", "resnet", "--container", "x"]);
    assert!(said(&container).contains("--container x: resnet-worker-0-0 has train, side"), "{}", said(&container));
    let denied = status(403, "Forbidden", "no");
    let denied =
        server("Running", &[pod(0, 0, "Running")]).answers(&log(0, 0), 403, &denied).larder(&["job", "logs", "resnet"]);
    assert!(said(&denied).contains("permission to `get` pods/log"), "{}", said(&denied));
    let many: Vec<Value> = (0..33).map(|index| pod(index, 0, "Running")).collect();
    let many = server("Running", &many).larder(&["job", "logs", "resnet", "--all", "-f"]);
    assert!(said(&many).contains("more than 32 pods") && said(&many).contains("--index"), "{}", said(&many));
}

#[test]
fn pods_of_an_earlier_job_with_the_same_name_are_ignored() {
    let mut earlier = pod(0, 3, "Running");
    earlier["metadata"]["ownerReferences"][0]["uid"] = json!("before");
    let mut orphan = pod(0, 2, "Running");
    orphan["metadata"]["ownerReferences"] = json!(null);
    let server = server("Running", &[earlier, pod(0, 0, "Running"), orphan]).answers(&log(0, 0), 200, ONE);
    assert_eq!(out(&server.larder(&["job", "logs", "resnet"])), "step 1\n");
    let previous = server.larder(&["job", "logs", "resnet", "--previous"]);
    assert!(said(&previous).contains("has no previous pod worker-0"), "{}", said(&previous));
}

#[test]
fn a_pod_without_a_log_does_not_hide_other_logs() {
    let waiting = status(400, "BadRequest", "container \"train\" is waiting to start");
    let server = server("Running", &[pod(0, 0, "Pending"), pod(1, 0, "Running")])
        .answers(&log(0, 0), 400, &waiting)
        .answers(&log(1, 0), 200, ONE);
    let output = server.larder(&["job", "logs", "resnet", "--all"]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), "worker-1 | step 1\n"), "{}", said(&output));
    assert!(said(&output).contains("resnet-worker-0-0 has no log: container"), "{}", said(&output));
}

#[test]
fn requests_are_retried_while_the_cluster_fails() {
    let failure = status(500, "InternalError", "etcd has no leader");
    let server = Server::start()
        .answers_once(JOB, 200, &job("resnet", json!({"phase": "Running"})).to_string())
        .answers_once(PODS, 500, &failure)
        .answers_once(PODS, 200, &list("Pod", &[pod(0, 0, "Running")]))
        .answers_once(PODS, 500, &failure)
        .answers(PODS, 200, &list("Pod", &[pod(0, 0, "Succeeded")]))
        .answers_once(JOB, 500, &failure)
        .answers(JOB, 200, &job("resnet", json!({"phase": "Succeeded"})).to_string())
        .answers_once(&log(0, 0), 500, &failure)
        .answers(&log(0, 0), 200, ONE);
    let output = server.larder(&["job", "logs", "resnet", "-f"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(out(&output), "step 1\n");
    assert!(said(&output).contains("retrying every"), "{}", said(&output));
    // A permanent rejection is not retried.
    let denied = status(403, "Forbidden", "no");
    let server = Server::start()
        .answers(JOB, 200, &job("resnet", json!({"phase": "Running"})).to_string())
        .answers(PODS, 403, &denied);
    assert_eq!(server.larder(&["job", "logs", "resnet", "-f"]).status.code(), Some(1));
}
