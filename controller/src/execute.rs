//! Executes the writes of one work item, concurrently with the main loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use larder_api::names::{ROLE_IMPORT, ROLE_LABEL, ROLE_WARM};
use larder_kube::unparsed::Unparsed;
use larder_kube::{Client, Error};
use serde_json::Value;
use tokio::time::error::Elapsed;
use tracing::{debug, warn};

use crate::admin::Counters;
use crate::datasets::input::Refusals;
use crate::objects::Key;
use crate::work_queue::Work;
use crate::write::{Change, Deletion, Done, Write, execute, is_final};
use larder_kube::kinds::Kind;

/// The timeout of one write.
const WRITE: Duration = Duration::from_secs(30);

/// The limit of pods that are created or deleted at the same time, per work item.
const PODS: usize = 16;

/// The results of the writes of a work item.
pub(crate) struct Written {
    pub(crate) work: Work,
    /// The objects after the writes, and whether the write may have created them.
    pub(crate) objects: Vec<(Kind, Unparsed, bool)>,
    /// The deleted objects, with their uids.
    pub(crate) deleted: Vec<(Kind, Key, String, Deletion)>,
    /// The names of the Events that were written.
    pub(crate) emitted: Vec<String>,
    /// The writes that the API rejected, with its messages. A retry would be rejected again.
    pub(crate) refused: Refusals,
    pub(crate) wrote_status: bool,
    pub(crate) succeeded: bool,
    /// The error of a write that may succeed later.
    pub(crate) failed: Option<String>,
    /// A pod was created without the PodGroup that it names.
    pub(crate) drops_groups: bool,
    /// Objects that the API refused to create, and objects that were skipped because they need one of those.
    missing: BTreeSet<(Kind, String)>,
}

/// How many of the writes start to warm a node.
pub(crate) fn warming(writes: &[Write]) -> u32 {
    writes.iter().filter(|write| creates(write, ROLE_WARM)).count() as u32
}

/// True if one of the writes starts an import.
pub(crate) fn imports(writes: &[Write]) -> bool {
    writes.iter().any(|write| creates(write, ROLE_IMPORT))
}

fn creates(write: &Write, role: &str) -> bool {
    match (&write.kind, &write.change) {
        (Kind::Job, Change::Create(job)) => job["metadata"]["labels"][ROLE_LABEL] == role,
        _ => false,
    }
}

/// Executes writes in order, up to the first one that fails temporarily. Consecutive writes to pods run concurrently. A
/// permanently rejected write skips only the writes that need it: otherwise one conflicting claim would block
/// everything else for the dataset, including the status that reports it.
pub(crate) async fn execute_all(client: Client, counters: Arc<Counters>, work: Work, writes: Vec<Write>) -> Written {
    let mut written = Written {
        work,
        objects: Vec::new(),
        deleted: Vec::new(),
        emitted: Vec::new(),
        refused: BTreeMap::new(),
        wrote_status: false,
        succeeded: true,
        failed: None,
        drops_groups: false,
        missing: BTreeSet::new(),
    };
    let mut writes = writes.into_iter().peekable();
    while let Some(first) = writes.next() {
        let mut group = vec![first];
        while let Some(next) = writes.next_if(|next| (group[0].kind, next.kind) == (Kind::Pod, Kind::Pod)) {
            group.push(next);
        }
        group.retain(|write| written.makes_sense(write));
        // The first failure ends the group, so that an unresponsive API server does not get a thousand requests.
        let failed = AtomicBool::new(false);
        let answers = group.into_iter().take_while(|_| !failed.load(Ordering::Relaxed)).map(|write| {
            counters.count(&write);
            let client = &client;
            async move { (tokio::time::timeout(WRITE, execute(client, &write)).await, write) }
        });
        let mut answers = std::pin::pin!(futures::stream::iter(answers).buffer_unordered(PODS));
        while let Some((answer, write)) = answers.next().await {
            if !written.take(write, answer) {
                failed.store(true, Ordering::Relaxed);
            }
        }
        if failed.load(Ordering::Relaxed) {
            return written;
        }
    }
    written
}

impl Written {
    /// False if the object that the write needs does not exist.
    fn makes_sense(&mut self, write: &Write) -> bool {
        let is_missing = write.needs.as_ref().is_some_and(|needs| self.missing.contains(needs));
        if is_missing {
            self.missing.insert((write.kind, write.name.clone()));
        }
        !is_missing
    }

    /// Records the answer to a write. Returns false if the remaining writes must wait.
    fn take(&mut self, write: Write, answer: Result<Result<Done, Error>, Elapsed>) -> bool {
        let (kind, namespace, name) = (write.kind.name(), &write.namespace, &write.name);
        let error = match answer {
            Ok(Ok(done)) => {
                debug!(kind, namespace, name, "wrote");
                self.add(write, done);
                return true;
            }
            Ok(Err(error)) => error,
            Err(_) => {
                warn!(kind, name, "the API server did not answer in time");
                self.succeeded = false;
                self.failed = Some(format!("no answer within {} s", WRITE.as_secs()));
                return false;
            }
        };
        match error {
            // Other clients change these objects at any time. The watch reports the change, and a new decision follows.
            Error::Api(status)
                if [404, 409].contains(&status.code)
                    && !is_final(&status)
                    && matches!(write.kind, Kind::Kueue(..) | Kind::TrainingJob | Kind::Pod | Kind::PodGroup) =>
            {
                debug!(kind, name, reason = status.reason, "an object has changed");
                self.succeeded = false;
                false
            }
            // A lost Event does not block other writes.
            Error::Api(status) if write.kind == Kind::Event && is_final(&status) => {
                warn!(namespace, name, reason = status.reason, "the API refused an Event");
                self.emitted.push(write.name);
                true
            }
            Error::Api(status) if is_final(&status) => {
                warn!(kind, namespace, name, reason = status.reason, "the API refused a write; retrying");
                self.succeeded = false;
                self.missing.insert((write.kind, write.name.clone()));
                let key = Key::new(&write.namespace, &write.name);
                self.refused.insert((write.kind, key), status.message);
                true
            }
            error => {
                warn!(kind, namespace, name, %error, "write failed; retrying");
                self.succeeded = false;
                self.failed = Some(match error {
                    Error::Api(status) => status.message,
                    error => error.to_string(),
                });
                false
            }
        }
    }

    fn add(&mut self, write: Write, done: Done) {
        self.wrote_status |= matches!(write.change, Change::ApplyStatus(_));
        if write.kind == Kind::Event {
            self.emitted.push(write.name);
            return;
        }
        let key = Key::new(&write.namespace, &write.name);
        match (done, write.change) {
            (Done::Found(object), _) => self.objects.push((write.kind, *object, true)),
            (Done::Object(object), change) => {
                let asks = |spec: Option<&Value>| spec.is_some_and(|spec| !spec["schedulingGroup"].is_null());
                if write.kind == Kind::Pod
                    && let Change::Make(text) = &change
                    && serde_json::from_str::<Value>(text).is_ok_and(|made| asks(made.get("spec")))
                {
                    self.drops_groups |= object.parse().is_ok_and(|object| !asks(object.data.get("spec")));
                }
                let is_new = matches!(change, Change::Create(_) | Change::Make(_) | Change::Apply(_));
                self.objects.push((write.kind, *object, is_new));
            }
            (Done::Deleted, Change::Delete(uid)) => self.deleted.push((write.kind, key, uid, Deletion::Accepted)),
            (Done::NotFound, Change::Delete(uid)) => self.deleted.push((write.kind, key, uid, Deletion::NotFound)),
            _ => {}
        }
    }
}
