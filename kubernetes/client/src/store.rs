//! The objects of one kind that the controller knows, and which of them belong together.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::{Key, Meta};

/// An object that a [`Store`] keeps.
pub trait Stored: PartialEq {
    /// Its name and version.
    fn meta(&self) -> &Meta;

    /// The same, to be changed.
    fn meta_mut(&mut self) -> &mut Meta;

    /// The names under which it can be found besides its own.
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
    /// The object of this name.
    pub fn get(&self, key: &Key) -> Option<&T> {
        self.objects.get(key)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// All objects, by name.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }

    /// The objects in the namespace of `from` whose names begin with its name.
    pub fn named<'a>(&'a self, from: &'a Key) -> impl Iterator<Item = &'a T> {
        let begins = |key: &Key| key.namespace == from.namespace && key.name.starts_with(&from.name);
        self.objects.range(from..).take_while(move |(key, _)| begins(key)).map(|(_, object)| object)
    }

    /// The objects that belong to `owner`.
    pub fn of<'a>(&'a self, owner: &Key) -> impl Iterator<Item = &'a T> {
        self.index.get(owner).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Keeps an object, unless a newer version of it is there already. Returns what it replaced, if that makes a
    /// difference.
    pub fn put(&mut self, mut object: T) -> Put<T> {
        let key = object.meta().key.clone();
        if let Some(before) = self.objects.get(&key) {
            let (before, now) = (before.meta(), object.meta_mut());
            // Versions grow over all objects of a kind: a late answer about an object of the same name before this one
            // is older.
            if before.version > now.version {
                return Put::Unchanged;
            }
            // No deletion is taken back: news from before it may come after it.
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

    /// The deletion of the object with this uid was accepted.
    pub fn mark_deleting(&mut self, key: &Key, uid: &str) {
        if let Some(object) = self.objects.get_mut(key).filter(|object| object.meta().uid == uid) {
            object.meta_mut().deleting = true;
        }
    }

    /// Forgets an object.
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

    /// The names of all objects.
    pub fn keys(&self) -> BTreeSet<Key> {
        self.objects.keys().cloned().collect()
    }
}

/// The effect of keeping an object.
#[derive(Debug, PartialEq)]
pub enum Put<T> {
    /// Nothing that the controller looks at.
    Unchanged,
    /// The object is new, or differs from this one.
    Changed(Option<T>),
}
