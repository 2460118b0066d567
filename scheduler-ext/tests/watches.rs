//! What becomes of the answers when the API is cut off, forgets what was told, or is away: they go on from what was known, say how
//! old that is, and catch up.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Bytes;
use axum::http::{Request, Response};
use futures::channel::mpsc;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use larder_kube::client::Body;
use larder_scheduler_ext::admin::{Counters, Status};
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::verbs::Verbs;
use larder_scheduler_ext::index::state::Snapshot;
use larder_scheduler_ext::ring::Verb;
use larder_scheduler_ext::watch;
use larder_telemetry::admin::Admin;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const KINDS: [&str; 6] = ["nodes", "pods", "persistentvolumes", "nodecaches", "datasets", "trainingjobs"];

/// How the API answers about a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Serves,
    /// With this status.
    Refuses(u16),
    /// It lists them, and refuses to watch them with this status.
    RefusesWatches(u16),
    /// Never.
    Hangs,
}

/// When a client gives up.
const UNANSWERED: Duration = Duration::from_secs(120);

type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, io::Error>>;

#[derive(Default)]
struct Inner {
    /// One of a kind.
    objects: BTreeMap<String, Value>,
    version: u64,
    modes: BTreeMap<String, Mode>,
    watches: BTreeMap<String, Sender>,
    lists: BTreeMap<String, usize>,
}

/// An API server that does what the test says.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Inner>>);

type Answer = Response<BoxBody<Bytes, io::Error>>;

fn answer(status: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed();
    Response::builder().status(status).body(body).expect("an answer")
}

fn failure(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Expired", "message": "no"})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a version")
}

/// What a watch is told of an object.
fn line(kind: &str, object: &Value) -> Frame<Bytes> {
    Frame::data(Bytes::from(format!("{}\n", json!({"type": kind, "object": object}))))
}

impl Api {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panicked")
    }

    fn client(&self) -> larder_kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
                match api.answer(path, query) {
                    Some(answer) => Ok(answer),
                    // As it is with a connection on which nothing comes back.
                    None => {
                        sleep(UNANSWERED).await;
                        Err(io::Error::from(io::ErrorKind::TimedOut))
                    }
                }
            }
        });
        larder_kube::Client::new(service, "default")
    }

    fn answer(&self, path: &str, query: &str) -> Option<Answer> {
        let plural = path.rsplit('/').next().expect("a kind").to_owned();
        assert!(KINDS.contains(&plural.as_str()), "{path}");
        let is_watch = query.contains("watch=true");
        let mut inner = self.lock();
        match inner.modes.get(&plural).copied().unwrap_or_default() {
            Mode::Hangs => return None,
            Mode::Refuses(code) => return Some(answer(code, &failure(code))),
            Mode::RefusesWatches(code) if is_watch => return Some(answer(code, &failure(code))),
            Mode::Serves | Mode::RefusesWatches(_) => {}
        }
        if is_watch {
            let since: u64 = query.split("resourceVersion=").nth(1)?.split('&').next()?.parse().ok()?;
            let (sender, frames) = mpsc::unbounded();
            for object in inner.objects.get(&plural).into_iter().filter(|object| version(object) > since) {
                sender.unbounded_send(Ok(line("MODIFIED", object))).expect("it is listened to");
            }
            inner.watches.insert(plural, sender);
            return Some(Response::new(StreamBody::new(frames).boxed()));
        }
        *inner.lists.entry(plural.clone()).or_default() += 1;
        let items: Vec<&Value> = inner.objects.get(&plural).into_iter().collect();
        let version = inner.version.to_string();
        Some(answer(
            200,
            &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
        ))
    }

    /// Has this object of a kind from now on; watches that are open are not told.
    fn put(&self, plural: &str, mut object: Value) {
        let mut inner = self.lock();
        inner.version += 1;
        object["metadata"]["resourceVersion"] = inner.version.to_string().into();
        inner.objects.insert(plural.to_owned(), object);
    }

    /// Answers so about all kinds, or some, from now on.
    fn turn(&self, plurals: &[&str], mode: Mode) {
        let mut inner = self.lock();
        for plural in plurals {
            inner.modes.insert((*plural).to_owned(), mode);
        }
    }

    /// Ends watches in the middle of a line.
    fn cut(&self, plurals: &[&str]) {
        for plural in plurals {
            let watch = self.lock().watches.remove(*plural);
            let watch = watch.unwrap_or_else(|| panic!("{plural} are watched"));
            let half = Frame::data(Bytes::from_static(b"{\"type\":"));
            let _ = watch.unbounded_send(Ok(half));
            let _ = watch.unbounded_send(Err(io::ErrorKind::ConnectionReset.into()));
        }
    }

    /// Tells a watch this.
    fn tell(&self, plural: &str, kind: &str, object: &Value) {
        let inner = self.lock();
        let watch = inner.watches.get(plural).unwrap_or_else(|| panic!("{plural} are watched"));
        watch.unbounded_send(Ok(line(kind, object))).unwrap_or_else(|_| panic!("{plural} are listened to"));
    }

    /// Tells watches that they are current.
    fn bookmark(&self, plurals: &[&str]) {
        for plural in plurals {
            let metadata = json!({"resourceVersion": self.lock().version.to_string()});
            self.tell(plural, "BOOKMARK", &json!({"kind": "X", "apiVersion": "v1", "metadata": metadata}));
        }
    }

    fn lists(&self, plural: &str) -> usize {
        self.lock().lists.get(plural).copied().unwrap_or(0)
    }
}

/// The cache of n1, which holds these tenths of the dataset.
fn cache(tenths: u64) -> Value {
    let held = json!([{"snapshot": "07".repeat(32), "bytes": tenths * 100}]);
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": "n1"}, "status": {"snapshots": held}})
}

/// The program, which follows an API where n1 holds the dataset a/d.
struct Running {
    api: Api,
    verbs: Verbs,
    status: Status,
    watches: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.watches.abort();
    }
}

impl Running {
    async fn start() -> Self {
        let running = Self::over(Api::default());
        sleep(Duration::from_secs(1)).await;
        assert_eq!((running.score(), running.age()), (1, 1));
        running
    }

    fn over(api: Api) -> Self {
        let dataset = json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": "d", "namespace": "a", "uid": "uid"},
            "spec": {"origin": {"source": "s3://b"}},
            "status": {"snapshot": "07".repeat(32), "bytes": 1_000},
        });
        api.put("datasets", dataset);
        api.put("nodecaches", cache(1));
        let (shown, counters) = (Arc::new(ArcSwap::from_pointee(Snapshot::default())), Arc::new(Counters::default()));
        let settings = Arc::new(Settings::default());
        let verbs = Verbs::new(Arc::clone(&settings), Arc::clone(&shown), Arc::clone(&counters)).0;
        let watches = tokio::spawn(watch::run(api.client(), settings, Arc::clone(&shown), Arc::clone(&counters)));
        Self { api, verbs, status: Status { counters, snapshot: shown }, watches }
    }

    /// The score of n1 for a pod that reads the dataset. The program is ready.
    fn score(&self) -> u64 {
        assert_eq!(self.status.ready(), Ok(()));
        let metadata = json!({"name": "p", "namespace": "a", "annotations": {"larder.dev/datasets": "d"}});
        let request = json!({"Pod": {"metadata": metadata, "spec": {}}, "NodeNames": ["n1"]}).to_string();
        let answer = self.verbs.answer(Verb::Prioritize, request.into()).expect("an answer");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        answer[0]["Score"].as_u64().expect("a score")
    }

    /// How old the news are, in seconds.
    fn age(&self) -> u64 {
        let samples = self.status.samples();
        match samples.iter().find(|sample| sample.name == "scheduler_watch_age_seconds").map(|sample| &sample.value) {
            Some(larder_telemetry::admin::Value::Number(seconds)) => *seconds,
            other => panic!("{other:?}"),
        }
    }
}

// SEMANTICS: X4
#[tokio::test(start_paused = true)]
async fn answers_go_on_while_the_api_is_away_and_catch_up_when_it_is_back() {
    let running = Running::start().await;
    // A server that restarts refuses what it does not know the roles for yet.
    for (mode, now) in [(Mode::Refuses(503), 3), (Mode::Hangs, 5), (Mode::Refuses(403), 7)] {
        running.api.turn(&KINDS, mode);
        if mode == Mode::Refuses(403) {
            // Then they begin with a list, which is refused.
            KINDS.iter().for_each(|plural| running.api.tell(plural, "ERROR", &failure(410)));
        } else {
            running.api.cut(&KINDS);
        }
        running.api.put("nodecaches", cache(now));
        for minute in 1..=10 {
            sleep(Duration::from_secs(60)).await;
            let age = running.age();
            assert_eq!(running.score(), now - 2, "{mode:?}");
            assert!((minute * 60..minute * 60 + 10).contains(&age), "{age} s in minute {minute}, {mode:?}");
        }
        running.api.turn(&KINDS, Mode::Serves);
        // Requests that were never answered have ended by then, and so have the pauses between them.
        sleep(UNANSWERED * 2).await;
        assert_eq!(running.score(), now, "{mode:?}");
        // It is as if it had just begun.
        running.api.bookmark(&KINDS);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(running.age(), 1);
    }
}

/// Nothing was ever known of what may not be read: who is not ready is not asked.
// SEMANTICS: X4
#[tokio::test(start_paused = true)]
async fn without_its_rights_it_is_not_ready_until_it_has_them() {
    let api = Api::default();
    api.turn(&["nodecaches"], Mode::Refuses(403));
    let running = Running::over(api);
    sleep(Duration::from_secs(600)).await;
    assert!(running.status.ready().is_err());
    running.api.turn(&["nodecaches"], Mode::Serves);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(running.score(), 1);
}

// SEMANTICS: X4
#[tokio::test(start_paused = true)]
async fn a_watch_whose_version_is_too_old_begins_with_a_list() {
    let running = Running::start().await;
    running.api.put("nodecaches", cache(3));
    running.api.tell("nodecaches", "ERROR", &failure(410));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((running.score(), running.api.lists("nodecaches")), (3, 2));
    // It is told so when it begins again after a cut, for as long as the server says so.
    running.api.turn(&["nodecaches"], Mode::RefusesWatches(410));
    running.api.put("nodecaches", cache(5));
    running.api.cut(&["nodecaches"]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.score(), 5);
    let lists = running.api.lists("nodecaches");
    assert!((3..=62).contains(&lists), "{lists} lists in a minute");
    running.api.turn(&["nodecaches"], Mode::Serves);
    running.api.put("nodecaches", cache(7));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.score(), 7);
}

// SEMANTICS: X4
#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_not_stale_and_one_watch_that_is_cut_is_seen() {
    let running = Running::start().await;
    for _ in 0..30 {
        sleep(Duration::from_secs(60)).await;
        assert!(running.age() <= 61, "{} s", running.age());
        running.api.bookmark(&KINDS);
    }
    let [cut, others @ ..] = KINDS;
    running.api.turn(&[cut], Mode::Hangs);
    running.api.cut(&[cut]);
    for minute in 1..=10 {
        sleep(Duration::from_secs(60)).await;
        running.api.bookmark(&others);
        let age = running.age();
        assert!((minute * 60 - 1..minute * 60 + 10).contains(&age), "{age} s in minute {minute}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_has_no_objects_any_more() {
    let running = Running::start().await;
    running.api.turn(&["nodecaches"], Mode::Refuses(404));
    running.api.tell("nodecaches", "ERROR", &failure(410));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.score(), 0);
    running.api.turn(&["nodecaches"], Mode::Serves);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(running.score(), 1);
}
