//! What watches are told: changes of objects, and what a test says besides.

use std::io;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::FakeApi;
use super::entry::{Answer, Signal};

/// Up to where a watch was told.
struct Watch {
    number: u64,
    version: u64,
    signals: usize,
    is_cut: bool,
}

impl FakeApi {
    /// Tells open watches of a kind of this change of an object, which stays as it is.
    pub fn tell_watches(&self, plural: &str, kind: &str, object: &Value) {
        self.signal(plural, Signal::Line(json!({"type": kind, "object": object})));
    }

    /// Tells open watches of these kinds that they are current.
    pub fn bookmark(&self, plurals: &[&str]) {
        for plural in plurals {
            let metadata = json!({"resourceVersion": self.lock().version.to_string()});
            self.tell_watches(plural, "BOOKMARK", &json!({"kind": "X", "apiVersion": "v1", "metadata": metadata}));
        }
    }

    /// Breaks open watches of these kinds in the middle of a line.
    pub fn cut_watches(&self, plurals: &[&str]) {
        plurals.iter().for_each(|plural| self.signal(plural, Signal::Cut));
    }

    /// Ends open watches of these kinds.
    pub fn end_watches(&self, plurals: &[&str]) {
        plurals.iter().for_each(|plural| self.signal(plural, Signal::End));
    }

    fn signal(&self, plural: &str, signal: Signal) {
        self.lock().signals.push((plural.to_owned(), signal));
        self.tell();
    }

    pub(super) fn watch(&self, plural: &str, namespace: &str, version: u64) -> Answer {
        let watch = {
            let mut inner = self.lock();
            inner.watches += 1;
            Watch { number: inner.watches, version, signals: inner.signals.len(), is_cut: false }
        };
        let (api, plural, namespace) = (self.clone(), plural.to_owned(), namespace.to_owned());
        let stream = futures::stream::unfold((watch, self.changes()), move |(mut watch, mut changes)| {
            let (api, plural, namespace) = (api.clone(), plural.clone(), namespace.clone());
            async move {
                loop {
                    if watch.is_cut {
                        return Some((Err(io::ErrorKind::ConnectionReset.into()), (watch, changes)));
                    }
                    if api.is_dead() {
                        changes.changed().await.ok()?;
                        continue;
                    }
                    let line = match api.signal_after(&mut watch, &plural) {
                        Some(Signal::End) => return None,
                        Some(Signal::Cut) => {
                            watch.is_cut = true;
                            "{\"type\":".to_owned()
                        }
                        Some(Signal::Line(line)) => line.to_string() + "\n",
                        None => match api.change_after(&mut watch, &plural, &namespace) {
                            Some(line) => line.to_string() + "\n",
                            None => {
                                changes.changed().await.ok()?;
                                continue;
                            }
                        },
                    };
                    return Some((Ok(Frame::data(Bytes::from(line))), (watch, changes)));
                }
            }
        });
        Response::new(StreamBody::new(stream).boxed_unsync())
    }

    fn signal_after(&self, watch: &mut Watch, plural: &str) -> Option<Signal> {
        let inner = self.lock();
        let signals = inner.signals.get(watch.signals..).unwrap_or_default();
        let at = signals.iter().position(|(of, _)| of == plural)?;
        watch.signals += at + 1;
        Some(signals[at].1.clone())
    }

    fn change_after(&self, watch: &mut Watch, plural: &str, namespace: &str) -> Option<Value> {
        let inner = self.lock();
        let entry = inner.log.iter().find(|entry| {
            let here = namespace.is_empty() || entry.object["metadata"]["namespace"] == namespace;
            entry.version > watch.version && entry.plural == plural && here && watch.number > entry.seen_by
        })?;
        watch.version = entry.version;
        Some(json!({"type": entry.kind, "object": entry.object}))
    }
}
