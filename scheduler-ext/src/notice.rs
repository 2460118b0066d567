//! One Kubernetes Event for each pod that names a Dataset which does not exist or which it may not read: `kubectl describe` shows
//! why no node is better for it than another, or none will do.
//!
//! A pod is told once of the same trouble, however often it is asked about: the Event's name follows from both, so that neither
//! another replica nor this one after a restart makes a second. No answer waits for an Event. Where they cannot be made, the log
//! says so once, and all else goes on.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use larder_kube::api::PostParams;
use larder_kube::{Api, Client, Error};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::question::Question;

/// How many notices wait; more are dropped. A pod that waits for a node is asked about again.
pub const WAITING: usize = 256;
/// How many notices are remembered; then the oldest are forgotten, and their Events found to be there.
const REMEMBERED: usize = 8192;
/// The most often that an Event is made, whatever names somebody sends.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the API may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The bytes of a note that the API takes.
const NOTE_BYTES: usize = 1024;
/// The characters of a pod's name in that of its Event: with the rest, as many as a name may have.
const NAME_CHARS: usize = 200;
/// Who says it.
const REPORTER: &str = "larder-scheduler-ext";

/// What a pod's users are to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    namespace: String,
    name: String,
    uid: String,
    note: String,
}

impl Notice {
    /// What there is to tell of a question's pod. `None`: nothing, or it is no pod of the API.
    pub fn about(question: &Question) -> Option<Self> {
        let trouble = question.trouble.as_deref()?;
        let (namespace, name) = question.pod.split_once('/')?;
        let follows = match question.required {
            Some(_) => "the pod requires its data, so no node will do",
            None => "all nodes are equal for the pod",
        };
        let note = format!("{trouble}: {follows}");
        let fits = note.char_indices().take_while(|(at, char)| at + char.len_utf8() <= NOTE_BYTES);
        let note = fits.map(|(_, char)| char).collect();
        let is_pod = [namespace, name, &question.uid].into_iter().all(|part| !part.is_empty());
        is_pod.then(|| Self { namespace: namespace.into(), name: name.into(), uid: question.uid.clone(), note })
    }

    /// Another one for another pod or another note.
    fn id(&self) -> u64 {
        // One without a seed of its own: the same in each process.
        let mut hasher = DefaultHasher::new();
        (&self.uid, &self.note).hash(&mut hasher);
        hasher.finish()
    }

    fn event(&self) -> Event {
        let name: String = self.name.chars().take(NAME_CHARS).collect();
        let name = format!("{}.{:016x}", name.trim_end_matches(['-', '.']), self.id());
        Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(self.namespace.clone()), ..ObjectMeta::default() },
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(self.namespace.clone()),
                name: Some(self.name.clone()),
                uid: Some(self.uid.clone()),
                ..ObjectReference::default()
            }),
            type_: Some("Warning".to_owned()),
            reason: Some("DatasetUnknown".to_owned()),
            note: Some(self.note.clone()),
            action: Some("Scheduling".to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(REPORTER.to_owned()),
            ..Event::default()
        }
    }
}

/// The notices of which the Events are there, or will never be.
#[derive(Debug, Default)]
struct Remembered {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Remembered {
    fn add(&mut self, id: u64) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.ids.remove(&oldest);
            }
        }
    }
}

/// Makes the Events, one after the other, until there will be no more notices. One that the API did not answer is made when the
/// pod is asked about again.
pub async fn tell(client: Client, mut notices: mpsc::Receiver<Notice>) {
    let (mut remembered, mut warned) = (Remembered::default(), false);
    while let Some(notice) = notices.recv().await {
        let id = notice.id();
        if remembered.ids.contains(&id) {
            continue;
        }
        let events: Api<Event> = Api::namespaced(client.clone(), &notice.namespace);
        let made = timeout(PATIENCE, events.create(&PostParams::default(), &notice.event())).await;
        let (is_settled, trouble) = match made {
            Ok(Ok(_)) => (true, None),
            // It is there: 409. The others will not become right by asking again.
            Ok(Err(Error::Api(status))) if status.code == 409 => (true, None),
            Ok(Err(Error::Api(status))) => ((400..429).contains(&status.code), Some(status.to_string())),
            Ok(Err(error)) => (false, Some(error.to_string())),
            Err(_) => (false, Some("the API does not answer".to_owned())),
        };
        if is_settled {
            remembered.add(id);
        }
        if let Some(error) = trouble.filter(|_| !warned) {
            warned = true;
            warn!(error, "no Event could be made about a pod; `create` on `events` of events.k8s.io has to be granted");
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
