//! A persistent map: a clone is cheap, and a change copies only the path to the changed key. Readers and the writer
//! share the rest.

use std::array;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

/// The branches of each of the two levels. A change copies two levels and one leaf: 128 pointers and, with 50,000
/// objects, about a dozen entries.
const BRANCHES: usize = 64;

type Leaf<K, V> = Arc<Vec<(K, V)>>;
type Branch<T> = Arc<[T; BRANCHES]>;

/// A map. Cloning copies one pointer; a later change copies the path to its key.
///
/// Keys are distributed by a randomly seeded hash, so no user can choose names that all end up in one leaf.
#[derive(Clone, Debug)]
pub struct Shards<K, V> {
    root: Branch<Branch<Leaf<K, V>>>,
    hasher: RandomState,
    len: usize,
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        let leaf = Arc::default();
        let branch = Arc::new(array::from_fn(|_| Arc::clone(&leaf)));
        let root = Arc::new(array::from_fn(|_| Arc::clone(&branch)));
        Self { root, hasher: RandomState::new(), len: 0 }
    }
}

/// A leaf for modification. The path to it is copied if it is shared.
fn leaf_mut<K: Clone, V: Clone>(
    root: &mut Branch<Branch<Leaf<K, V>>>,
    (first, second): (usize, usize),
) -> &mut Vec<(K, V)> {
    let branch = Arc::make_mut(&mut Arc::make_mut(root)[first]);
    Arc::make_mut(&mut branch[second])
}

impl<K: Clone + Hash + Eq, V: Clone> Shards<K, V> {
    /// The branches that lead to the leaf of a key.
    fn path<Q: Hash + ?Sized>(&self, key: &Q) -> (usize, usize) {
        let hash = self.hasher.hash_one(key) as usize;
        (hash % BRANCHES, hash / BRANCHES % BRANCHES)
    }

    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entry(key).map(|(_, value)| value)
    }

    /// The key as it is stored, and its value.
    pub fn entry<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (first, second) = self.path(key);
        self.root[first][second].iter().find(|(known, _)| known.borrow() == key).map(|(known, value)| (known, value))
    }

    /// Inserts a value. Returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let path = self.path(&key);
        let leaf = leaf_mut(&mut self.root, path);
        if let Some((_, known)) = leaf.iter_mut().find(|(known, _)| *known == key) {
            return Some(std::mem::replace(known, value));
        }
        leaf.push((key, value));
        self.len += 1;
        None
    }

    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key)?;
        let path = self.path(key);
        let leaf = leaf_mut(&mut self.root, path);
        let at = leaf.iter().position(|(known, _)| known.borrow() == key)?;
        let (_, before) = leaf.swap_remove(at);
        self.len -= 1;
        Some(before)
    }

    /// The value of a key for modification. Inserts the default if the key is missing.
    pub fn or_default(&mut self, key: &K) -> &mut V
    where
        V: Default,
    {
        let path = self.path(key);
        let leaf = leaf_mut(&mut self.root, path);
        let at = leaf.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
            leaf.push((key.clone(), V::default()));
            self.len += 1;
            leaf.len() - 1
        });
        &mut leaf[at].1
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let leaves = self.root.iter().flat_map(|branch| branch.iter());
        leaves.flat_map(|leaf| leaf.iter()).map(|(key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Shards<Arc<str>, u32> {
        let mut map = Shards::default();
        for number in 0..3000u32 {
            map.insert(format!("n{number}").into(), number);
        }
        map
    }

    #[test]
    fn a_copy_does_not_see_what_is_changed_after_it() {
        let mut map = numbers();
        let copy = map.clone();
        assert_eq!(map.insert("n7".into(), 70), Some(7));
        assert_eq!(map.remove("n8"), Some(8));
        assert_eq!(map.remove("n8"), None);
        *map.or_default(&"new".into()) += 1;
        *map.or_default(&"n9".into()) += 1;
        let of = |map: &Shards<Arc<str>, u32>| ["n7", "n8", "n9", "new"].map(|key| map.get(key).copied());
        assert_eq!((of(&map), map.len()), ([Some(70), None, Some(10), Some(1)], 3000));
        assert_eq!((of(&copy), copy.len()), ([Some(7), Some(8), Some(9), None], 3000));
        assert_eq!((map.iter().count(), copy.iter().count()), (3000, 3000));
    }

    #[test]
    fn a_change_copies_what_leads_to_it() {
        let mut map = numbers();
        let copy = map.clone();
        map.insert("n7".into(), 70);
        let others = map.root.iter().zip(copy.root.iter()).filter(|(now, then)| !Arc::ptr_eq(now, then));
        let (now, then) = others.clone().next().expect("a branch was copied");
        assert_eq!(others.count(), 1);
        assert_eq!(now.iter().zip(then.iter()).filter(|(now, then)| !Arc::ptr_eq(now, then)).count(), 1);
    }
}
