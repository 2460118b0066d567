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
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::membership::tests::changed;
use crate::membership::{MemberSource, Membership};

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

/// A page of a list; `more` is the token of the next page.
fn page(version: u32, slices: &[Value], more: &str) -> String {
    let page = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSliceList",
        "metadata": {"resourceVersion": version.to_string(), "continue": more},
        "items": slices,
    });
    page.to_string()
}

fn list(version: u32, slices: &[Value]) -> String {
    page(version, slices, "")
}

fn event(kind: &str, object: Value) -> String {
    json!({"type": kind, "object": object}).to_string()
}

fn failure(code: u16) -> String {
    event("ERROR", json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "No"}))
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
fn endpoints_with_invalid_names_or_known_addresses_are_no_nodes() {
    let endpoint = |name: &str, address: &str| Endpoint {
        name: name.to_owned(),
        address: address.parse().unwrap(),
        zone: "z1".into(),
    };
    // The endpoints whose names are invalid do not hide the valid one with the same address.
    let found = nodes(vec![
        endpoint("", "10.0.0.1:1"),
        endpoint("a b", "10.0.0.1:1"),
        endpoint("b", "10.0.0.1:1"),
        endpoint("c", "10.0.0.1:1"),
        endpoint("d", "10.0.0.2:1"),
    ]);
    let shown: Vec<_> = found.iter().map(|node| (&*node.name, node.weight, &*node.zone)).collect();
    assert_eq!(shown, [("b", 1, "z1"), ("d", 1, "z1")]);
}

/// A request that the scripted server expects, and its answer.
struct Step {
    /// The version that the watch continues from, or the token of a further page; empty for a list.
    expects: &'static str,
    token: &'static str,
    status: u16,
    lines: Vec<String>,
    /// True if the body stays open after the lines.
    stays: bool,
}

type Script = Arc<Mutex<VecDeque<Step>>>;

/// Answers according to the script, and rejects every other request. Returns the server's address and the rejected
/// requests.
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
                    let is_watch = query.contains(&"watch=true");
                    let from = if is_watch { "resourceVersion=" } else { "continue=" };
                    let from = query.iter().find_map(|part| part.strip_prefix(from)).unwrap_or_default();
                    uri.path() == "/apis/discovery.k8s.io/v1/namespaces/larder/endpointslices"
                        && query.contains(&"labelSelector=kubernetes.io%2Fservice-name%3Dpeers")
                        && from == step.expects
                        && token == format!("Bearer {}", step.token)
                };
                let (status, lines, stays) = match step {
                    Some(step) if fits(&step) => (step.status, step.lines, step.stays),
                    _ => {
                        surprises.lock().unwrap().push(format!("{asked} {token}"));
                        (500, Vec::new(), false)
                    }
                };
                let lines = futures::stream::iter(lines.into_iter().map(|line| line + "\n"));
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

/// The service larder/peers at this API server, with the token in this folder.
fn service(api: Uri, folder: &Path) -> MemberSource {
    let service = Service { namespace: "larder".to_owned(), name: "peers".to_owned(), port: "peers".to_owned() };
    MemberSource::Kubernetes(KubernetesService { service, connect: Connect::at(api, folder.to_owned()) })
}

/// A folder with this token. Its newline is not part of it.
fn account(token: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_token(&folder, token);
    folder
}

fn set_token(folder: &tempfile::TempDir, token: &str) {
    std::fs::write(folder.path().join("token"), format!("{token}\n")).unwrap();
}

/// The different lists from now until `last`, without those in which `b` is a node.
async fn lists_until(membership: &mut Membership, last: &str, mut at: impl FnMut(&str)) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|seen| seen != last) {
        changed(membership).await;
        let names = names(&membership.borrow_and_update()).join(" ");
        if !names.contains("b=") {
            at(&names);
            seen.push(names);
        }
    }
    seen.dedup();
    seen
}

fn one(version: u32, address: &str) -> Value {
    slice("s", version, json!([endpoint(address, "a")]))
}

fn other(version: u32) -> Value {
    slice("other", version, json!([endpoint("10.0.1.1", "b")]))
}

#[tokio::test]
async fn endpoints_are_listed_watched_resumed_and_listed_again() {
    let folder = account("first");
    let bookmark =
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"resourceVersion": "20"}});
    let step = |expects, status, lines| Step { expects, token: "first", status, lines, stays: false };
    let script = Script::new(Mutex::new(VecDeque::from([
        step("", 200, vec![page(10, &[other(2)], "more")]),
        step("more", 200, vec![list(10, &[one(3, "10.0.0.1")])]),
        step(
            "10",
            200,
            vec![
                event("MODIFIED", one(11, "10.0.0.2")),
                event("DELETED", other(12)),
                event("ADDED", other(13)),
                event("DELETED", other(14)),
                event("BOOKMARK", bookmark),
            ],
        ),
        // The watch continues from the bookmark, across an outage.
        step("20", 503, vec![]),
        step("20", 200, vec![failure(410)]),
        step("", 200, vec![list(30, &[one(29, "10.0.0.3")])]),
        step("30", 410, vec![]),
        // The token was replaced: each request reads it again.
        Step { token: "second", ..step("", 200, vec![list(40, &[one(39, "10.0.0.4"), other(38)])]) },
        Step { token: "second", stays: true, ..step("40", 200, vec![event("DELETED", other(41)), failure(401)]) },
        Step { token: "second", ..step("", 200, vec![list(50, &[one(49, "10.0.0.5")])]) },
        Step { token: "second", stays: true, ..step("50", 200, vec![event("MODIFIED", one(51, "10.0.0.6"))]) },
    ])));
    let (api, surprises) = scripted(Arc::clone(&script)).await;
    let (mut membership, watcher) = service(api, folder.path()).open().await.unwrap();
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466", "b=10.0.1.1:9466"]);
    let stopping = CancellationToken::new();
    let watching = tokio::spawn(watcher.run(stopping.clone()));
    let seen = lists_until(&mut membership, "a=10.0.0.6:9466", |names| {
        if names.contains("10.0.0.3") {
            set_token(&folder, "second");
        }
    });
    let expected = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
    assert_eq!(seen.await, expected.map(|address| format!("a={address}:9466")));
    stopping.cancel();
    watching.await.unwrap();
    assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
    assert!(script.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_event_that_cannot_be_read_leads_to_a_list_and_a_failure_of_the_server_does_not() {
    let folder = account("first");
    let step = |expects, lines, stays| Step { expects, token: "first", status: 200, lines, stays };
    let script = Script::new(Mutex::new(VecDeque::from([
        step("", vec![list(10, &[one(3, "10.0.0.1")])], false),
        step("10", vec!["not json".to_owned()], true),
        step("", vec![list(20, &[one(19, "10.0.0.2")])], false),
        step("20", vec![event("ADDED", json!({"no": 1}))], true),
        step("", vec![list(30, &[one(29, "10.0.0.3")])], false),
        step("30", vec![event("MODIFIED", one(31, "10.0.0.4")), failure(500)], true),
        step("31", vec![event("MODIFIED", one(32, "10.0.0.5"))], true),
    ])));
    let (api, surprises) = scripted(Arc::clone(&script)).await;
    let (mut membership, watcher) = service(api, folder.path()).open().await.unwrap();
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466"]);
    let watching = tokio::spawn(watcher.run(CancellationToken::new()));
    let seen = lists_until(&mut membership, "a=10.0.0.5:9466", |_| {}).await;
    let expected = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
    assert_eq!(seen, expected.map(|address| format!("a={address}:9466")));
    watching.abort();
    assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
    assert!(script.lock().unwrap().is_empty());
}

// SEMANTICS: S3
#[tokio::test]
async fn a_node_starts_while_the_api_server_is_away_and_finds_the_others_later() {
    let folder = account("first");
    let listed = list(10, &[one(3, "10.0.0.1")]);
    let step = |expects, status, lines, stays| Step { expects, token: "first", status, lines, stays };
    let script = [
        step("", 503, vec![], false),
        step("", 503, vec![], false),
        step("", 200, vec![listed], false),
        step("10", 200, vec![], true),
    ];
    let (api, surprises) = scripted(Script::new(Mutex::new(script.into()))).await;
    let (mut membership, watcher) = service(api, folder.path()).open().await.unwrap();
    assert_eq!(*membership.borrow_and_update(), Arc::default());
    let watching = tokio::spawn(watcher.run(CancellationToken::new()));
    changed(&mut membership).await;
    assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9466"]);
    watching.abort();
    assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_node_starts_without_any_api_server() {
    let folder = account("first");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let api = format!("http://{closed}").parse().unwrap();
    let (mut membership, _watcher) = service(api, folder.path()).open().await.unwrap();
    assert_eq!(*membership.borrow_and_update(), Arc::default());
}

#[tokio::test]
async fn the_api_server_needs_a_certificate_of_the_service_accounts_ca() {
    let issue = || rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (server, another) = (issue(), issue());
    let key = PrivatePkcs8KeyDer::from(server.signing_key.serialize_der());
    let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let folder = account("first");
    for (ca, is_trusted) in [(&server, true), (&another, false)] {
        std::fs::write(folder.path().join("ca.crt"), ca.cert.pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let accept = async { acceptor.accept(listener.accept().await.unwrap().0).await.is_ok() };
        let (opened, accepted) = tokio::join!(service(api, folder.path()).open(), accept);
        assert_eq!(accepted, is_trusted);
        // The connection broke, whether before or after the handshake.
        opened.unwrap();
    }
}

#[tokio::test]
async fn a_service_that_cannot_be_listed_is_an_error_that_says_why() {
    let folder = account("first");
    let step =
        |status, body: &str| Step { expects: "", token: "first", status, lines: vec![body.to_owned()], stays: false };
    let answers = [
        (step(403, ""), "rights"),
        (step(404, ""), "404"),
        (step(200, "not json"), "list and watch endpointslices"),
        (step(200, &json!({"no": 1}).to_string()), "list and watch endpointslices"),
        (step(200, &json!({"metadata": {}, "items": []}).to_string()), "resource version"),
    ];
    let (steps, expected): (VecDeque<Step>, Vec<&str>) = answers.into_iter().unzip();
    let (api, _) = scripted(Script::new(Mutex::new(steps))).await;
    for expected in expected {
        let error = service(api.clone(), folder.path()).open().await.map(|_| ()).unwrap_err();
        let text = Chain(&error).to_string();
        assert!(text.contains("larder/peers") && text.contains(expected), "{text}");
        assert_eq!(text.contains("rights"), expected == "rights", "{text}");
        assert!(!text.contains("first"));
    }
    // Without a token, no request is sent.
    let error = service(api, &folder.path().join("none")).open().await.map(|_| ()).unwrap_err();
    assert!(Chain(&error).to_string().contains("none"), "{}", Chain(&error));
}
