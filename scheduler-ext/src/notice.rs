//! One Kubernetes Event for each pod that names a Dataset which does not exist or which the pod may not read. `kubectl
//! describe pod` then shows why no node is preferred, or why no node is suitable.
//!
//! A pod gets one Event for the same problem, no matter how many requests are about it. The Event's name is derived
//! from the pod and the problem, so neither another replica nor a restart creates a second one. No answer waits for an
//! Event. If Events cannot be created, a single log line reports it, and nothing else changes.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use larder_kube::api::PostParams;
use larder_kube::events::{NOTE_BYTES, Reporter, Severity, event, name, object, within};
use larder_kube::{Api, Client, Error};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::question::Question;

/// The limit of queued notices; more are dropped. The scheduler repeats its requests about a pending pod, so the notice
/// comes again.
pub const WAITING: usize = 256;
/// The limit of remembered notices. The oldest are forgotten first; if they come again, their Events already exist.
const REMEMBERED: usize = 8192;
/// The minimum interval between two Events, which bounds the load of a user who invents many names.
const PAUSE: Duration = Duration::from_millis(100);
/// The timeout of a request to the API.
const PATIENCE: Duration = Duration::from_secs(10);
const REPORTER: Reporter<'_> =
    Reporter { controller: "larder-scheduler-ext", instance: "larder-scheduler-ext", action: "Scheduling" };

/// A message for the user of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    namespace: String,
    name: String,
    uid: String,
    note: String,
}

impl Notice {
    /// The notice about a question's pod; `None` if there is no problem, or the pod does not exist in the API.
    pub fn about(question: &Question) -> Option<Self> {
        let trouble = question.trouble.as_deref()?;
        let (namespace, name) = question.pod.split_once('/')?;
        let follows = match question.required {
            Some(_) => "the pod requires its data, so no node is suitable",
            None => "no node is preferred for the pod",
        };
        // Truncated here, because notices are queued and remembered.
        let note = within(&format!("{trouble}: {follows}"), NOTE_BYTES);
        let is_pod = [namespace, name, &question.uid].into_iter().all(|part| !part.is_empty());
        is_pod.then(|| Self { namespace: namespace.into(), name: name.into(), uid: question.uid.clone(), note })
    }

    /// The name of the Event, unique for the pod and the note.
    fn event_name(&self) -> String {
        name(&self.name, &[&self.uid, &self.note])
    }

    fn event(&self) -> Event {
        let regarding = object("v1", "Pod", &self.namespace, &self.name, &self.uid);
        let said = (Severity::Warning, "DatasetUnknown", &*self.note);
        event(REPORTER, Timestamp::now(), self.event_name(), regarding, said)
    }
}

/// The notices that are settled: their Events exist, or can never be created. Only hashes of their ids are kept: if two
/// collide, one Event is missing.
#[derive(Debug, Default)]
struct Remembered {
    hasher: RandomState,
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Remembered {
    fn has(&self, id: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(id))
    }

    fn add(&mut self, id: &str) {
        let hash = self.hasher.hash_one(id);
        if self.hashes.insert(hash) {
            self.order.push_back(hash);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.hashes.remove(&oldest);
            }
        }
    }
}

/// Creates the Events one after the other until all senders are dropped. If the API does not answer, the Event is
/// created when the next request about the pod comes.
pub async fn emit(client: Client, mut notices: mpsc::Receiver<Notice>) {
    let (mut remembered, mut warned) = (Remembered::default(), false);
    while let Some(notice) = notices.recv().await {
        let id = format!("{}/{}", notice.namespace, notice.event_name());
        if remembered.has(&id) {
            continue;
        }
        let events: Api<Event> = Api::namespaced(client.clone(), &notice.namespace);
        let made = timeout(PATIENCE, events.create(&PostParams::default(), &notice.event())).await;
        let (is_settled, trouble) = match made {
            Ok(Ok(_)) => (true, None),
            // 409: the Event already exists. Other client errors would not succeed on a retry either, except 429 (too
            // many requests).
            Ok(Err(Error::Api(status))) if status.code == 409 => (true, None),
            Ok(Err(Error::Api(status))) => ((400..429).contains(&status.code), Some(status.to_string())),
            Ok(Err(error)) => (false, Some(error.to_string())),
            Err(_) => (false, Some("the API does not answer".to_owned())),
        };
        if is_settled {
            remembered.add(&id);
        }
        if let Some(error) = trouble.filter(|_| !warned) {
            warned = true;
            warn!(error, "cannot create an Event about a pod: grant `create` on `events` of events.k8s.io");
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
