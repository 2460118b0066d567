//! The names of the objects that the controller makes. Each follows from what the object is for, so that two
//! controllers that decide the same make the same object.

use crate::objects::Key;
use larder_kube::short_hash::short_hash;

/// A name of an object of the dataset `key`: readable as far as there is room, and its own.
fn own(prefix: &str, key: &Key, parts: &[&str]) -> String {
    // Pods add 6 characters to a job's name, and a label holds 63.
    let name: String = key.name.chars().take(30).collect();
    let name = name.trim_end_matches(['.', '-']).replace('.', "-");
    format!("larder-{prefix}-{name}-{}", short_hash(parts))
}

/// The job for a purpose.
pub(super) fn import_job(key: &Key, uid: &str, purpose: &str) -> String {
    own("import", key, &[uid, purpose])
}

/// The job that warms a snapshot on a node.
pub(super) fn warm_job(key: &Key, uid: &str, snapshot: &str, node: &str) -> String {
    own("warm", key, &[uid, snapshot, node])
}

/// The claim through which a snapshot is warmed.
pub(super) fn warm_claim(key: &Key, uid: &str, snapshot: &str) -> String {
    own("warm", key, &[uid, snapshot])
}

/// The volume of a claim of a dataset.
pub(super) fn volume(uid: &str, claim: &Key) -> String {
    format!("larder-{uid}-{}", short_hash(&[&claim.namespace, &claim.name]))
}
