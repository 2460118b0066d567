//! The decisions of the queues about pods of other programs, until they are visible in the pods.

use std::collections::BTreeMap;

use crate::objects::Pod;
use larder_kube::key::Key;

/// A decision about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be scheduled, on nodes of this flavor; an empty name is none.
    Released(String),
    /// It is deleted. Until then it counts on this flavor; an empty name is none.
    Ended(String),
}

/// A decision about the pod with a uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub uid: String,
    pub decision: Decision,
}

/// The decisions about pods.
pub type Decisions = BTreeMap<Key, Decided>;

/// The decision about a pod, if it is not visible in it yet.
pub fn pending<'d>(decided: Option<&'d Decided>, pod: &Pod) -> Option<&'d Decision> {
    let decided = decided.filter(|decided| decided.uid == pod.meta.uid && !pod.meta.deleting && !pod.ended)?;
    let is_held = pod.queued.as_ref().is_some_and(|queued| queued.gates.is_some());
    let is_pending = match decided.decision {
        Decision::Released(_) => is_held,
        Decision::Ended(_) => true,
    };
    is_pending.then_some(&decided.decision)
}
