//! The execution of the writes of one piece of work, beside the loop that decided them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::DynamicObject;
use kube::{Client, Error};
use larder_controller_api::names::{ROLE_LABEL, ROLE_WARM};
use tracing::{debug, warn};

use crate::admin::Counters;
use crate::kinds::Kind;
use crate::objects::Key;
use crate::queue::Work;
use crate::world::Refusals;
use crate::write::{Change, Deletion, Done, Write, execute, is_final};

/// The longest that one write may take.
const WRITE: Duration = Duration::from_secs(30);

/// The results of the writes of a piece of work.
pub(crate) struct Written {
    pub(crate) work: Work,
    /// As they are now, and whether the write may have made them.
    pub(crate) objects: Vec<(Kind, DynamicObject, bool)>,
    /// The deleted objects, with their uids.
    pub(crate) deleted: Vec<(Kind, Key, String, Deletion)>,
    /// The names of the events among them.
    pub(crate) told: Vec<String>,
    /// The writes that the API refused for good, with its words.
    pub(crate) refused: Refusals,
    pub(crate) wrote_status: bool,
    pub(crate) succeeded: bool,
    pub(crate) warming: u32,
}

/// How many of the writes begin to warm a node.
pub(crate) fn warming(writes: &[Write]) -> u32 {
    let begins = |write: &&Write| match (&write.kind, &write.change) {
        (Kind::Job, Change::Create(job)) => job["metadata"]["labels"][ROLE_LABEL] == ROLE_WARM,
        _ => false,
    };
    writes.iter().filter(begins).count() as u32
}

/// Executes writes in their order, up to the first that fails and may succeed later. A write that the API refuses for
/// good stops only those that need it: otherwise one claim in the way would keep a dataset from everything else, and its
/// status from saying so.
pub(crate) async fn execute_all(client: Client, counters: Arc<Counters>, work: Work, writes: Vec<Write>) -> Written {
    let mut written = Written {
        work,
        objects: Vec::new(),
        deleted: Vec::new(),
        told: Vec::new(),
        refused: BTreeMap::new(),
        wrote_status: false,
        succeeded: true,
        warming: warming(&writes),
    };
    let mut missing: BTreeSet<(Kind, String)> = BTreeSet::new();
    for write in writes {
        if write.needs.as_ref().is_some_and(|needs| missing.contains(needs)) {
            missing.insert((write.kind, write.name));
            continue;
        }
        counters.count(&write);
        let error = match tokio::time::timeout(WRITE, execute(&client, &write)).await {
            Ok(Ok(done)) => {
                debug!(kind = write.kind.name(), namespace = write.namespace, name = write.name, "wrote");
                written.add(write, done);
                continue;
            }
            Ok(Err(error)) => error,
            Err(_) => {
                warn!(kind = write.kind.name(), name = write.name, "the API server did not answer in time");
                written.succeeded = false;
                return written;
            }
        };
        let (kind, namespace, name) = (write.kind.name(), &write.namespace, &write.name);
        match error {
            // Kueue changes its objects at any time; the watch tells, and then it is decided anew.
            Error::Api(status) if [404, 409].contains(&status.code) && matches!(write.kind, Kind::Kueue(..)) => {
                debug!(name, reason = status.reason, "a Workload has changed");
                written.succeeded = false;
                return written;
            }
            // Nobody hears of it, and it is about something else.
            Error::Api(status) if write.kind == Kind::Event && is_final(&status) => {
                warn!(namespace, name, reason = status.reason, "an event was refused");
                written.told.push(write.name);
            }
            Error::Api(status) if is_final(&status) => {
                warn!(kind, namespace, name, reason = status.reason, "a write was refused; it is tried again");
                written.succeeded = false;
                missing.insert((write.kind, write.name.clone()));
                let key = Key::new(&write.namespace, &write.name);
                written.refused.insert((write.kind, key), status.message);
            }
            error => {
                warn!(kind, namespace, name, %error, "a write failed; it is tried again");
                written.succeeded = false;
                return written;
            }
        }
    }
    written
}

impl Written {
    fn add(&mut self, write: Write, done: Done) {
        self.wrote_status |= matches!(write.change, Change::ApplyStatus(_));
        if write.kind == Kind::Event {
            self.told.push(write.name);
            return;
        }
        let key = Key::new(&write.namespace, &write.name);
        match (done, write.change) {
            (Done::Object(object), change) => {
                let is_new = matches!(change, Change::Create(_) | Change::Apply(_));
                self.objects.push((write.kind, *object, is_new));
            }
            (Done::Deleted, Change::Delete(uid)) => self.deleted.push((write.kind, key, uid, Deletion::Accepted)),
            (Done::NotFound, Change::Delete(uid)) => self.deleted.push((write.kind, key, uid, Deletion::NotFound)),
            _ => {}
        }
    }
}
