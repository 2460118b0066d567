//! The names of the objects that the controller creates. A name is derived from the object's purpose, so two
//! controllers that make the same decision create the same object.

use crate::objects::Key;
use larder_kube::short_hash::short_hash;

/// A unique name for an object of the dataset `key`, as readable as its length allows.
fn own(prefix: &str, key: &Key, parts: &[&str]) -> String {
    // Kubernetes appends 6 characters to a job's name for its pods, and a label value holds 63.
    let name: String = key.name.chars().take(30).collect();
    let name = name.trim_end_matches(['.', '-']).replace('.', "-");
    format!("larder-{prefix}-{name}-{}", short_hash(parts))
}

/// The Job for a purpose.
pub(super) fn import_job(key: &Key, uid: &str, purpose: &str) -> String {
    own("import", key, &[uid, purpose])
}

/// The Job that copies a snapshot to a mirror.
pub(super) fn sync_job(key: &Key, uid: &str, purpose: &str) -> String {
    own("sync", key, &[uid, purpose])
}

/// The Job that warms a snapshot on a node.
pub(super) fn warm_job(key: &Key, uid: &str, snapshot: &str, node: &str) -> String {
    own("warm", key, &[uid, snapshot, node])
}

/// The claim through which a snapshot is warmed.
pub(super) fn warm_claim(key: &Key, uid: &str, snapshot: &str) -> String {
    own("warm", key, &[uid, snapshot])
}

/// The volume of a claim to a dataset.
pub(super) fn volume(uid: &str, claim: &Key) -> String {
    format!("larder-{uid}-{}", short_hash(&[&claim.namespace, &claim.name]))
}
