//! One Kubernetes Event for each pod that names a Dataset which does not exist or which it may not read: `kubectl describe` shows
//! why no node is better for it than another, or none will do.
//!
//! A pod is told once of the same trouble, however often it is asked about: the Event's name follows from both, so that neither
//! another replica nor this one after a restart makes a second. No answer waits for an Event. Where they cannot be made, the log
//! says so once, and all else goes on.

use std::collections::{HashSet, VecDeque};
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

/// How many notices wait; more are dropped. A pod that waits for a node is asked about again.
pub const WAITING: usize = 256;
/// How many notices are remembered; then the oldest are forgotten, and their Events found to be there.
const REMEMBERED: usize = 8192;
/// The most often that an Event is made, whatever names somebody sends.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the API may take.
const PATIENCE: Duration = Duration::from_secs(10);
const REPORTER: Reporter<'_> =
    Reporter { controller: "larder-scheduler-ext", instance: "larder-scheduler-ext", action: "Scheduling" };

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
        // Cut here: notices wait in a queue and are remembered.
        let note = within(&format!("{trouble}: {follows}"), NOTE_BYTES);
        let is_pod = [namespace, name, &question.uid].into_iter().all(|part| !part.is_empty());
        is_pod.then(|| Self { namespace: namespace.into(), name: name.into(), uid: question.uid.clone(), note })
    }

    /// The name of its Event: another one for another pod or another note.
    fn event_name(&self) -> String {
        name(&self.name, &[&self.uid, &self.note])
    }

    fn event(&self) -> Event {
        let regarding = object("v1", "Pod", &self.namespace, &self.name, &self.uid);
        let said = (Severity::Warning, "DatasetUnknown", &*self.note);
        event(REPORTER, Timestamp::now(), self.event_name(), regarding, said)
    }
}

/// The notices of which the Events are there, or will never be.
#[derive(Debug, Default)]
struct Remembered {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Remembered {
    fn add(&mut self, id: String) {
        if self.ids.insert(id.clone()) {
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
        let id = format!("{}/{}", notice.namespace, notice.event_name());
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
