//! `larder ui --cluster`

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::browser::{Browser, NOT_HANGING};
use crate::jobs::{job, list};
use crate::server::{Server, status};

const DATASETS: &str = "GET /apis/larder.dev/v1alpha1/datasets";
const OWN_DATASETS: &str = "GET /apis/larder.dev/v1alpha1/namespaces/team-a/datasets";
const CACHES: &str = "GET /apis/larder.dev/v1alpha1/nodecaches";
const JOBS: &str = "GET /apis/larder.dev/v1alpha1/trainingjobs";
const OWN_JOBS: &str = "GET /apis/larder.dev/v1alpha1/namespaces/team-a/trainingjobs";
const QUEUES: &str = "GET /apis/larder.dev/v1alpha1/queues";
const CLASSES: &str = "GET /apis/scheduling.k8s.io/v1/priorityclasses";
const NODES: &str = "GET /api/v1/nodes";

/// A running `larder ui --cluster`.
struct Page {
    child: Child,
    host: String,
    token: String,
    _kubeconfig: NamedTempFile,
}

impl Page {
    fn open(server: &Server) -> Self {
        let (child, line, kubeconfig) = server.starts(&["ui", "--cluster"]);
        let (host, token) = line.trim().strip_prefix("http://").unwrap().split_once("/#").unwrap();
        Self { child, host: host.to_owned(), token: token.to_owned(), _kubeconfig: kubeconfig }
    }

    /// The state once this is true of it.
    fn state_that(&self, is_it: impl Fn(&Value) -> bool) -> Value {
        let (started, Self { host, token, .. }) = (Instant::now(), self);
        loop {
            let mut stream = TcpStream::connect(host).unwrap();
            let head = format!("GET /state HTTP/1.1\r\nhost: {host}\r\nx-larder-token: {token}\r\n");
            stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let state: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            if is_it(&state) {
                return state;
            }
            assert!(started.elapsed() < NOT_HANGING, "{state:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_read(state: &Value) -> bool {
    state["ages"][1].is_u64()
}

/// A cluster of 1,000 nodes and 200 jobs.
fn large() -> Server {
    let name = |number: usize| format!("n{number:03}");
    let cache = |number: usize| {
        json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": name(number)}, "spec": {},
            "status": {"capacityBytes": 100, "promisedBytes": number % 100, "freeBytes": 7},
        })
    };
    let node = |number: usize| {
        let fault = if number == 7 { "True" } else { "False" };
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name(number)},
            "status": {"conditions": [{"type": "larder.dev/DeviceFault", "status": fault, "message": "GPU 1: Xid 79"}]},
        })
    };
    let dataset = json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": {"namespace": "team-a", "name": "pets"},
        "spec": {"origin": {"source": "s3://b", "anonymous": true}},
    });
    let queue = json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "vision"},
        "spec": {"namespaces": ["*"], "quota": {"nvidia.com/gpu": {"nominal": 8}}},
        "status": {"waiting": 2, "running": 1, "usage": {"nvidia.com/gpu": {"used": "6", "borrowed": "0"}}},
    });
    let phases = ["Queued", "Running", "Succeeded", "Failed"];
    let jobs: Vec<Value> =
        (0..200).map(|number| job(&format!("run-{number}"), json!({"phase": phases[number % 4]}))).collect();
    let caches: Vec<Value> = (0..1000).map(cache).collect();
    let nodes: Vec<Value> = (0..1000).map(node).collect();
    Server::start()
        .answers(DATASETS, 200, &list("Dataset", &[dataset]))
        .answers(CACHES, 200, &list("NodeCache", &caches))
        .answers(JOBS, 200, &list("TrainingJob", &jobs))
        .answers(QUEUES, 200, &list("Queue", &[queue]))
        .answers(CLASSES, 200, &list("PriorityClass", &[]))
        .answers(NODES, 200, &list("Node", &nodes))
}

#[test]
fn the_page_has_every_node_dataset_queue_and_job_of_a_large_cluster() {
    let server = large();
    let state = Page::open(&server).state_that(is_read);
    let cluster = &state["cluster"];
    assert!(cluster["error"].is_null() && cluster["notes"] == json!([]), "{cluster:#}");
    let all = |part: &str| cluster[part].as_array().unwrap().clone();
    assert_eq!((all("nodes").len(), all("jobs").len(), all("datasets").len()), (1000, 200, 1));
    let shown = all("nodes").into_iter().find(|node| node["name"] == "n042").unwrap();
    assert_eq!((&shown["capacity"], &shown["promised"], &shown["free"]), (&json!(100), &json!(42), &json!(7)));
    let faulty: Vec<Value> = all("nodes").into_iter().filter(|node| !node["fault"].is_null()).collect();
    assert_eq!((faulty.len(), &faulty[0]["name"], &faulty[0]["fault"]), (1, &json!("n007"), &json!("GPU 1: Xid 79")));
    for standing in ["waits", "runs", "succeeded", "failed"] {
        assert_eq!(all("jobs").iter().filter(|job| job["standing"] == standing).count(), 50, "{standing}");
    }
    let waits = all("jobs").into_iter().find(|job| job["name"] == "team-a/run-0").unwrap();
    assert!(waits["sentence"].as_str().unwrap().starts_with("team-a/run-0 "), "{waits}");
    let queues = all("queues");
    let quota = &queues[0]["quota"][0];
    assert_eq!((&quota["text"], &quota["used"]), (&json!("6 of 8 GPUs"), &json!(6)));
}

#[test]
fn a_tenant_sees_the_part_that_they_may_list_and_why_the_rest_is_missing() {
    let denied = status(403, "Forbidden", "no");
    let mut server = Server::start().answers(OWN_DATASETS, 200, &list("Dataset", &[])).answers(
        OWN_JOBS,
        200,
        &list("TrainingJob", &[job("mine", json!({"phase": "Running"}))]),
    );
    for request in [DATASETS, CACHES, JOBS, QUEUES, CLASSES, NODES] {
        server = server.answers(request, 403, &denied);
    }
    let state = Page::open(&server).state_that(is_read);
    let cluster = &state["cluster"];
    assert_eq!((&cluster["nodes"], &cluster["jobs"][0]["name"]), (&json!([]), &json!("team-a/mine")));
    let notes = cluster["notes"].to_string();
    for words in ["you may not read Datasets", "you may not read NodeCaches", "you may not read Nodes", "only those in"]
    {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

// SEMANTICS: W2
#[test]
fn the_objects_stay_on_the_page_while_the_cluster_fails() {
    let empty = |kind: &str| list(kind, &[]);
    let server = Server::start()
        .answers(DATASETS, 200, &empty("Dataset"))
        .answers(CACHES, 200, &empty("NodeCache"))
        .answers_once(JOBS, 200, &list("TrainingJob", &[job("run", json!({"phase": "Running"}))]))
        .answers(QUEUES, 200, &empty("Queue"))
        .answers(CLASSES, 200, &empty("PriorityClass"))
        .answers(NODES, 200, &empty("Node"));
    let page = Page::open(&server);
    let state = page.state_that(|state| !state["cluster"]["error"].is_null());
    assert!(state["cluster"]["error"].as_str().unwrap().contains("not in the script"), "{state:#}");
    assert!(is_read(&state) && state["cluster"]["jobs"][0]["name"] == "team-a/run", "{state:#}");
}

// SEMANTICS: W2
#[test]
fn the_page_of_a_large_cluster_is_used_by_keys_alone_and_asks_no_other_server() {
    let server = large();
    let Some(mut browser) = Browser::start() else { return };
    let mut page = Page::open(&server);
    browser.open(&format!("http://{}/#{}", page.host, page.token));
    browser.wait_until("document.querySelector('#views:not([hidden])') !== null");
    assert_eq!(browser.value("location.hash"), "", "the token stays in sight");
    browser.press("2", 50, "2");
    browser.wait_until("document.querySelectorAll('#nodes button').length === 1000");
    assert_eq!(browser.value("document.querySelectorAll('#jobs li').length"), 200);
    let is_among_nodes =
        "document.activeElement.parentElement !== null && document.activeElement.parentElement.id === 'nodes'";
    for _ in 0..30 {
        if browser.value(is_among_nodes) == true {
            break;
        }
        browser.press("Tab", 9, "");
    }
    browser.press("ArrowRight", 39, "");
    assert_eq!(browser.value("document.activeElement.dataset.node"), "n001");
    let shown = browser.value("document.querySelector('#node').textContent");
    assert!(shown.as_str().unwrap().starts_with("n001: 1 B of 100 B promised"), "{shown}");
    browser.press("/", 191, "/");
    browser.type_text("n042");
    browser.wait_until("document.querySelectorAll('#nodes button').length === 1");
    browser.press("Escape", 27, "");
    browser.wait_until("document.querySelectorAll('#nodes button').length === 1000");

    page.child.kill().unwrap();
    browser.wait_until("document.querySelector('#live').className === 'old'");
    assert_eq!(browser.value("document.querySelectorAll('#nodes button').length"), 1000, "the figures stay");
    let own = format!("http://{}/", page.host);
    assert!(browser.asked.iter().all(|url| url.starts_with(&own) || url.starts_with("data:")), "{:?}", browser.asked);
    assert!(browser.asked.iter().any(|url| url.ends_with("page.js")), "{:?}", browser.asked);
}
