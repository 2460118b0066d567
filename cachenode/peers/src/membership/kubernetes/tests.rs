//! Endpoints and their changes, against a scripted API server.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder_kube::Config;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::membership::MemberSource;
use crate::membership::tests::changed;

fn endpoint(address: &str, node: &str) -> Value {
    json!({"addresses": [address], "nodeName": node, "zone": "z1", "conditions": {"ready": true}})
}

fn slice(name: &str, version: u32, endpoints: Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {"name": name, "resourceVersion": version.to_string()},
        "endpoints": endpoints,
        "ports": [{"name": "metrics", "port": 9464}, {"name": "peers", "port": 9466}],
    })
}

fn list(version: u32, slices: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSliceList",
        "metadata": {"resourceVersion": version.to_string()},
        "items": slices,
    })
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "No", "message": "no"})
}

fn names(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| format!("{}={}", node.name, node.address)).collect()
}

#[test]
fn services_are_named_with_their_namespace() {
    let service: KubernetesService = "larder/peers".parse().unwrap();
    assert_eq!(service.to_string(), "larder/peers");
    for bad in ["peers", "/peers", "larder/", "a/b/c", "a/b?c"] {
        assert!(bad.parse::<KubernetesService>().is_err(), "{bad}");
    }
}

#[test]
fn endpoints_whose_names_cannot_be_those_of_nodes_are_left_out() {
    let endpoint =
        |name: &str| Endpoint { name: name.to_owned(), address: "10.0.0.1:1".parse().unwrap(), zone: "z1".into() };
    let found = nodes(vec![endpoint("a"), endpoint(""), endpoint("a b"), endpoint("b")]);
    let shown: Vec<_> = found.iter().map(|node| (&*node.name, node.weight, &*node.zone)).collect();
    assert_eq!(shown, [("a", 1, "z1"), ("b", 1, "z1")]);
}

/// A request that the scripted server expects, and its answer.
struct Step {
    /// The version that a watch continues from; empty: a list.
    expects: &'static str,
    token: &'static str,
    status: u16,
    lines: Vec<Value>,
    /// The body stays open after the lines.
    stays: bool,
}

type Script = Arc<Mutex<VecDeque<Step>>>;

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
                let fits = |step: &Step| {
                    let uri = request.uri();
                    let query: Vec<&str> = uri.query().unwrap_or_default().split('&').collect();
                    let version = format!("resourceVersion={}", step.expects);
                    let is_watch = query.contains(&"watch=true");
                    let is_expected = is_watch != step.expects.is_empty();
                    uri.path() == "/apis/discovery.k8s.io/v1/namespaces/larder/endpointslices"
                        && query.contains(&"labelSelector=kubernetes.io%2Fservice-name%3Dpeers")
                        && is_expected
                        && (!is_watch || query.contains(&&*version))
                        && token == format!("Bearer {}", step.token)
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

/// The service larder/peers at this API server, with the token of this file.
fn service(api: Uri, token_file: &Path) -> MemberSource {
    let service = Service { namespace: "larder".to_owned(), name: "peers".to_owned(), port: "peers".to_owned() };
    let mut config = Config::new(api);
    config.auth_info.token_file = Some(token_file.to_str().unwrap().to_owned());
    MemberSource::Kubernetes(KubernetesService { service, connect: Connect::with(config) })
}

#[tokio::test]
async fn endpoints_are_listed_watched_resumed_and_listed_again() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "first").unwrap();
    let named = |name: &str, version, address: &str, node: &str| slice(name, version, json!([endpoint(address, node)]));
    let one = |version, address: &str| named("s", version, address, "a");
    let other = |version| named("other", version, "10.0.1.1", "b");
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object});
    let bookmark =
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"resourceVersion": "20"}});
    let step = |expects, status, lines| Step { expects, token: "first", status, lines, stays: false };
    let script = Script::new(Mutex::new(VecDeque::from([
        step("", 200, vec![list(10, &[one(3, "10.0.0.1")])]),
        step(
            "10",
            200,
            vec![
                event("MODIFIED", one(11, "10.0.0.2")),
                event("ADDED", other(12)),
                event("DELETED", other(13)),
                event("BOOKMARK", bookmark),
            ],
        ),
        // The watch continues from the bookmark, across an outage.
        step("20", 500, vec![]),
        step("20", 200, vec![event("ERROR", status(410))]),
        step("", 200, vec![list(30, &[one(29, "10.0.0.3")])]),
        step("30", 410, vec![]),
        // The token was replaced: each new client reads it again.
        Step { token: "second", ..step("", 200, vec![list(40, &[one(39, "10.0.0.4"), other(38)])]) },
        Step {
            token: "second",
            stays: true,
            ..step("40", 200, vec![event("DELETED", other(41)), event("ERROR", status(401))])
        },
        Step { token: "second", ..step("", 200, vec![list(50, &[one(49, "10.0.0.5")])]) },
        Step { token: "second", stays: true, ..step("50", 200, vec![event("MODIFIED", one(51, "10.0.0.6"))]) },
    ])));
    let (api, surprises) = scripted(Arc::clone(&script)).await;
    let (mut membership, watcher) = service(api, &token_file).open().await.unwrap();
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466"]);
    let stopping = CancellationToken::new();
    let watching = tokio::spawn(watcher.run(stopping.clone()));
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != &["a=10.0.0.6:9466"]) {
        changed(&mut membership).await;
        seen.push(names(&membership.borrow_and_update()));
        if seen.last().unwrap()[0].contains("10.0.0.3") {
            std::fs::write(&token_file, "second").unwrap();
        }
    }
    // Members that follow each other without a pause may be seen as one; the script shows that each was served.
    for address in ["10.0.0.2", "10.0.0.3"] {
        assert!(seen.contains(&vec![format!("a={address}:9466")]), "{address}: {seen:?}");
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
    let listed = list(10, &[slice("s", 3, json!([endpoint("10.0.0.1", "a")]))]);
    let step = |expects, status, lines, stays| Step { expects, token: "first", status, lines, stays };
    let script = [
        step("", 500, vec![], false),
        step("", 500, vec![], false),
        step("", 200, vec![listed], false),
        step("10", 200, vec![], true),
    ];
    let (api, surprises) = scripted(Script::new(Mutex::new(script.into()))).await;
    let (mut membership, watcher) = service(api, &token_file).open().await.unwrap();
    assert_eq!(*membership.borrow_and_update(), Arc::default());
    let watching = tokio::spawn(watcher.run(CancellationToken::new()));
    changed(&mut membership).await;
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466"]);
    watching.abort();
    assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_node_starts_without_any_api_server() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "first").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let api = format!("http://{closed}").parse().unwrap();
    let (mut membership, _watcher) = service(api, &token_file).open().await.unwrap();
    assert_eq!(*membership.borrow_and_update(), Arc::default());
}

#[tokio::test]
async fn a_service_that_cannot_be_listed_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "first").unwrap();
    let step = Step { expects: "", token: "first", status: 403, lines: vec![], stays: false };
    let (api, _) = scripted(Script::new(Mutex::new([step].into()))).await;
    let error = service(api.clone(), &token_file).open().await.map(|_| ()).unwrap_err();
    let text = Chain(&error).to_string();
    assert!(text.contains("larder/peers") && text.contains("403"), "{text}");
    assert!(!text.contains("first"));
    // Without a token nothing is asked.
    let error = service(api, &folder.path().join("none")).open().await.map(|_| ()).unwrap_err();
    assert!(Chain(&error).to_string().contains("none"), "{}", Chain(&error));
}
