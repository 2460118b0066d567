//! The events of watches: changes of objects, and signals of a test.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::FakeApi;
use super::entry::{Answer, Signal};

/// An open watch, with its position in the log.
struct Watch {
    api: FakeApi,
    plural: String,
    number: u64,
    version: u64,
    signals: usize,
    is_cut: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The lock may be poisoned: a failed test drops its watches too.
        if let Ok(mut inner) = self.api.inner.lock() {
            *inner.open.get_mut(&self.plural).unwrap() -= 1;
        }
    }
}

/// Signals to the open watches of a kind. They panic if there are none: a test that waits for the effect of a signal
/// would otherwise pass without it.
impl FakeApi {
    /// Sends open watches an event about this object, without changing the stored object.
    pub fn tell_watches(&self, plural: &str, kind: &str, object: &Value) {
        self.signal(plural, Signal::Line(json!({"type": kind, "object": object})));
    }

    /// Sends open watches of these kinds a bookmark with the current version.
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

    /// Rejects lists and watches of exactly these kinds with 500, and ends their watches, if any are open.
    pub fn break_watches(&self, plurals: &[&str]) {
        self.lock().broken = plurals.iter().map(|plural| (*plural).to_owned()).collect();
        plurals.iter().for_each(|plural| self.signal_any(plural, Signal::End));
    }

    /// The number of open watches of a kind.
    pub fn open_watches(&self, plural: &str) -> usize {
        self.lock().open.get(plural).copied().unwrap_or_default()
    }

    fn signal(&self, plural: &str, signal: Signal) {
        assert!(self.open_watches(plural) > 0, "no watch of {plural} is open");
        self.signal_any(plural, signal);
    }

    fn signal_any(&self, plural: &str, signal: Signal) {
        self.lock().signals.push((plural.to_owned(), signal));
        self.tell();
    }

    pub(super) fn watch(&self, plural: &str, namespace: &str, version: u64) -> Answer {
        let watch = {
            let mut inner = self.lock();
            inner.watches += 1;
            *inner.open.entry(plural.to_owned()).or_default() += 1;
            let (number, signals) = (inner.watches, inner.signals.len());
            Watch { api: self.clone(), plural: plural.to_owned(), number, version, signals, is_cut: false }
        };
        let namespace = namespace.to_owned();
        let stream = futures::stream::unfold((watch, self.changes()), move |(mut watch, mut changes)| {
            let (api, namespace) = (watch.api.clone(), namespace.clone());
            async move {
                loop {
                    if watch.is_cut {
                        return Some((Err(io::ErrorKind::ConnectionReset.into()), (watch, changes)));
                    }
                    if api.is_dead() {
                        changes.changed().await.ok()?;
                        continue;
                    }
                    let line = match api.signal_after(&mut watch) {
                        Some(Signal::End) => return None,
                        Some(Signal::Cut) => {
                            watch.is_cut = true;
                            "{\"type\":".to_owned()
                        }
                        Some(Signal::Line(line)) => text(&line["type"], &line["object"]),
                        None => match api.change_after(&mut watch, &namespace) {
                            Some((kind, object)) => text(&kind.into(), &object),
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

    fn signal_after(&self, watch: &mut Watch) -> Option<Signal> {
        let inner = self.lock();
        let signals = inner.signals.get(watch.signals..).unwrap_or_default();
        let at = signals.iter().position(|(of, _)| *of == watch.plural)?;
        watch.signals += at + 1;
        Some(signals[at].1.clone())
    }

    /// The kind of a change, and its object.
    fn change_after(&self, watch: &mut Watch, namespace: &str) -> Option<(&'static str, Arc<Value>)> {
        let inner = self.lock();
        let entry = inner.log.iter().find(|entry| {
            let here = namespace.is_empty() || entry.object["metadata"]["namespace"] == namespace;
            entry.version > watch.version && entry.plural == watch.plural && here && watch.number > entry.seen_by
        })?;
        watch.version = entry.version;
        Some((entry.kind, Arc::clone(&entry.object)))
    }
}

/// An event as a line, with its type first, as an API server writes it: clients need not buffer the object then.
fn text(kind: &Value, object: &Value) -> String {
    format!("{{\"type\":{kind},\"object\":{object}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no watch of pods is open")]
    fn a_signal_without_a_watch_fails_the_test() {
        let api = FakeApi::new();
        drop(api.watch("pods", "", 0));
        api.bookmark(&["pods"]);
    }
}
