use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use larder_kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::http::verbs::Verbs;
use crate::index::Index;
use crate::load::Size;
use crate::ring::Verb;

/// A fake API that accepts Events. It answers with the given status codes in order, then with 201.
#[derive(Clone, Default)]
struct Events {
    made: Arc<Mutex<Vec<Value>>>,
    codes: Arc<Mutex<VecDeque<u16>>>,
}

impl Events {
    fn answering(codes: &[u16]) -> Self {
        Self { codes: Arc::new(Mutex::new(codes.iter().copied().collect())), ..Self::default() }
    }

    fn client(&self) -> Client {
        let events = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let events = events.clone();
            async move {
                let (parts, body) = request.into_parts();
                let event: Value = serde_json::from_slice(&body.collect().await?.to_bytes()).expect("JSON");
                let namespace = event["metadata"]["namespace"].as_str().expect("a namespace").to_owned();
                let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
                assert_eq!((parts.method.as_str(), parts.uri.path()), ("POST", path.as_str()));
                events.made.lock().unwrap().push(event.clone());
                let code = events.codes.lock().unwrap().pop_front().unwrap_or(201);
                let status =
                    json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": ""});
                let answer = if code == 201 { event } else { status };
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Error>(answer.expect("an answer"))
            }
        });
        Client::new(service, "default")
    }

    /// The Events that result from these notices.
    async fn emitted(&self, notices: &[Notice]) -> Vec<Value> {
        let (sender, receiver) = mpsc::channel(WAITING);
        for notice in notices {
            sender.try_send(notice.clone()).unwrap();
        }
        drop(sender);
        emit(self.client(), receiver).await;
        self.made.lock().unwrap().clone()
    }
}

fn question(uid: &str, required: Option<u8>) -> Question {
    let trouble = Some("there is no Dataset a/none that pods of a may read".to_owned());
    Question { pod: "a/p".into(), uid: uid.into(), required, trouble, ..Question::default() }
}

fn notice(uid: &str, required: Option<u8>) -> Notice {
    Notice::about(&question(uid, required)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_one_event_about_the_same_trouble() {
    let events = Events::default();
    let emitted =
        events.emitted(&[notice("1", None), notice("1", None), notice("2", None), notice("1", Some(90))]).await;
    let of = |event: &Value| {
        let [uid, note] = [&event["regarding"]["uid"], &event["note"]].map(|part| part.as_str().unwrap().to_owned());
        (uid, note)
    };
    let equal = "there is no Dataset a/none that pods of a may read: no node is preferred for the pod".to_owned();
    let none = "there is no Dataset a/none that pods of a may read: the pod requires its data, so no node is suitable";
    let expected = [("1".to_owned(), equal.clone()), ("2".to_owned(), equal), ("1".to_owned(), none.to_owned())];
    assert_eq!(emitted.iter().map(of).collect::<Vec<_>>(), expected);
    let first = &emitted[0];
    assert_eq!((&first["type"], &first["reason"]), (&json!("Warning"), &json!("DatasetUnknown")));
    let regarding = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "p", "uid": "1"});
    assert_eq!(first["regarding"], regarding);
    // After a restart, the program finds that the Event already exists.
    let again = Events::answering(&[409]).emitted(&[notice("1", None), notice("1", None)]).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0]["metadata"], first["metadata"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_rejected_is_not_retried_and_one_without_an_answer_is() {
    let events = Events::answering(&[403, 503, 429]);
    let emitted = events.emitted(&[notice("1", None), notice("1", None), notice("2", None)]).await;
    assert_eq!(emitted.len(), 2);
    let emitted = events.emitted(&[notice("2", None), notice("2", None), notice("2", None)]).await;
    assert_eq!(emitted.len(), 4);
}

#[test]
fn a_question_without_a_pod_or_trouble_yields_no_notice() {
    assert_eq!(Notice::about(&question("", None)), None);
    assert_eq!(Notice::about(&Question { pod: "/p".into(), ..question("1", None) }), None);
    assert_eq!(Notice::about(&Question { trouble: None, ..question("1", None) }), None);
}

#[test]
fn names_and_notes_are_as_long_as_they_may_be() {
    let long = Question { pod: format!("a/{}-{}", "n".repeat(199), "x".repeat(53)), ..question("1", None) };
    let long = Question { trouble: Some("\u{e4}".repeat(2_000)), ..long };
    let notice = Notice::about(&long).unwrap();
    assert_eq!(notice.note.len(), NOTE_BYTES - 1, "the last character has two bytes");
    assert!(notice.note.ends_with('…'), "{}", notice.note);
    let name = notice.event().metadata.name.unwrap();
    assert!(name.len() <= 253 && name.starts_with(&format!("{}.", "n".repeat(199))), "{name}");
}

#[test]
fn the_oldest_notices_are_forgotten() {
    let mut remembered = Remembered::default();
    (0..REMEMBERED + 2).for_each(|id| remembered.add(&id.to_string()));
    assert_eq!((remembered.hashes.len(), remembered.order.len()), (REMEMBERED, REMEMBERED));
    assert!(!remembered.has("1") && remembered.has("2"));
}

#[tokio::test]
async fn a_request_about_such_a_pod_leads_to_a_notice() {
    let size = Size { nodes: 1, datasets: 1, pods: 0 };
    let mut index = Index::new(Vec::new());
    size.events().into_iter().for_each(|event| index.apply(event));
    let shown = Arc::new(ArcSwap::from(index.show()));
    let (verbs, keeper) = Verbs::new(Arc::default(), shown, Arc::default());
    let (sender, mut notices) = mpsc::channel(WAITING);
    tokio::spawn(keeper.run(sender));
    verbs.answer(Verb::Filter, size.request(1, Some(0))).unwrap();
    let annotations = json!({"larder.dev/datasets": "none", "larder.dev/data": "required"});
    let metadata = json!({"name": "p", "namespace": "a", "uid": "1", "annotations": annotations});
    let request = json!({"Pod": {"metadata": metadata, "spec": {}}, "NodeNames": ["n"]}).to_string();
    verbs.answer(Verb::Filter, request.into()).unwrap();
    assert_eq!(notices.recv().await, Some(notice("1", Some(90))));
}
