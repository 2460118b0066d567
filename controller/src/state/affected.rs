//! The datasets that an event concerns: those that an object belongs to, and those that it belonged to before.

use crate::objects::{Claim, DatasetObject, Key, by_uid};
use crate::work_queue::Work;
use larder_kube::store::{Put, Store, Stored};

/// Stores an object, and adds the datasets that it and its previous version belong to.
pub(super) fn put_into<T: Stored>(
    store: &mut Store<T>,
    object: T,
    datasets: &Store<DatasetObject>,
    claims: &Store<Claim>,
    work: &mut Vec<Work>,
) {
    let now = object.belongs_to();
    if let Put::Changed(before) = store.put(object) {
        let owners = before.iter().flat_map(Stored::belongs_to).chain(now);
        touch(owners, datasets, claims, work);
    }
}

/// Removes an object, and adds the datasets that it belonged to.
pub(super) fn take_from<T: Stored>(
    store: &mut Store<T>,
    key: &Key,
    datasets: &Store<DatasetObject>,
    claims: &Store<Claim>,
    work: &mut Vec<Work>,
) {
    let before = store.take(key);
    touch(before.iter().flat_map(Stored::belongs_to), datasets, claims, work);
}

/// Adds the datasets of `owners`, which are uids, names, or names of claims.
fn touch(
    owners: impl Iterator<Item = Key>,
    datasets: &Store<DatasetObject>,
    claims: &Store<Claim>,
    work: &mut Vec<Work>,
) {
    for owner in owners {
        if owner.namespace.is_empty() {
            let key = datasets.of(&owner).next().map(|dataset| dataset.meta.key.clone());
            work.push(key.map_or_else(|| Work::Orphans(owner.name), Work::Dataset));
            continue;
        }
        if let Some(claim) = claims.get(&owner) {
            work.extend(claim.wanted().map(Work::Dataset));
            let uid = claim.role.as_ref().map(|role| by_uid(&role.uid));
            work.extend(
                uid.and_then(|uid| datasets.of(&uid).next()).map(|dataset| Work::Dataset(dataset.meta.key.clone())),
            );
        }
        work.push(Work::Dataset(owner));
    }
}
