//! An in-memory API server with the requests that Larder uses: list, watch, create, apply, merge patch, delete. It can
//! stop answering its client at a chosen write, before or after the write takes effect. It can reject requests that a
//! test chooses, and withhold events from watches.
//!
//! It has no schemas: objects are stored as they were put, by plural, namespace and name. It ignores selectors.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use chrono::SecondsFormat;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower::util::BoxCloneService;

use entry::{Answer, Entry, Signal};
use values::{id, name_of};

mod answer;
mod entry;
mod log;
mod objects;
mod values;

pub use values::{Id, merge};

/// How the server answers requests to list or watch a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Serves the objects of the kind.
    #[default]
    Serves,
    /// Rejects with this status.
    Refuses(u16),
    /// Serves lists, but rejects watches with this status.
    RefusesWatches(u16),
    /// Does not answer: the connection breaks after this time.
    Hangs(Duration),
}

#[derive(Default)]
struct Inner {
    /// Shared, so that no lock is held while large ones are written out.
    objects: BTreeMap<Id, Arc<Value>>,
    version: u64,
    uids: u64,
    /// All changes of objects, which watches read.
    log: Vec<Entry>,
    /// Signals to open watches, by plural.
    signals: Vec<(String, Signal)>,
    /// The number of watches that were opened.
    watches: u64,
    /// The number of open watches of each kind.
    open: BTreeMap<String, usize>,
    /// The number of lists of each kind.
    lists: BTreeMap<String, usize>,
    /// The client's writes except those of leases, as "VERB PLURAL/NAME".
    writes: Vec<String>,
    /// The number of the write from which on the server answers nothing.
    dies_at: Option<(usize, Dies)>,
    dead: bool,
    /// `(n, code)`: rejects every nth of the first 40 writes with this code.
    refuses: Option<(usize, u16)>,
    /// The API groups other than the core group.
    groups: Vec<Value>,
    modes: BTreeMap<String, Mode>,
    /// Kinds that can be neither listed nor watched.
    broken: Vec<String>,
    /// If not empty, a request for any other kind panics.
    expected: Vec<String>,
    /// Kinds whose status contains lists that several owners share.
    shared: Vec<String>,
    /// Fields that are removed from new objects of a kind: plural, object, field.
    dropped: Vec<(String, String, String)>,
    clock: Clock,
    /// The delay of responses to writes, which take effect immediately.
    slow: Duration,
    /// Writes to reject: a prefix of "VERB NAMESPACE/PLURAL/NAME", the code and the message.
    denied: Vec<(String, u16, String)>,
    /// Whether requests for leases get no answer.
    holds_leases: bool,
}

/// The start of the server, by the system's clock and by Tokio's clock, which tests may pause.
#[derive(Clone, Copy)]
struct Clock(SystemTime, tokio::time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(SystemTime::now(), tokio::time::Instant::now())
    }
}

impl Clock {
    /// The current time in the API's format.
    fn now(self) -> String {
        let seconds = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap() + self.1.elapsed();
        chrono::DateTime::from_timestamp_secs(seconds.as_secs() as i64)
            .unwrap()
            .to_rfc3339_opts(SecondsFormat::Secs, true)
    }
}

/// Whether the write at which the server dies takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// The write has no effect.
    BeforeTheWrite,
    /// The write takes effect, but gets no answer.
    AfterTheWrite,
}

/// A link to a server, which is well until a test cuts it. Watches that are open stay open.
#[derive(Clone, Debug, Default)]
pub struct Cable {
    is_cut: Arc<AtomicBool>,
}

impl Cable {
    /// Cuts the link, so that each request is reset, or mends it.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

/// The server. Clones share its state.
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
    /// A server without objects that serves all kinds and lists no API groups.
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

    /// As [`Self::service`], over a link that a test may cut.
    pub fn service_over<B>(&self, link: &Cable) -> BoxCloneService<Request<B>, Answer, io::Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: std::fmt::Debug,
    {
        let (service, link) = (self.service::<B>(), link.clone());
        BoxCloneService::new(tower::service_fn(move |request: Request<B>| {
            let (service, link) = (service.clone(), link.clone());
            async move {
                if link.is_cut.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                service.oneshot(request).await
            }
        }))
    }

    /// Serves clients of other processes, without TLS, until the future is dropped.
    pub async fn serve(&self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(self.service());
            let builder = hyper::server::conn::http1::Builder::new();
            connections.spawn(async move { builder.serve_connection(TokioIo::new(stream), service).await });
        }
    }

    /// Sets the mode for new requests to list or watch these kinds. Open watches continue.
    pub fn turn(&self, plurals: &[&str], mode: Mode) {
        let mut inner = self.lock();
        for plural in plurals {
            inner.modes.insert((*plural).to_owned(), mode);
        }
    }

    /// Panics at a request for any other kind.
    pub fn expect_only(&self, plurals: &[&str]) {
        self.lock().expected = plurals.iter().map(|plural| (*plural).to_owned()).collect();
    }

    /// Sets the API groups, each with one version.
    pub fn have_groups(&self, groups: &[(&str, &str)]) {
        let group = |(name, version): &(&str, &str)| {
            let version = json!({"groupVersion": format!("{name}/{version}"), "version": version});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        };
        self.lock().groups = groups.iter().map(group).collect();
    }

    /// Declares that several owners share the lists in the status of these kinds: an apply adds its items.
    pub fn share_lists(&self, plurals: &[&str]) {
        self.lock().shared = plurals.iter().map(|plural| (*plural).to_owned()).collect();
    }

    /// Removes a field of `part` from each new object of a kind, and refuses an apply that has it, as a server with an
    /// older schema does.
    pub fn drop_field(&self, plural: &str, part: &str, field: &str) {
        self.lock().dropped.push((plural.to_owned(), part.to_owned(), field.to_owned()));
    }

    /// Keeps all fields of new objects again.
    pub fn keep_fields(&self) {
        self.lock().dropped.clear();
    }

    /// The number of lists of a kind.
    pub fn lists(&self, plural: &str) -> usize {
        self.lock().lists.get(plural).copied().unwrap_or(0)
    }

    /// The current time in the API's format.
    pub fn now(&self) -> String {
        self.clock.now()
    }

    /// Delays responses to writes by this time. The writes take effect immediately.
    pub fn answer_after(&self, time: Duration) {
        self.lock().slow = time;
    }

    /// Rejects writes of which "VERB NAMESPACE/PLURAL/NAME" begins with `what`, until [`Self::allow`].
    pub fn deny(&self, what: &str, code: u16) {
        self.deny_saying(what, code, "Denied");
    }

    /// As [`Self::deny`], with this message.
    pub fn deny_saying(&self, what: &str, code: u16, message: &str) {
        self.lock().denied.push((what.to_owned(), code, message.to_owned()));
    }

    /// Removes all rejections of [`Self::deny`].
    pub fn allow(&self) {
        self.lock().denied.clear();
    }

    /// Stops answering requests for leases.
    pub fn hold_leases(&self) {
        self.lock().holds_leases = true;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// A receiver that is notified of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Stops answering at the given write.
    pub fn die_at(&self, write: usize, dies: Dies) {
        self.lock().dies_at = Some((write, dies));
    }

    /// Rejects every nth of the first 40 writes with this code.
    pub fn refuse_every(&self, nth: usize, code: u16) {
        self.lock().refuses = Some((nth, code));
    }

    /// Whether the server has died at a write.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Brings a dead server back.
    pub fn revive(&self) {
        let mut inner = self.lock();
        (inner.dead, inner.dies_at) = (false, None);
    }

    /// The client's writes except those of leases, as "VERB PLURAL/NAME".
    pub fn writes(&self) -> Vec<String> {
        self.lock().writes.clone()
    }

    /// All objects of a kind.
    pub fn list(&self, plural: &str) -> Vec<Value> {
        self.lock()
            .objects
            .iter()
            .filter(|((of, ..), _)| of == plural)
            .map(|(_, object)| Value::clone(object))
            .collect()
    }

    /// All objects.
    pub fn all(&self) -> BTreeMap<Id, Value> {
        self.lock().objects.iter().map(|(id, object)| (id.clone(), Value::clone(object))).collect()
    }

    /// One object.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let object = self.lock().objects.get(&id(plural, namespace, name)).cloned()?;
        Some(Value::clone(&object))
    }

    /// Creates or replaces an object as another client would.
    pub fn put(&self, plural: &str, object: Value) {
        let (namespace, name) = name_of(&object);
        self.lock().store(id(plural, &namespace, &name), object);
        self.tell();
    }

    /// As [`Self::put`], without an event for open watches.
    pub fn put_unseen(&self, plural: &str, object: Value) {
        let (namespace, name) = name_of(&object);
        let mut inner = self.lock();
        let watches = inner.watches;
        inner.store(id(plural, &namespace, &name), object);
        inner.log.last_mut().unwrap().seen_by = watches;
    }

    /// Changes an object as another client would.
    pub fn change(&self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut inner = self.lock();
        let id = id(plural, namespace, name);
        let Some(before) = inner.objects.get(&id).cloned() else { return };
        let mut object = Value::clone(&before);
        change(&mut object);
        if object != *before {
            inner.store(id, object);
            drop(inner);
            self.tell();
        }
    }

    /// Deletes an object as another client would.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        self.lock().delete(&id(plural, namespace, name));
        self.tell();
    }

    fn tell(&self) {
        let version = self.lock().version;
        self.changed.send_replace(version);
    }
}
