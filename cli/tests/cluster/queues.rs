//! `larder queue`

use serde_json::{Value, json};

use crate::jobs::{job, list};
use crate::server::{Server, out, said, status};

const QUEUES: &str = "GET /apis/larder.dev/v1alpha1/queues";
const ALL_JOBS: &str = "GET /apis/larder.dev/v1alpha1/trainingjobs";
const OWN_JOBS: &str = "GET /apis/larder.dev/v1alpha1/namespaces/team-a/trainingjobs";
const CLASSES: &str = "GET /apis/scheduling.k8s.io/v1/priorityclasses";

fn queues() -> String {
    let queue = |name: &str| {
        json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
            "spec": {"namespaces": ["*"], "quota": {"nvidia.com/gpu": {"nominal": 8}}},
            "status": {"waiting": 2, "running": 1, "usage": {"nvidia.com/gpu": {"used": "6", "borrowed": "0"}}},
        })
    };
    // A queue that cannot be decoded does not hide the others.
    let odd = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "odd"}, "spec": 1});
    list("Queue", &[queue("vision"), odd, queue("speech")])
}

fn urgent(mut job: Value) -> Value {
    job["spec"]["roles"][0]["template"]["spec"]["priorityClassName"] = json!("high");
    job
}

#[test]
fn all_queues_are_listed_without_reading_jobs() {
    let server = Server::start().answers(QUEUES, 200, &queues());
    let output = server.larder(&["queue"]);
    let lines: Vec<String> =
        out(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        ["NAME COHORT WAITING RUNNING STOP USED", "vision 2 1 6 of 8 GPUs", "speech 2 1 6 of 8 GPUs"],
        "{}",
        said(&output)
    );
    assert_eq!(server.lines(), [QUEUES]);
}

#[test]
fn the_jobs_of_a_queue_are_in_the_order_of_their_priority() {
    let waits = json!({"phase": "Queued", "waitingFor": "queue vision uses 6 of 8 GPUs, needs 4"});
    let mut other = job("other", waits.clone());
    other["spec"]["queue"] = json!("speech");
    let jobs =
        [job("first", waits.clone()), urgent(job("urgent", waits)), other, job("runs", json!({"phase": "Running"}))];
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100});
    let server = Server::start()
        .answers(QUEUES, 200, &queues())
        .answers(ALL_JOBS, 200, &list("TrainingJob", &jobs))
        .answers(CLASSES, 200, &list("PriorityClass", &[class]));
    let text = out(&server.larder(&["queue", "vision"]));
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(at("1  team-a/urgent  100") < at("2  team-a/first   0"), "{text}");
    assert!(at("needs 4") < at("team-a/runs") && !text.contains("team-a/other"), "{text}");
    let output = server.larder(&["queue", "vision", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[0]["waiting"][0]["job"], "team-a/urgent");
    assert_eq!((&json[0]["quota"][0]["used"], &json[0]["quota"][0]["nominal"]), (&json!(6), &json!(8)));
}

#[test]
fn without_permission_to_list_all_jobs_those_of_one_namespace_are_shown() {
    let denied = status(403, "Forbidden", "no");
    let server = Server::start()
        .answers(QUEUES, 200, &queues())
        .answers(ALL_JOBS, 403, &denied)
        .answers(OWN_JOBS, 200, &list("TrainingJob", &[job("mine", json!({"phase": "Queued"}))]))
        .answers(CLASSES, 403, &denied);
    let output = server.larder(&["queue", "vision"]);
    let said = said(&output);
    for words in ["team-a/mine", "only those in team-a are shown", "you may not list PriorityClasses"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn missing_permissions_are_explained() {
    let missing = Server::start().answers(QUEUES, 200, &queues()).larder(&["queue", "none"]);
    assert_eq!(missing.status.code(), Some(1));
    let words = ["there is no Queue none: `larder queue --kubeconfig ", " --context here` lists all queues"];
    assert!(words.iter().all(|words| said(&missing).contains(words)), "{}", said(&missing));
    let denied = Server::start().answers(QUEUES, 403, &status(403, "Forbidden", "no")).larder(&["queue"]);
    assert!(
        said(&denied).contains("ask an administrator for permission to `list` queues.larder.dev"),
        "{}",
        said(&denied)
    );
    let unknown = Server::start().answers(QUEUES, 404, "404 page not found\n").larder(&["queue"]);
    assert!(said(&unknown).contains("does not serve Queues"), "{}", said(&unknown));
}
