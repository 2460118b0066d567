//! Slices as endpoints, and their watch on a fake API server with a stopped clock.

use larder_testkit::FakeApi;
use larder_testkit::fake_api::Mode;
use serde_json::{Value, json};

use super::*;

fn endpoint(address: &str, node: &str, more: Value) -> Value {
    let mut endpoint = json!({"addresses": [address], "nodeName": node, "zone": "z1", "conditions": {"ready": true}});
    endpoint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    endpoint
}

fn slice(name: &str, endpoints: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "larder"},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "metrics", "port": 9464}, {"name": "peers", "port": 9466}],
    })
}

fn shown(found: &[Endpoint]) -> Vec<String> {
    found.iter().map(|found| format!("{}={}", found.name, found.address)).collect()
}

#[test]
fn endpoints_that_serve_are_listed_and_a_terminating_one_gives_way() {
    let slices = [
        // The pod of node b is being replaced: the new pod's endpoint counts.
        slice(
            "s0",
            json!([endpoint(
                "10.0.0.9",
                "b",
                json!({"conditions": {"ready": false, "serving": true, "terminating": true}})
            )]),
        ),
        slice(
            "s1",
            json!([
                endpoint("10.0.0.2", "b", json!({})),
                endpoint("10.0.0.1", "a", json!({"conditions": {}})),
                endpoint("10.0.0.3", "c", json!({"conditions": {"ready": false, "serving": false}})),
                endpoint("10.0.0.4", "e", json!({"conditions": {"ready": true, "serving": false}})),
                endpoint("not-an-address", "d", json!({})),
                endpoint("10.0.0.5", "", json!({"nodeName": null, "targetRef": {"name": "pod-5"}})),
                endpoint("10.0.0.6", "", json!({"nodeName": null})),
            ]),
        ),
        slice("s2", Value::Null),
    ]
    .map(|slice| serde_json::from_value::<EndpointSlice>(slice).unwrap());
    let endpoints = |port: &str| {
        let all: Vec<Serving> = slices.iter().flat_map(|slice| serving(slice, port)).collect();
        merged(&all)
    };
    let expected = ["a=10.0.0.1:9466", "b=10.0.0.2:9466", "e=10.0.0.4:9466", "pod-5=10.0.0.5:9466"];
    assert_eq!(shown(&endpoints("peers")), expected);
    assert_eq!(shown(&endpoints(""))[0], "a=10.0.0.1:9464");
    assert_eq!(shown(&endpoints("none")), [""; 0]);
    assert_eq!(endpoints("peers")[0].zone, "z1");
}

#[test]
fn pauses_grow_up_to_the_longest() {
    for (failures, shortest) in [(1, PAUSE), (2, PAUSE * 2), (4, PAUSE * 8), (100, PAUSE_MOST / 2)] {
        let pause = pause(failures);
        assert!((shortest..=shortest * 2).contains(&pause), "{failures}: {pause:?}");
    }
}

#[test]
fn only_a_rejection_is_about_rights() {
    let error = |code| {
        let status = kube::core::Status::failure("no", "No").with_code(code);
        Error::from(kube::Error::Api(status.boxed()))
    };
    for (code, is_about_rights, is_temporary) in
        [(401, true, false), (403, true, false), (404, false, false), (429, false, true), (503, false, true)]
    {
        let error = error(code);
        assert_eq!(error.to_string().contains("rights"), is_about_rights, "{error}");
        assert_eq!(error.is_temporary(), is_temporary, "{error}");
    }
    let error = Error::from(kube::Error::Service("connection refused".into()));
    assert!(!error.to_string().contains("rights") && error.is_temporary(), "{error}");
}

const KIND: &str = "endpointslices";

/// A server with one slice, and the endpoints after their first list.
async fn listed() -> (FakeApi, Endpoints) {
    let api = FakeApi::new();
    api.put(KIND, slice("s", json!([endpoint("10.0.0.1", "a", json!({}))])));
    let service = Service { namespace: "larder".to_owned(), name: "peers".to_owned(), port: "peers".to_owned() };
    let fake = api.clone();
    let connect = Connect(Arc::new(move || Ok(Client::new(fake.service(), "default"))));
    let mut endpoints = Endpoints::of(service, connect);
    assert_eq!(shown(&endpoints.next().await.unwrap()), ["a=10.0.0.1:9466"]);
    (api, endpoints)
}

fn move_to(api: &FakeApi, address: &str) {
    api.put(KIND, slice("s", json!([endpoint(address, "a", json!({}))])));
}

/// Waits this long, and expects no change and no error.
async fn quiet(endpoints: &mut Endpoints, seconds: u64) {
    let next = timeout(Duration::from_secs(seconds), endpoints.next()).await;
    assert!(next.is_err(), "{next:?}");
}

fn expired() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"})
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_is_renewed_without_a_list_or_an_error() {
    let (api, mut endpoints) = listed().await;
    let renewals = async {
        for _ in 0..3 {
            sleep(Duration::from_secs(290)).await;
            api.end_watches(&[KIND]);
        }
    };
    tokio::join!(renewals, quiet(&mut endpoints, 1000));
    assert_eq!(api.lists(KIND), 1);
    move_to(&api, "10.0.0.2");
    assert_eq!(shown(&endpoints.next().await.unwrap()), ["a=10.0.0.2:9466"]);
    assert_eq!(api.lists(KIND), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_silent_for_too_long_is_replaced() {
    let (api, mut endpoints) = listed().await;
    assert!(matches!(endpoints.next().await, Err(Error::TimedOut)));
    move_to(&api, "10.0.0.2");
    assert_eq!(shown(&endpoints.next().await.unwrap()), ["a=10.0.0.2:9466"]);
    assert_eq!(api.lists(KIND), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_is_listed_again_without_an_error() {
    let (api, mut endpoints) = listed().await;
    quiet(&mut endpoints, 60).await;
    api.put_unseen(KIND, slice("s", json!([endpoint("10.0.0.2", "a", json!({}))])));
    api.tell_watches(KIND, "ERROR", &expired());
    let before = Instant::now();
    assert_eq!(shown(&endpoints.next().await.unwrap()), ["a=10.0.0.2:9466"]);
    assert_eq!((before.elapsed(), api.lists(KIND)), (Duration::ZERO, 2));
    // The version that was just listed is rejected: that is an error, and the next attempts are less and less frequent.
    api.turn(&[KIND], Mode::RefusesWatches(410));
    let before = Instant::now();
    while before.elapsed() < Duration::from_secs(600) {
        let _ = endpoints.next().await;
    }
    let lists = api.lists(KIND);
    assert!(lists < 50, "{lists}");
    api.turn(&[KIND], Mode::Serves);
    move_to(&api, "10.0.0.3");
    while endpoints.next().await.ok().is_none_or(|found| shown(&found) != ["a=10.0.0.3:9466"]) {}
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_works_again_ends_the_count_of_errors() {
    let (api, mut endpoints) = listed().await;
    for _ in 0..4 {
        quiet(&mut endpoints, 60).await;
        api.cut_watches(&[KIND]);
        endpoints.next().await.unwrap_err();
        assert_eq!(endpoints.failures(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_immediately_is_an_error() {
    let (api, mut endpoints) = listed().await;
    let next = timeout(WORKS / 2, endpoints.next()).await;
    assert!(next.is_err(), "{next:?}");
    api.end_watches(&[KIND]);
    assert!(matches!(endpoints.next().await, Err(Error::Ended)));
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_after_one_event_are_resumed_once_a_second_at_most() {
    let (api, mut endpoints) = listed().await;
    quiet(&mut endpoints, 60).await;
    let mut watches = 0;
    let ends = async {
        loop {
            if api.open_watches(KIND) > 0 {
                watches += 1;
                api.bookmark(&[KIND]);
                api.end_watches(&[KIND]);
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = ends => unreachable!("it has no end"),
        () = quiet(&mut endpoints, 20) => {}
    }
    assert!((10..=21).contains(&watches), "{watches} in 20 s");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_serves_lists_but_no_watches_is_asked_less_and_less_often() {
    let (api, mut endpoints) = listed().await;
    for code in [403, 503] {
        api.turn(&[KIND], Mode::RefusesWatches(code));
        let (before, lists) = (Instant::now(), api.lists(KIND));
        let mut last = 0;
        while before.elapsed() < Duration::from_secs(600) {
            if endpoints.next().await.is_err() {
                assert!(endpoints.failures() > last, "a list is no success");
                last = endpoints.failures();
            }
        }
        let lists = api.lists(KIND) - lists;
        assert!(lists < 50, "{code}: {lists}");
        api.turn(&[KIND], Mode::Serves);
        let address = format!("10.0.1.{}", code % 100);
        move_to(&api, &address);
        let expected = [format!("a={address}:9466")];
        while endpoints.next().await.ok().is_none_or(|found| shown(&found) != expected) {}
    }
}
