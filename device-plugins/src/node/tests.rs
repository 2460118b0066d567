//! The reporter against a scripted API server, on a stopped clock. There is no kubelet here: pods are in the tests of `pods` and
//! of `events`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use axum::body::{Body as Answer, to_bytes};
use axum::http::{Request, Response, Uri};
use k8s_openapi::jiff::Timestamp;
use larder_kube::client::Body;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::service_fn;

use super::*;
use crate::health::capabilities::Capabilities;
use crate::health::{Fault, Reason};
use crate::node::events::{About, Report};

#[derive(Default)]
struct Inner {
    /// `None`: it was deleted.
    node: Option<Value>,
    events: Vec<Value>,
    /// "VERB PATH" of each request but those to read.
    writes: Vec<String>,
    reads: usize,
    /// Requests that begin so are answered with this code.
    refused: Vec<(String, u16)>,
    /// The next requests are answered with these codes.
    next: VecDeque<u16>,
    /// Nothing is answered.
    hangs: bool,
    /// How often the node was written.
    version: u64,
    /// What the API server remembers, for those that take any object.
    old: Option<Value>,
    /// What was asked for when the node was read.
    queries: Vec<String>,
}

/// An API server with one node, which takes events.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Inner>>);

impl Api {
    fn new() -> Self {
        let api = Self::default();
        api.make_node();
        api
    }

    fn make_node(&self) {
        let ready = json!({"type": "Ready", "status": "True"});
        self.lock().node = Some(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux", "device.larder.dev/old": "1"}},
            "status": {"conditions": [ready]},
        }));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn client(&self) -> Client {
        let api = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = to_bytes(Answer::new(body), 1 << 20).await.unwrap();
                let body = serde_json::from_slice(&bytes).unwrap_or_default();
                let kind = parts.headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
                let (code, answer) = loop {
                    if !api.lock().hangs {
                        break api.answer(parts.method.as_str(), &parts.uri, kind.as_deref(), &body);
                    }
                    sleep(Duration::from_secs(3600)).await;
                };
                Ok::<_, Infallible>(Response::builder().status(code).body(Answer::from(answer.to_string())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &str, uri: &Uri, kind: Option<&str>, body: &Value) -> (u16, Value) {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default().trim_start_matches('&'));
        let mut inner = self.lock();
        let request = format!("{method} {path}");
        if method == "GET" {
            inner.reads += 1;
            inner.queries.push(query.to_owned());
        } else {
            inner.writes.push(request.clone());
        }
        let refused = inner.refused.iter().find(|(what, _)| request.starts_with(what)).map(|(_, code)| *code);
        let code = inner.next.pop_front().or(refused).unwrap_or(200);
        let status = |code: u16| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": ""}))
        };
        if code != 200 {
            return status(code);
        }
        if path.ends_with("/events") {
            inner.events.push(body.clone());
            return (201, body.clone());
        }
        if let Some(old) = inner.old.clone().filter(|_| query == "resourceVersion=0") {
            return (200, old);
        }
        inner.version += u64::from(method != "GET");
        let version = inner.version.to_string();
        let Some(node) = &mut inner.node else { return status(404) };
        node["metadata"]["resourceVersion"] = json!(version);
        match (method, path, kind) {
            ("GET", "/api/v1/nodes/n1", _) => {}
            ("PATCH", "/api/v1/nodes/n1", Some("application/merge-patch+json")) => {
                assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["metadata"]);
                assert_eq!(body["metadata"].as_object().unwrap().keys().collect::<Vec<_>>(), ["labels"]);
                let labels = node["metadata"]["labels"].as_object_mut().unwrap();
                for (key, value) in body["metadata"]["labels"].as_object().unwrap() {
                    match value {
                        Value::Null => _ = labels.remove(key),
                        value => _ = labels.insert(key.clone(), value.clone()),
                    }
                }
            }
            ("PATCH", "/api/v1/nodes/n1/status", Some("application/strategic-merge-patch+json")) => {
                assert_eq!(body["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
                let conditions = node["status"]["conditions"].as_array_mut().unwrap();
                for new in body["status"]["conditions"].as_array().unwrap() {
                    match conditions.iter_mut().find(|old| old["type"] == new["type"]) {
                        Some(old) => old.as_object_mut().unwrap().extend(new.as_object().unwrap().clone()),
                        None => conditions.push(new.clone()),
                    }
                }
            }
            other => panic!("unexpected: {other:?}"),
        }
        (200, node.clone())
    }

    fn labels(&self) -> Vec<String> {
        let inner = self.lock();
        let labels = inner.node.as_ref().unwrap()["metadata"]["labels"].as_object().unwrap();
        labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect()
    }

    /// Status, reason and time of the last transition.
    fn condition(&self) -> Option<[String; 3]> {
        let inner = self.lock();
        let conditions = inner.node.as_ref()?["status"]["conditions"].as_array().unwrap();
        let ours = conditions.iter().find(|condition| condition["type"] == "larder.dev/DeviceFault")?;
        Some(["status", "reason", "lastTransitionTime"].map(|key| ours[key].as_str().unwrap().to_owned()))
    }

    fn status(&self) -> Option<String> {
        self.condition().map(|[status, ..]| status)
    }
}

struct World {
    api: Api,
    view: watch::Sender<Arc<View>>,
    _notices: mpsc::Sender<Notice>,
    counters: Arc<Counters>,
    _kubelet: TempDir,
    reporter: JoinHandle<()>,
}

impl World {
    fn start(api: Api, view: View) -> Self {
        let (view, views) = watch::channel(Arc::new(view));
        let (notices, received) = mpsc::channel(crate::state::NOTICES);
        let kubelet = tempfile::tempdir().unwrap();
        let counters = Arc::new(Counters::default());
        let pods = Arc::new(Pods::new(kubelet.path()));
        let reporter = Reporter { node: "n1".into(), pods, counters: Arc::clone(&counters) };
        let reporter = tokio::spawn(reporter.run_with(api.client(), views, received));
        Self { api, view, _notices: notices, counters, _kubelet: kubelet, reporter }
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Api) -> bool) {
        for _ in 0..3600 {
            if is_so(&self.api) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("not within an hour: {what}; writes: {:?}", self.api.lock().writes);
    }

    async fn until_status(&self, status: &str) {
        self.until(status, |api| api.status().as_deref() == Some(status)).await;
    }
}

fn well() -> View {
    samples::view()
}

fn down() -> View {
    let fault = Fault {
        reason: Reason::PortDown,
        message: "port 1 is DOWN".into(),
        since: SystemTime::UNIX_EPOCH,
        recovery: "port 1 is up".into(),
    };
    View { faults: Arc::new([(samples::hca(0), fault)].into()), ..samples::view() }
}

const LABELS: [&str; 7] = [
    "device.larder.dev/fabric=InfiniBand",
    "device.larder.dev/fabric-gbps=400",
    "device.larder.dev/gpu-count=2",
    "device.larder.dev/gpu-driver=570.86.15",
    "device.larder.dev/gpu-memory-mib=81559",
    "device.larder.dev/gpu-model=NVIDIA-H100-80GB-HBM3",
    "kubernetes.io/os=linux",
];

// SEMANTICS: D22
#[tokio::test(start_paused = true)]
async fn the_node_gets_its_labels_and_its_condition_and_loses_labels_of_ours_that_no_longer_apply() {
    let world = World::start(Api::new(), well());
    world.until_status("False").await;
    world.until("labels", |api| api.labels() == LABELS).await;
    let first = world.api.condition().unwrap();
    world.view.send_replace(Arc::new(down()));
    world.until_status("True").await;
    assert_eq!(world.api.condition().unwrap()[1], "PortDown");
    // Without HCAs there is nothing to be at fault.
    let mut bare = down();
    (bare.machine, bare.resources) = (Arc::new(crate::machine::Machine::default()), Arc::new([]));
    world.view.send_replace(Arc::new(bare));
    world.until_status("False").await;
    world.until("labels", |api| api.labels() == ["kubernetes.io/os=linux"]).await;
    assert_eq!(world.api.lock().node.as_ref().unwrap()["status"]["conditions"][0]["type"], "Ready");
    assert_eq!(first[1], "NoDeviceFault");
}

// SEMANTICS: D22
#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_nothing_changes_and_the_node_is_read_about_once_a_minute() {
    let world = World::start(Api::new(), down());
    world.until_status("True").await;
    sleep(Duration::from_secs(10)).await;
    let counts = || {
        let inner = world.api.lock();
        (inner.writes.len(), inner.reads)
    };
    let (written, read) = counts();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(counts().0, written);
    let reads = counts().1 - read;
    assert!((39..=61).contains(&reads), "{reads}");
    // A view that says the same is no news.
    world.view.send_replace(Arc::new(down()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.api.lock().writes.len(), written);
}

#[tokio::test(start_paused = true)]
async fn a_condition_changes_its_time_with_its_status_alone() {
    let api = Api::new();
    let old = json!({
        "type": "larder.dev/DeviceFault", "status": "True", "reason": "Gone", "message": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z"
    });
    api.lock().node.as_mut().unwrap()["status"]["conditions"].as_array_mut().unwrap().push(old);
    let world = World::start(api, down());
    world.until("reason", |api| api.condition().unwrap()[1] == "PortDown").await;
    assert_eq!(world.api.condition().unwrap()[2], "2026-01-01T00:00:00Z");
    world.view.send_replace(Arc::new(well()));
    world.until_status("False").await;
    assert_ne!(world.api.condition().unwrap()[2], "2026-01-01T00:00:00Z");
}

// SEMANTICS: D22
#[tokio::test(start_paused = true)]
async fn a_node_that_is_made_again_or_changed_by_others_is_written_again() {
    let world = World::start(Api::new(), down());
    world.until_status("True").await;
    world.api.lock().node = None;
    sleep(Duration::from_secs(600)).await;
    world.api.make_node();
    world.until_status("True").await;
    world.until("labels", |api| api.labels() == LABELS).await;
    world.api.lock().node.as_mut().unwrap()["metadata"]["labels"]["device.larder.dev/gpu-count"] = json!("9");
    world.until("labels", |api| api.labels() == LABELS).await;
}

// SEMANTICS: D22
#[tokio::test(start_paused = true)]
async fn an_object_that_is_older_than_what_was_written_does_not_count() {
    let world = World::start(Api::new(), well());
    world.until_status("False").await;
    world.until("labels", |api| api.labels() == LABELS).await;
    {
        let mut inner = world.api.lock();
        inner.old = inner.node.clone();
    }
    world.view.send_replace(Arc::new(down()));
    world.until_status("True").await;
    world.view.send_replace(Arc::new(well()));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.api.status().as_deref(), Some("False"));
    // An API server may never get to that version; then what etcd has counts.
    {
        let mut inner = world.api.lock();
        inner.queries.clear();
        inner.next = [504].into();
    }
    world.view.send_replace(Arc::new(down()));
    world.until_status("True").await;
    world.view.send_replace(Arc::new(well()));
    world.until_status("False").await;
    assert_eq!(world.api.lock().queries[1..], ["", "resourceVersion=5"]);
}

// SEMANTICS: D23
#[tokio::test(start_paused = true)]
async fn a_recent_xid_is_reported_again_for_another_pod() {
    let notice = Notice {
        device: samples::gpu(0),
        xid: 31,
        meaning: "memory page fault",
        action: crate::config::XidAction::RestartWorker,
    };
    let mut recent = emit::Recent::default();
    let mut news = |pods: &[&str]| recent.news(&notice, pods.iter().map(|pod| pending(pod).0).collect()).len();
    assert_eq!([news(&["a"]), news(&["a", "b"]), news(&["a", "b"])], [1, 1, 0]);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(news(&["a", "b"]), 2);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_hangs_or_comes_back_is_tried_ever_more_seldom() {
    let api = Api::new();
    api.lock().refused = vec![("GET".into(), 500)];
    let world = World::start(api, well());
    sleep(Duration::from_secs(600)).await;
    assert!(world.api.lock().reads < 20, "{}", world.api.lock().reads);
    assert_eq!(world.api.status(), None);
    world.api.lock().refused.clear();
    world.until_status("False").await;
    // While it hangs, the view changes twice; the newest counts.
    world.api.lock().hangs = true;
    world.view.send_replace(Arc::new(down()));
    sleep(Duration::from_secs(600)).await;
    world.view.send_replace(Arc::new(well()));
    sleep(Duration::from_secs(60)).await;
    world.view.send_replace(Arc::new(down()));
    world.api.lock().hangs = false;
    world.until_status("True").await;
    assert!(world.counters.api_errors.load(Ordering::Relaxed) > 5);
}

// SEMANTICS: D22
#[tokio::test(start_paused = true)]
async fn a_refused_write_to_the_node_does_not_stop_the_others() {
    for (refused, kept) in [("PATCH /api/v1/nodes/n1/status", true), ("PATCH /api/v1/nodes/n1", false)] {
        let api = Api::new();
        api.lock().refused = vec![(refused.into(), 403)];
        let world = World::start(api, well());
        sleep(Duration::from_secs(60)).await;
        assert_eq!(world.api.labels() == LABELS, kept, "{refused}");
        world.api.lock().refused.clear();
        world.until_status("False").await;
        world.until("labels", |api| api.labels() == LABELS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_reporter_stops_with_the_views() {
    let world = World::start(Api::new(), well());
    world.until_status("False").await;
    let World { view, reporter, _notices, .. } = world;
    drop((view, _notices));
    reporter.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn missing_components_are_reported_without_a_kubelet() {
    let missing =
        View { capabilities: Capabilities { hook: Some("not installed".into()), ..well().capabilities }, ..well() };
    let world = World::start(Api::new(), missing.clone());
    world.until("an event", |api| api.lock().events.len() == 1).await;
    let event = world.api.lock().events[0].clone();
    assert_eq!((&event["reason"], &event["regarding"]["name"]), (&json!("LimitsMissing"), &json!("n1")));
    world.view.send_replace(Arc::new(well()));
    sleep(Duration::from_secs(5)).await;
    world.view.send_replace(Arc::new(missing));
    world.until("another event", |api| api.lock().events.len() == 2).await;
}

fn pending(pod: &str) -> (Report, tokio::time::Instant) {
    let about = About::Pod { namespace: "team".into(), name: pod.into(), uid: "u".into() };
    let at = Some(Timestamp::from_second(1).unwrap());
    let pending = Report { about, is_warning: true, reason: "DeviceXid", note: "x".into(), at };
    (pending, tokio::time::Instant::now())
}

/// The pods of which events are made by an API that answers so.
async fn made(api: &Api, pods: &[&str], counters: &Arc<Counters>) -> Vec<String> {
    let (found, to_make) = mpsc::channel(emit::WAITING);
    for pod in pods {
        found.try_send(pending(pod)).unwrap();
    }
    drop(found);
    emit::make(api.client(), "n1".into(), to_make, Arc::clone(counters)).await;
    let inner = api.lock();
    inner.events.iter().map(|event| event["regarding"]["name"].as_str().unwrap().to_owned()).collect()
}

// SEMANTICS: D23
#[tokio::test(start_paused = true)]
async fn an_event_that_is_refused_or_fails_again_and_again_does_not_stop_the_next() {
    let counters = Arc::new(Counters::default());
    let api = Api::new();
    api.lock().next = [403, 500, 500, 500, 500, 409].into();
    assert_eq!(made(&api, &["a", "b", "c", "d"], &counters).await, ["d"]);
    let counts = [&counters.events, &counters.events_dropped].map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(counts, [2, 2], "c was there already");
}

// SEMANTICS: D23
#[tokio::test(start_paused = true)]
async fn events_wait_for_an_api_that_is_away_but_not_for_ever() {
    let counters = Arc::new(Counters::default());
    let api = Api::new();
    api.lock().next = [429; 20].into();
    assert_eq!(made(&api, &["a", "b"], &counters).await, ["a", "b"]);
    let api = Api::new();
    api.lock().refused = vec![("POST".into(), 429)];
    assert_eq!(made(&api, &["a", "b"], &counters).await, [""; 0]);
    assert_eq!(counters.events_dropped.load(Ordering::Relaxed), 2);
}
