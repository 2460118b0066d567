//! The objects of one kind that a program stores, with an index of the objects that they belong to.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::{Key, Meta};

/// An object that a [`Store`] keeps.
pub trait Stored: PartialEq {
    /// The object's name and version.
    fn meta(&self) -> &Meta;

    /// The object's name and version, for [`Store`] to update.
    fn meta_mut(&mut self) -> &mut Meta;

    /// The keys of the objects that this object belongs to. [`Store::of`] finds it by each of them.
    fn belongs_to(&self) -> Vec<Key>;
}

/// The objects of one kind.
#[derive(Debug)]
pub struct Store<T> {
    objects: BTreeMap<Key, T>,
    index: BTreeMap<Key, BTreeSet<Key>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), index: BTreeMap::new() }
    }
}

impl<T: Stored> Store<T> {
    /// The object with this key.
    pub fn get(&self, key: &Key) -> Option<&T> {
        self.objects.get(key)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// All objects, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }

    /// The objects in the namespace of `from` whose names start with the name in `from`.
    pub fn named<'a>(&'a self, from: &'a Key) -> impl Iterator<Item = &'a T> {
        let begins = |key: &Key| key.namespace == from.namespace && key.name.starts_with(&from.name);
        self.objects.range(from..).take_while(move |(key, _)| begins(key)).map(|(_, object)| object)
    }

    /// The objects of a namespace.
    pub fn in_namespace<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let from = Key::new(namespace, "");
        let is_there = move |(key, _): &(&Key, &T)| key.namespace == from.namespace;
        self.objects.range(Key::new(namespace, "")..).take_while(is_there).map(|(_, object)| object)
    }

    /// The objects that belong to `owner`.
    pub fn of<'a>(&'a self, owner: &Key) -> impl Iterator<Item = &'a T> {
        self.index.get(owner).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Stores an object, unless a newer version of it is stored. Returns the object that it replaced, if the two
    /// differ.
    pub fn put(&mut self, mut object: T) -> Put<T> {
        let key = object.meta().key.clone();
        if let Some(before) = self.objects.get(&key) {
            let (before, now) = (before.meta(), object.meta_mut());
            // Versions grow across all objects of a kind, so a deleted object of the same name has an older version.
            if before.version > now.version {
                return Put::Unchanged;
            }
            // A deletion is never undone, but an event from before the deletion may arrive after
            // [`Store::mark_deleting`].
            now.deleting |= before.deleting && before.uid == now.uid;
        }
        let before = self.take(&key);
        let same = before.as_ref().is_some_and(|before| *before == object);
        for owner in object.belongs_to() {
            self.index.entry(owner).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
        if same { Put::Unchanged } else { Put::Changed(before) }
    }

    /// Marks the object with this uid as being deleted. Call it when the API has accepted the deletion.
    pub fn mark_deleting(&mut self, key: &Key, uid: &str) {
        if let Some(object) = self.objects.get_mut(key).filter(|object| object.meta().uid == uid) {
            object.meta_mut().deleting = true;
        }
    }

    /// Removes an object, and returns it.
    pub fn take(&mut self, key: &Key) -> Option<T> {
        let object = self.objects.remove(key)?;
        for owner in object.belongs_to() {
            if let Some(keys) = self.index.get_mut(&owner) {
                keys.remove(key);
                if keys.is_empty() {
                    self.index.remove(&owner);
                }
            }
        }
        Some(object)
    }

    /// The keys of all objects.
    pub fn keys(&self) -> BTreeSet<Key> {
        self.objects.keys().cloned().collect()
    }
}

/// The effect of [`Store::put`].
#[derive(Debug, PartialEq)]
pub enum Put<T> {
    /// The object is older than the stored one, or equal to it.
    Unchanged,
    /// The object was stored. It replaced this object, or is new if there is none.
    Changed(Option<T>),
}
