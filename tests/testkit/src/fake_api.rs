//! An API server in memory, as far as Larder uses one: lists, watches, creates, applies, merges, deletes. It can die for
//! its client at a chosen write, before or after the write counts, refuse what a test names, and leave watches without
//! news.
//!
//! It knows no kinds: objects are what was put, by plural, namespace and name, and selectors are ignored.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::SecondsFormat;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::util::BoxCloneService;

use entry::{Answer, Entry, Signal};
use values::{id, merge, name_of, put_item, replace_leaves};

mod entry;
mod log;
mod objects;
mod values;

pub use values::Id;

/// How the server answers requests to list or watch a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// With its objects.
    #[default]
    Serves,
    /// With this status.
    Refuses(u16),
    /// It lists them, and refuses to watch them with this status.
    RefusesWatches(u16),
    /// Not at all: the connection breaks after this time.
    Hangs(Duration),
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Id, Value>,
    version: u64,
    uids: u64,
    /// All changes.
    log: Vec<Entry>,
    /// What open watches are told besides.
    signals: Vec<(String, Signal)>,
    /// How many watches were opened.
    watches: u64,
    /// How often kinds were listed.
    lists: BTreeMap<String, usize>,
    /// The client's writes, leases not counted, as "VERB PLURAL/NAME".
    writes: Vec<String>,
    /// Answers nothing from this write on.
    dies_at: Option<(usize, Dies)>,
    dead: bool,
    /// Refuses every nth of the first 40 writes with this code.
    refuses: Option<(usize, u16)>,
    /// The API groups besides the core one.
    groups: Vec<Value>,
    modes: BTreeMap<String, Mode>,
    /// Kinds that can be neither listed nor watched.
    broken: Vec<String>,
    /// If there are any, a request for another kind panics.
    expected: Vec<String>,
    /// Kinds whose status has lists of which others own parts.
    shared: Vec<String>,
    /// Fields that are removed from new objects of a kind: plural, object, field.
    dropped: Vec<(String, String, String)>,
    clock: Clock,
    /// Writes count at once and are answered after this time.
    slow: Duration,
    /// Refuses writes that begin so, as "VERB NAMESPACE/PLURAL/NAME", with this code.
    denied: Vec<(String, u16, String)>,
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
        chrono::DateTime::from_timestamp_secs(seconds.as_secs() as i64)
            .unwrap()
            .to_rfc3339_opts(SecondsFormat::Secs, true)
    }
}

/// When the client loses its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// The write does not count.
    BeforeTheWrite,
    /// The write counts, and is not answered.
    AfterTheWrite,
}

/// The server.
#[derive(Clone)]
pub struct FakeApi {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<watch::Sender<u64>>,
    clock: Clock,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeApi {
    /// A server without objects, which serves all kinds and no group.
    pub fn new() -> Self {
        let clock = Clock::default();
        let inner = Inner { clock, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)), changed: Arc::new(watch::Sender::new(0)), clock }
    }

    /// The server as a client's transport.
    pub fn service<B>(&self) -> BoxCloneService<Request<B>, Answer, io::Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: std::fmt::Debug,
    {
        let api = self.clone();
        BoxCloneService::new(tower::service_fn(move |request: Request<B>| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                api.answer(&head, &body).await
            }
        }))
    }

    /// Answers requests to list or watch these kinds so from now on. Open watches go on.
    pub fn turn(&self, plurals: &[&str], mode: Mode) {
        let mut inner = self.lock();
        for plural in plurals {
            inner.modes.insert((*plural).to_owned(), mode);
        }
    }

    /// Refuses to list or watch exactly these kinds with 500, and ends their open watches.
    pub fn break_watches(&self, plurals: &[&str]) {
        self.lock().broken = plurals.iter().map(|plural| (*plural).to_owned()).collect();
        self.end_watches(plurals);
    }

    /// Panics at a request for any other kind.
    pub fn expect_only(&self, plurals: &[&str]) {
        self.lock().expected = plurals.iter().map(|plural| (*plural).to_owned()).collect();
    }

    /// Has these API groups, each with one version.
    pub fn have_groups(&self, groups: &[(&str, &str)]) {
        let group = |(name, version): &(&str, &str)| {
            let version = json!({"groupVersion": format!("{name}/{version}"), "version": version});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        };
        self.lock().groups = groups.iter().map(group).collect();
    }

    /// Others own parts of the lists in the status of these kinds: an apply adds to them.
    pub fn share_lists(&self, plurals: &[&str]) {
        self.lock().shared = plurals.iter().map(|plural| (*plural).to_owned()).collect();
    }

    /// Removes a field of `part` from each new object of a kind, as a server does that does not know it.
    pub fn drop_field(&self, plural: &str, part: &str, field: &str) {
        self.lock().dropped.push((plural.to_owned(), part.to_owned(), field.to_owned()));
    }

    /// Keeps all fields of new objects again.
    pub fn keep_fields(&self) {
        self.lock().dropped.clear();
    }

    /// How often a kind was listed.
    pub fn lists(&self, plural: &str) -> usize {
        self.lock().lists.get(plural).copied().unwrap_or(0)
    }

    /// The time, as the API writes it.
    pub fn now(&self) -> String {
        self.clock.now()
    }

    /// Answers writes after this time; they count at once.
    pub fn answer_after(&self, time: Duration) {
        self.lock().slow = time;
    }

    /// Refuses writes that begin with `what`, written "VERB NAMESPACE/PLURAL/NAME", until [`Self::allow`].
    pub fn deny(&self, what: &str, code: u16) {
        self.deny_saying(what, code, "Denied");
    }

    /// The same with these words.
    pub fn deny_saying(&self, what: &str, code: u16, message: &str) {
        self.lock().denied.push((what.to_owned(), code, message.to_owned()));
    }

    /// Refuses nothing any more that was denied.
    pub fn allow(&self) {
        self.lock().denied.clear();
    }

    /// Answers no request about a lease from now on.
    pub fn hold_leases(&self) {
        self.lock().holds_leases = true;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Until something changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Answers nothing from this write on.
    pub fn die_at(&self, write: usize, dies: Dies) {
        self.lock().dies_at = Some((write, dies));
    }

    /// Refuses every nth of the first 40 writes with this code.
    pub fn refuse_every(&self, nth: usize, code: u16) {
        self.lock().refuses = Some((nth, code));
    }

    /// True if it died at a write.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Answers again.
    pub fn revive(&self) {
        let mut inner = self.lock();
        (inner.dead, inner.dies_at) = (false, None);
    }

    /// The client's writes, leases not counted, as "VERB PLURAL/NAME".
    pub fn writes(&self) -> Vec<String> {
        self.lock().writes.clone()
    }

    /// All objects of a kind.
    pub fn list(&self, plural: &str) -> Vec<Value> {
        self.lock().objects.iter().filter(|((of, ..), _)| of == plural).map(|(_, object)| object.clone()).collect()
    }

    /// All objects.
    pub fn all(&self) -> BTreeMap<Id, Value> {
        self.lock().objects.clone()
    }

    /// One object.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.lock().objects.get(&id(plural, namespace, name)).cloned()
    }

    /// Puts an object as somebody else would.
    pub fn put(&self, plural: &str, object: Value) {
        let (namespace, name) = name_of(&object);
        self.lock().store(id(plural, &namespace, &name), object);
        self.tell();
    }

    /// The same, but open watches are not told.
    pub fn put_unseen(&self, plural: &str, object: Value) {
        let (namespace, name) = name_of(&object);
        let mut inner = self.lock();
        let watches = inner.watches;
        inner.store(id(plural, &namespace, &name), object);
        inner.log.last_mut().unwrap().seen_by = watches;
    }

    /// Changes an object as somebody else would.
    pub fn change(&self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
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

    /// Deletes an object as somebody else would.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        self.lock().delete(&id(plural, namespace, name));
        self.tell();
    }

    fn tell(&self) {
        let version = self.lock().version;
        self.changed.send_replace(version);
    }

    async fn answer(&self, parts: &Parts, body: &[u8]) -> io::Result<Answer> {
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
            let groups = self.lock().groups.clone();
            return Ok(ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})));
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
        let expected = self.lock().expected.clone();
        assert!(expected.is_empty() || expected.iter().any(|known| known == plural), "{} {}", parts.method, parts.uri);
        if parts.method == Method::GET {
            if !name.is_empty() {
                return Ok(self
                    .get(plural, namespace, name)
                    .map_or_else(|| status(404, "NotFound"), |object| ok(&object)));
            }
            let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
            let is_broken = self.lock().broken.iter().any(|broken| broken == plural);
            let mode = self.lock().modes.get(plural).copied().unwrap_or_default();
            return match mode {
                _ if is_broken => Ok(status(500, "Injected")),
                Mode::Hangs(time) => {
                    tokio::time::sleep(time).await;
                    Err(io::ErrorKind::TimedOut.into())
                }
                Mode::Refuses(code) => Ok(status(code, "Injected")),
                Mode::RefusesWatches(code) if is_watch => Ok(status(code, "Injected")),
                _ if is_watch => Ok(self.watch(plural, namespace, query["resourceVersion"].parse().unwrap())),
                _ => Ok(self.read(plural, namespace)),
            };
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
                return Ok(status(code, "Injected"));
            }
        }
        let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap() };
        let named = if name.is_empty() { name_of(&body).1 } else { name.to_owned() };
        let what = format!("{} {namespace}/{plural}/{named}", parts.method);
        let what = if is_trial { format!("TRY {namespace}/{plural}/{named}") } else { what };
        let denied = self.lock().denied.iter().find(|(begins, ..)| what.starts_with(begins)).cloned();
        if let Some((_, code, message)) = denied {
            return Ok(status(code, &message));
        }
        if is_trial {
            return Ok(ok(&body));
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
        Ok(written)
    }

    fn read(&self, plural: &str, namespace: &str) -> Answer {
        let mut inner = self.lock();
        *inner.lists.entry(plural.to_owned()).or_default() += 1;
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
                for (_, part, field) in inner.dropped.iter().filter(|(of, ..)| of == plural) {
                    object[part.as_str()].as_object_mut().unwrap().remove(field);
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
                    if inner.shared.iter().any(|shared| shared == plural) {
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
    let body = Full::new(Bytes::from(object.to_string())).map_err(|never| match never {});
    Response::new(body.boxed_unsync())
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
