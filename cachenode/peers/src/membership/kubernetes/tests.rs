//! Endpoints and their changes, against a scripted API server.

use std::sync::Mutex;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::membership::MemberSource;
use crate::membership::tests::changed;

fn endpoint(address: &str, node: &str, more: Value) -> Value {
    let mut endpoint = json!({"addresses": [address], "nodeName": node, "zone": "z1", "conditions": {"ready": true}});
    endpoint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    endpoint
}

fn slice(name: &str, version: u32, endpoints: Value) -> Value {
    json!({
        "metadata": {"name": name, "resourceVersion": version.to_string()},
        "endpoints": endpoints,
        "ports": [{"name": "metrics", "port": 9464}, {"name": "peers", "port": 9466}],
    })
}

fn endpoints(slices: Value) -> Endpoints {
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": slices});
    Endpoints::from_list(list.to_string().as_bytes()).unwrap()
}

fn names(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| format!("{}={}", node.name, node.address)).collect()
}

#[test]
fn endpoints_that_serve_are_nodes() {
    let all = endpoints(json!([
        slice(
            "s1",
            1,
            json!([
                endpoint("10.0.0.2", "b", json!({})),
                endpoint("10.0.0.1", "a", json!({"conditions": {}})),
                endpoint("10.0.0.3", "c", json!({"conditions": {"ready": false, "serving": false}})),
                endpoint("10.0.0.4", "e", json!({"conditions": {"ready": true, "serving": false}})),
                endpoint("not-an-address", "d", json!({})),
                endpoint("10.0.0.5", "", json!({"nodeName": null, "targetRef": {"name": "pod-5"}})),
                endpoint("10.0.0.6", "", json!({"nodeName": null})),
            ])
        ),
        // The pod of node b is being replaced: the endpoint that stays counts.
        slice(
            "s0",
            1,
            json!([endpoint(
                "10.0.0.9",
                "b",
                json!({"conditions": {"ready": false, "serving": true, "terminating": true}})
            )])
        ),
        slice("s2", 1, Value::Null),
    ]));
    assert_eq!(
        names(&all.nodes("peers")),
        ["a=10.0.0.1:9466", "b=10.0.0.2:9466", "e=10.0.0.4:9466", "pod-5=10.0.0.5:9466"]
    );
    assert_eq!(names(&all.nodes(""))[0], "a=10.0.0.1:9464");
    assert_eq!(all.nodes("none"), []);
    assert_eq!(all.nodes("peers")[0].zone, "z1");
}

#[test]
fn events_are_applied_and_odd_ones_are_errors() {
    let mut all = endpoints(json!([slice("s1", 1, json!([endpoint("10.0.0.1", "a", json!({}))]))]));
    let mut apply =
        |kind: &str, object: Value| all.apply(json!({"type": kind, "object": object}).to_string().as_bytes());
    apply("ADDED", slice("s2", 2, json!([endpoint("10.0.0.2", "b", json!({}))]))).unwrap();
    apply("MODIFIED", slice("s1", 3, json!([endpoint("10.0.0.3", "c", json!({}))]))).unwrap();
    apply("DELETED", slice("s2", 4, json!([]))).unwrap();
    apply("BOOKMARK", json!({"metadata": {"resourceVersion": "9"}})).unwrap();
    assert!(matches!(apply("ERROR", json!({"code": 410})), Err(ApiError::Expired)));
    assert!(matches!(apply("ERROR", json!({"code": 500, "message": "no"})), Err(ApiError::Unexpected { .. })));
    assert!(matches!(apply("ADDED", json!({"no": 1})), Err(ApiError::Unexpected { .. })));
    assert!(matches!(all.apply(b"not json\n"), Err(ApiError::Unexpected { .. })));
    assert_eq!((all.version.as_str(), names(&all.nodes("peers"))), ("9", vec!["c=10.0.0.3:9466".to_owned()]));
}

#[test]
fn services_are_named_with_their_namespace() {
    let service: ServiceName = "larder/peers".parse().unwrap();
    assert_eq!(service.to_string(), "larder/peers");
    for bad in ["peers", "/peers", "larder/", "a/b/c", "a/b?c"] {
        assert!(bad.parse::<ServiceName>().is_err(), "{bad}");
    }
    let api = |host: &str| KubernetesService::in_cluster(service.clone(), host, "443").unwrap().api.to_string();
    assert_eq!(api("10.96.0.1"), "https://10.96.0.1:443/");
    assert_eq!(api("fd00::1"), "https://[fd00::1]:443/");
}

/// A request that the scripted server expects, and its answer.
struct Step {
    /// The end of the query.
    expects: &'static str,
    token: &'static str,
    status: u16,
    lines: Vec<Value>,
    /// The body stays open after the lines.
    stays: bool,
}

type Script = Arc<Mutex<std::collections::VecDeque<Step>>>;

/// Answers by the script, and refuses every other request. Returns the server's address and the refused requests.
async fn scripted(script: Script) -> (Uri, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let surprises = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&surprises);
    tokio::spawn(async move {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            let (script, surprises) = (Arc::clone(&script), Arc::clone(&surprises));
            let serve = service_fn(move |request: Request<Incoming>| {
                let asked = request.uri().to_string();
                let token = request.headers()["authorization"].to_str().unwrap().to_owned();
                let step = script.lock().unwrap().pop_front();
                let path = "/apis/discovery.k8s.io/v1/namespaces/larder/endpointslices\
                            ?labelSelector=kubernetes.io%2Fservice-name%3Dpeers";
                let fits = |step: &Step| {
                    let query = asked.strip_prefix(path);
                    let list = step.expects.is_empty() && query == Some("");
                    let watch = !step.expects.is_empty() && query.is_some_and(|query| query.ends_with(step.expects));
                    (list || watch) && token == format!("Bearer {}", step.token)
                };
                let (status, lines, stays) = match step {
                    Some(step) if fits(&step) => (step.status, step.lines, step.stays),
                    _ => {
                        surprises.lock().unwrap().push(format!("{asked} {token}"));
                        (500, Vec::new(), false)
                    }
                };
                let lines = futures::stream::iter(lines.into_iter().map(|line| format!("{line}\n")));
                // In small chunks, so that events do not end where frames end.
                let frames = futures::StreamExt::flat_map(lines, |line| {
                    let chunks: Vec<_> = line.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
                    futures::stream::iter(chunks.into_iter().map(|chunk| Ok::<_, hyper::Error>(Frame::data(chunk))))
                });
                let open = futures::StreamExt::flatten(futures::stream::iter(stays.then(futures::stream::pending)));
                let body = BoxBody::new(http_body_util::BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(
                    Box::pin(futures::StreamExt::chain(frames, open)),
                )))));
                async move { http::Response::builder().status(status).body(body) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), serve));
        }
    });
    (api, seen)
}

/// A boxed body must be Sync.
struct SyncStream<S>(Mutex<std::pin::Pin<Box<S>>>);

impl<S: futures::Stream> futures::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        self.0.lock().unwrap().as_mut().poll_next(context)
    }
}

#[tokio::test]
async fn endpoints_are_listed_watched_resumed_and_listed_again() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "first\n").unwrap();
    let one = |version, address: &str| slice("s", version, json!([endpoint(address, "a", json!({}))]));
    let list =
        |version: u32, slice: Value| json!({"metadata": {"resourceVersion": version.to_string()}, "items": [slice]});
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object});
    let step = |expects, status, lines| Step { expects, token: "first", status, lines, stays: false };
    let script = Script::new(Mutex::new(std::collections::VecDeque::from([
        step("", 200, vec![list(10, one(3, "10.0.0.1"))]),
        step(
            "&resourceVersion=10",
            200,
            vec![
                event("MODIFIED", one(11, "10.0.0.2")),
                event("BOOKMARK", json!({"metadata": {"resourceVersion": "20"}})),
            ],
        ),
        // The watch continues from the bookmark, across an outage.
        step("&resourceVersion=20", 503, vec![]),
        step("&resourceVersion=20", 200, vec![event("ERROR", json!({"code": 410}))]),
        step("", 200, vec![list(30, one(29, "10.0.0.3"))]),
        step("&resourceVersion=30", 410, vec![]),
        step("", 200, vec![list(40, one(39, "10.0.0.4"))]),
        Step {
            expects: "&resourceVersion=40",
            token: "second",
            status: 200,
            lines: vec![event("MODIFIED", one(41, "10.0.0.5"))],
            stays: true,
        },
    ])));
    let (api, surprises) = scripted(Arc::clone(&script)).await;
    let service = KubernetesService {
        service: "larder/peers".parse().unwrap(),
        port: "peers".to_owned(),
        api,
        token_file: token_file.clone(),
        ca_file: folder.path().join("none"),
    };
    let (mut membership, watcher) = MemberSource::Kubernetes(service).open().await.unwrap();
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466"]);
    let stopping = CancellationToken::new();
    let watching = tokio::spawn(watcher.run(stopping.clone()));
    for expected in ["a=10.0.0.2:9466", "a=10.0.0.3:9466", "a=10.0.0.4:9466", "a=10.0.0.5:9466"] {
        changed(&mut membership).await;
        assert_eq!(names(&membership.borrow_and_update()), [expected]);
        if expected.contains("10.0.0.4") {
            std::fs::write(&token_file, "second\n").unwrap();
        }
    }
    stopping.cancel();
    watching.await.unwrap();
    assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
    assert!(script.lock().unwrap().is_empty());
}

// SEMANTICS: S3
#[tokio::test]
async fn a_node_starts_while_the_api_server_is_away_and_finds_the_others_later() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "first").unwrap();
    let listed = json!({
        "metadata": {"resourceVersion": "10"},
        "items": [slice("s", 3, json!([endpoint("10.0.0.1", "a", json!({}))]))],
    });
    let step = |expects, status, lines, stays| Step { expects, token: "first", status, lines, stays };
    let script = [
        step("", 503, vec![], false),
        step("", 503, vec![], false),
        step("", 200, vec![listed], false),
        step("&resourceVersion=10", 200, vec![], true),
    ];
    let (api, surprises) = scripted(Script::new(Mutex::new(script.into()))).await;
    let (service, ca_file) = ("larder/peers".parse().unwrap(), folder.path().join("none"));
    let service = KubernetesService { service, port: "peers".to_owned(), api, token_file, ca_file };
    let (mut membership, watcher) = MemberSource::Kubernetes(service).open().await.unwrap();
    assert_eq!(*membership.borrow_and_update(), Arc::default());
    let watching = tokio::spawn(watcher.run(CancellationToken::new()));
    changed(&mut membership).await;
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466"]);
    watching.abort();
    assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_service_that_cannot_be_listed_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "first").unwrap();
    let step = Step { expects: "", token: "first", status: 403, lines: vec![], stays: false };
    let (api, _) = scripted(Script::new(Mutex::new([step].into()))).await;
    let ca_file = folder.path().join("none");
    let service = "larder/peers".parse().unwrap();
    let service = KubernetesService { service, port: String::new(), api, token_file, ca_file };
    let error = MemberSource::Kubernetes(service).open().await.map(|_| ()).unwrap_err();
    let text = Chain(&error).to_string();
    assert!(text.contains("larder/peers") && text.contains("403"), "{text}");
    assert!(!text.contains("first"));
}
