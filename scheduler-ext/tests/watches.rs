//! Answers while the API is unreachable, has forgotten old versions, or is down: they continue from the known state,
//! report its age, and catch up afterwards.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_scheduler_ext::admin::{Counters, Status};
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::verbs::Verbs;
use larder_scheduler_ext::index::state::Snapshot;
use larder_scheduler_ext::ring::Verb;
use larder_scheduler_ext::watch;
use larder_telemetry::admin::Admin;
use larder_testkit::FakeApi;
use larder_testkit::fake_api::Mode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const KINDS: [&str; 6] = ["nodes", "pods", "persistentvolumes", "nodecaches", "datasets", "trainingjobs"];

/// When a client gives up on a connection without any response.
const UNANSWERED: Duration = Duration::from_secs(120);
const HANGS: Mode = Mode::Hangs(UNANSWERED);

/// The API's response about a version that it has forgotten.
fn expired() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "no"})
}

/// The cache of n1, which holds this many tenths of the dataset.
fn cache(tenths: u64) -> Value {
    let held = json!([{"snapshot": "07".repeat(32), "bytes": tenths * 100}]);
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": "n1"}, "status": {"snapshots": held}})
}

/// The running program, with an API where n1 holds the dataset a/d.
struct Running {
    api: FakeApi,
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
        let running = Self::over(FakeApi::new());
        sleep(Duration::from_secs(1)).await;
        assert_eq!((running.score(), running.age()), (1, 1));
        running
    }

    fn over(api: FakeApi) -> Self {
        let dataset = json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": "d", "namespace": "a", "uid": "uid"},
            "spec": {"origin": {"source": "s3://b"}},
            "status": {"snapshot": "07".repeat(32), "bytes": 1_000},
        });
        api.expect_only(&KINDS);
        api.put("datasets", dataset);
        api.put("nodecaches", cache(1));
        let (shown, counters) = (Arc::new(ArcSwap::from_pointee(Snapshot::default())), Arc::new(Counters::default()));
        let settings = Arc::new(Settings::default());
        let verbs = Verbs::new(Arc::clone(&settings), Arc::clone(&shown), Arc::clone(&counters)).0;
        let client = larder_kube::Client::new(api.service(), "default");
        let watches = tokio::spawn(watch::run(client, settings, Arc::clone(&shown), Arc::clone(&counters)));
        Self { api, verbs, status: Status { counters, snapshot: shown }, watches }
    }

    /// The score of n1 for a pod that reads the dataset. Asserts that the program is ready.
    fn score(&self) -> u64 {
        assert_eq!(self.status.ready(), Ok(()));
        let metadata = json!({"name": "p", "namespace": "a", "annotations": {"larder.dev/datasets": "d"}});
        let request = json!({"Pod": {"metadata": metadata, "spec": {}}, "NodeNames": ["n1"]}).to_string();
        let answer = self.verbs.answer(Verb::Prioritize, request.into()).expect("an answer");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        // A node with the score 0 is left out.
        answer[0]["Score"].as_u64().unwrap_or(0)
    }

    /// The age of the known state, in seconds.
    fn age(&self) -> u64 {
        let samples = self.status.samples();
        match samples.iter().find(|sample| sample.name == "scheduler_watch_age_seconds").map(|sample| &sample.value) {
            Some(larder_telemetry::Value::Number(seconds)) => *seconds,
            other => panic!("{other:?}"),
        }
    }
}

// SEMANTICS: X4
#[tokio::test(start_paused = true)]
async fn answers_go_on_while_the_api_is_away_and_catch_up_when_it_is_back() {
    let running = Running::start().await;
    // A restarting server denies requests while it has not loaded the roles yet.
    for (mode, now) in [(Mode::Refuses(503), 3), (HANGS, 5), (Mode::Refuses(403), 7)] {
        running.api.turn(&KINDS, mode);
        if mode == Mode::Refuses(403) {
            // Then the watches start over with a list, which is rejected.
            KINDS.iter().for_each(|plural| running.api.tell_watches(plural, "ERROR", &expired()));
        } else {
            running.api.cut_watches(&KINDS);
        }
        running.api.put_unseen("nodecaches", cache(now));
        for minute in 1..=10 {
            sleep(Duration::from_secs(60)).await;
            let age = running.age();
            assert_eq!(running.score(), now - 2, "{mode:?}");
            assert!((minute * 60..minute * 60 + 10).contains(&age), "{age} s in minute {minute}, {mode:?}");
        }
        running.api.turn(&KINDS, Mode::Serves);
        // By then, unanswered requests and the delays between them are over.
        sleep(UNANSWERED * 2).await;
        assert_eq!(running.score(), now, "{mode:?}");
        // From here on, it behaves like a fresh start.
        running.api.bookmark(&KINDS);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(running.age(), 1);
    }
}

/// A kind that may not be read was never known: the program is not ready, so the scheduler does not ask it.
// SEMANTICS: X4
#[tokio::test(start_paused = true)]
async fn without_its_rights_it_is_not_ready_until_it_has_them() {
    let api = FakeApi::new();
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
    running.api.put_unseen("nodecaches", cache(3));
    running.api.tell_watches("nodecaches", "ERROR", &expired());
    sleep(Duration::from_secs(60)).await;
    assert_eq!((running.score(), running.api.lists("nodecaches")), (3, 2));
    // The watch is refused in this way when it resumes after an interruption, until the server accepts it again.
    running.api.turn(&["nodecaches"], Mode::RefusesWatches(410));
    running.api.put_unseen("nodecaches", cache(5));
    running.api.cut_watches(&["nodecaches"]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.score(), 5);
    let lists = running.api.lists("nodecaches");
    assert!((3..=62).contains(&lists), "{lists} lists in a minute");
    running.api.turn(&["nodecaches"], Mode::Serves);
    running.api.put_unseen("nodecaches", cache(7));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.score(), 7);
}

// SEMANTICS: X4, P7
#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_not_stale_and_one_watch_that_is_cut_is_seen() {
    let running = Running::start().await;
    for _ in 0..30 {
        sleep(Duration::from_secs(60)).await;
        assert!(running.age() <= 61, "{} s", running.age());
        running.api.bookmark(&KINDS);
    }
    let [cut, others @ ..] = KINDS;
    running.api.turn(&[cut], HANGS);
    running.api.cut_watches(&[cut]);
    for minute in 1..=10 {
        sleep(Duration::from_secs(60)).await;
        running.api.bookmark(&others);
        let age = running.age();
        assert!((minute * 60 - 1..minute * 60 + 10).contains(&age), "{age} s in minute {minute}");
        assert_eq!(running.status.healthy(), Ok(()));
    }
    running.watches.abort();
    sleep(Duration::from_secs(600)).await;
    assert!(running.status.healthy().unwrap_err().starts_with("the loop that follows the cluster stopped"));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_has_no_objects_any_more() {
    let running = Running::start().await;
    running.api.turn(&["nodecaches"], Mode::Refuses(404));
    running.api.tell_watches("nodecaches", "ERROR", &expired());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.score(), 0);
    running.api.turn(&["nodecaches"], Mode::Serves);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(running.score(), 1);
}
