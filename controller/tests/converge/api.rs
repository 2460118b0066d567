//! An API server in memory, as far as the controller uses one: lists, watches, creates, applies, merges, deletes. It
//! can die for its client at a chosen write, before or after the write counts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use larder_kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use values::{id, merge, name_of, put_item, replace_leaves};

#[path = "api/objects.rs"]
mod objects;
#[path = "api/values.rs"]
mod values;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Plural, namespace and name.
pub(crate) type Id = (String, String, String);

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Id, Value>,
    version: u64,
    uids: u64,
    /// All changes: version, plural, type, object.
    log: Vec<(u64, String, &'static str, Value)>,
    /// The client's writes, leases not counted, as "VERB PLURAL/NAME".
    writes: Vec<String>,
    /// Answers nothing from this write on.
    dies_at: Option<(usize, Dies)>,
    dead: bool,
    /// Refuses every nth of the first 40 writes with this code.
    refuses: Option<(usize, u16)>,
    /// It serves Kueue's API.
    has_kueue: bool,
    /// It serves the kinds of training jobs.
    has_jobs: bool,
    /// It serves PodGroups.
    has_gangs: bool,
    /// It takes the groups off pods.
    drops_groups: bool,
    clock: Clock,
    /// Writes count at once and are answered after this time.
    slow: std::time::Duration,
    /// Refuses writes that begin so, as "VERB NAMESPACE/PLURAL/NAME", with this code.
    denied: Vec<(String, u16, String)>,
    /// Kinds that can be neither listed nor watched.
    broken: Vec<String>,
    /// No lease can be read or written.
    holds_leases: bool,
}

/// When it began, by both clocks.
#[derive(Clone, Copy)]
struct Clock(SystemTime, tokio::time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(SystemTime::now(), tokio::time::Instant::now())
    }
}

impl Clock {
    /// The time, as the API writes it.
    fn now(self) -> String {
        let seconds = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap() + self.1.elapsed();
        k8s_openapi::jiff::Timestamp::from_second(seconds.as_secs() as i64).unwrap().to_string()
    }
}

/// When the client loses its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dies {
    BeforeTheWrite,
    AfterTheWrite,
}

/// The server.
#[derive(Clone)]
pub(crate) struct Api {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<watch::Sender<u64>>,
    clock: Clock,
}

/// What is read for training jobs.
const OF_JOBS: [&str; 4] = ["trainingjobs", "jobtypes", "queues", "priorityclasses"];

impl Api {
    pub(crate) fn new() -> Self {
        let clock = Clock::default();
        let inner = Inner { clock, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)), changed: Arc::new(watch::Sender::new(0)), clock }
    }

    pub(crate) fn client(&self) -> larder_kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        larder_kube::Client::new(service, "default")
    }

    /// The time, as the API writes it.
    pub(crate) fn now(&self) -> String {
        self.clock.now()
    }

    pub(crate) fn answer_after(&self, time: std::time::Duration) {
        self.lock().slow = time;
    }

    /// Refuses writes that begin with `what`, written "VERB NAMESPACE/PLURAL/NAME", until [`Self::allow`].
    pub(crate) fn deny(&self, what: &str, code: u16) {
        self.deny_saying(what, code, "Denied");
    }

    /// The same with these words.
    pub(crate) fn deny_saying(&self, what: &str, code: u16, message: &str) {
        self.lock().denied.push((what.to_owned(), code, message.to_owned()));
    }

    pub(crate) fn allow(&self) {
        self.lock().denied.clear();
    }

    /// Neither lists nor watches these kinds, or does so again.
    pub(crate) fn break_watches(&self, plurals: &[&str]) {
        self.lock().broken = plurals.iter().map(|plural| (*plural).to_owned()).collect();
        self.tell();
    }

    pub(crate) fn hold_leases(&self) {
        self.lock().holds_leases = true;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Until something changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn die_at(&self, write: usize, dies: Dies) {
        self.lock().dies_at = Some((write, dies));
    }

    pub(crate) fn refuse_every(&self, nth: usize, code: u16) {
        self.lock().refuses = Some((nth, code));
    }

    pub(crate) fn serve_kueue(&self, serves: bool) {
        self.lock().has_kueue = serves;
    }

    pub(crate) fn serve_jobs(&self, serves: bool) {
        self.lock().has_jobs = serves;
    }

    /// Serves PodGroups. `keeps`: and pods have them.
    pub(crate) fn serve_gangs(&self, keeps: bool) {
        let mut inner = self.lock();
        (inner.has_gangs, inner.drops_groups) = (true, !keeps);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    pub(crate) fn revive(&self) {
        let mut inner = self.lock();
        (inner.dead, inner.dies_at) = (false, None);
    }

    pub(crate) fn writes(&self) -> Vec<String> {
        self.lock().writes.clone()
    }

    pub(crate) fn list(&self, plural: &str) -> Vec<Value> {
        self.lock().objects.iter().filter(|((of, ..), _)| of == plural).map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn all(&self) -> BTreeMap<Id, Value> {
        self.lock().objects.clone()
    }

    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.lock().objects.get(&id(plural, namespace, name)).cloned()
    }

    /// Puts an object as somebody else would.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        let (namespace, name) = name_of(&object);
        self.lock().store(id(plural, &namespace, &name), object);
        self.tell();
    }

    /// Changes an object as somebody else would.
    pub(crate) fn change(&self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut inner = self.lock();
        let id = id(plural, namespace, name);
        let Some(mut object) = inner.objects.get(&id).cloned() else { return };
        let before = object.clone();
        change(&mut object);
        if object != before {
            inner.store(id, object);
            drop(inner);
            self.tell();
        }
    }

    pub(crate) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        self.lock().delete(&id(plural, namespace, name));
        self.tell();
    }

    fn tell(&self) {
        let version = self.lock().version;
        self.changed.send_replace(version);
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let query: BTreeMap<String, String> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        if path == ["apis"] && !self.is_dead() {
            return self.groups();
        }
        let path = if path[0] == "api" { &path[2..] } else { &path[3..] };
        let (namespace, path) = match path {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            path => ("", path),
        };
        let (plural, name, sub) = match path {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, sub] => (*plural, *name, *sub),
            _ => panic!("{:?}", parts.uri),
        };
        if self.is_dead() {
            return std::future::pending().await;
        }
        if plural == "leases" && self.lock().holds_leases {
            return std::future::pending().await;
        }
        if parts.method == Method::GET {
            if name.is_empty() && self.lock().broken.iter().any(|broken| broken == plural) {
                return status(500, "Injected");
            }
            if OF_JOBS.contains(&plural) && name.is_empty() && !self.lock().has_jobs {
                return status(403, "Forbidden");
            }
            if query.get("watch").is_some_and(|watch| watch == "true") {
                return self.watch(plural, namespace, query["resourceVersion"].parse().unwrap());
            }
            return self.read(plural, namespace, name);
        }
        let is_trial = query.get("dryRun").is_some_and(|dry_run| dry_run == "All");
        if plural != "leases" && !is_trial {
            let refused = {
                let mut inner = self.lock();
                let nth = inner.writes.len();
                let method = &parts.method;
                inner.writes.push(format!("{method} {plural}/{name}"));
                match inner.dies_at {
                    Some((at, Dies::BeforeTheWrite)) if at == nth => inner.dead = true,
                    _ => {}
                }
                // For a while: a rhythm of refusals and one of tries could be the same for ever.
                inner.refuses.filter(|(every, _)| nth < 40 && nth % every == every - 1).map(|(_, code)| code)
            };
            if self.is_dead() {
                self.tell();
                return std::future::pending().await;
            }
            if let Some(code) = refused {
                return status(code, "Injected");
            }
        }
        let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        let named = if name.is_empty() { name_of(&body).1 } else { name.to_owned() };
        let what = format!("{} {namespace}/{plural}/{named}", parts.method);
        let what = if is_trial { format!("TRY {namespace}/{plural}/{named}") } else { what };
        let denied = self.lock().denied.iter().find(|(begins, ..)| what.starts_with(begins)).cloned();
        if let Some((_, code, message)) = denied {
            return status(code, &message);
        }
        if is_trial {
            return ok(&body);
        }
        let written = self.write(&parts.method, plural, namespace, name, sub, body, &parts.headers);
        self.tell();
        let slow = self.lock().slow;
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        {
            let mut inner = self.lock();
            let count = inner.writes.len();
            if plural != "leases"
                && inner.dies_at.is_some_and(|(at, dies)| dies == Dies::AfterTheWrite && at + 1 == count)
            {
                inner.dead = true;
            }
        }
        if self.is_dead() {
            self.tell();
            return std::future::pending().await;
        }
        written
    }

    fn groups(&self) -> Answer {
        let version = json!({"groupVersion": "kueue.x-k8s.io/v1beta1", "version": "v1beta1"});
        let group = json!({"name": "kueue.x-k8s.io", "versions": [version], "preferredVersion": version});
        let groups = if self.lock().has_kueue { json!([group]) } else { json!([]) };
        ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
    }

    fn read(&self, plural: &str, namespace: &str, name: &str) -> Answer {
        if !name.is_empty() {
            return self.get(plural, namespace, name).map_or_else(|| status(404, "NotFound"), |object| ok(&object));
        }
        let inner = self.lock();
        let of_kueue = ["workloads", "admissionchecks", "resourceflavors", "workloadpriorityclasses"];
        if of_kueue.contains(&plural) && !inner.has_kueue || plural == "podgroups" && !inner.has_gangs {
            return status(404, "NotFound");
        }
        let items: Vec<&Value> = inner
            .objects
            .iter()
            .filter(|((of, space, _), _)| of == plural && (namespace.is_empty() || space == namespace))
            .map(|(_, object)| object)
            .collect();
        ok(&json!({
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {"resourceVersion": inner.version.to_string()},
            "items": items,
        }))
    }

    fn watch(&self, plural: &str, namespace: &str, from: u64) -> Answer {
        let (api, plural, namespace) = (self.clone(), plural.to_owned(), namespace.to_owned());
        let stream = futures::stream::unfold((from, self.changes()), move |(from, mut changes)| {
            let (api, plural, namespace) = (api.clone(), plural.clone(), namespace.clone());
            async move {
                loop {
                    let next = api
                        .lock()
                        .log
                        .iter()
                        .find(|(version, of, _, object)| {
                            let here = namespace.is_empty() || object["metadata"]["namespace"] == namespace.as_str();
                            *version > from && *of == plural && here
                        })
                        .cloned();
                    if api.lock().broken.contains(&plural) {
                        return None;
                    }
                    if let Some((version, _, kind, object)) = next.filter(|_| !api.is_dead()) {
                        let line = json!({"type": kind, "object": object}).to_string() + "\n";
                        let frame = hyper::body::Frame::data(Bytes::from(line));
                        return Some((Ok::<_, Infallible>(frame), (version, changes)));
                    }
                    changes.changed().await.ok()?;
                }
            }
        });
        Response::new(StreamBody::new(stream).boxed_unsync())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a request")]
    fn write(
        &self,
        method: &Method,
        plural: &str,
        namespace: &str,
        name: &str,
        sub: &str,
        body: Value,
        headers: &http::HeaderMap,
    ) -> Answer {
        let mut inner = self.lock();
        let name = if name.is_empty() { name_of(&body).1 } else { name.to_owned() };
        let id = id(plural, namespace, &name);
        let there = inner.objects.get(&id).cloned();
        match *method {
            Method::POST if there.is_some() => status(409, "AlreadyExists"),
            Method::POST => {
                let mut object = body;
                if plural == "pods" && inner.drops_groups {
                    object["spec"].as_object_mut().unwrap().remove("schedulingGroup");
                }
                ok(&inner.store(id, object))
            }
            Method::PUT => match there {
                Some(there) if there["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"] => {
                    ok(&inner.store(id, body))
                }
                Some(_) => status(409, "Conflict"),
                None => status(404, "NotFound"),
            },
            Method::PATCH => {
                let apply = headers["content-type"] == "application/apply-patch+yaml";
                let version = &body["metadata"]["resourceVersion"];
                let mut object = match there {
                    Some(there) if !version.is_null() && there["metadata"]["resourceVersion"] != *version => {
                        return status(409, "Conflict");
                    }
                    Some(there) => there,
                    None if apply && sub.is_empty() => json!({}),
                    None => return status(404, "NotFound"),
                };
                if apply {
                    if ["workloads", "admissionchecks"].contains(&plural) {
                        // Others have their parts of these lists.
                        body["status"].as_object().unwrap().iter().for_each(|(list, items)| {
                            items
                                .as_array()
                                .unwrap()
                                .iter()
                                .for_each(|item| put_item(&mut object["status"][list], item));
                        });
                    // Of all others one owner applies whole lists and a whole status.
                    } else if sub == "status" {
                        object["status"] = body["status"].clone();
                    } else {
                        replace_leaves(&mut object, &body);
                    }
                } else {
                    merge(&mut object, &body);
                }
                ok(&inner.store(id, object))
            }
            Method::DELETE => {
                let uid = &body["preconditions"]["uid"];
                match there {
                    None => status(404, "NotFound"),
                    Some(there) if !uid.is_null() && there["metadata"]["uid"] != *uid => status(409, "Conflict"),
                    Some(_) => match inner.delete(&id) {
                        Some(left) => ok(&left),
                        None => ok(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"})),
                    },
                }
            }
            _ => panic!("{method}"),
        }
    }
}

fn ok(object: &Value) -> Answer {
    Response::new(Full::new(Bytes::from(object.to_string())).boxed_unsync())
}

fn status(code: u16, reason: &str) -> Answer {
    let status = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason,
        "message": reason,
        "code": code,
    });
    let mut answer = ok(&status);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer
}
