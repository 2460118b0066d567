//! The name and the version of an object.

use std::fmt;

use kube::api::DynamicObject;

/// Namespace and name of an object; the namespace is empty for a cluster-wide one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// A name in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The name of a cluster-wide object.
    pub fn cluster(name: &str) -> Self {
        Self::new("", name)
    }

    /// The key of an object.
    pub fn of(object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// The key that `NAMESPACE/NAME` names.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        (!namespace.is_empty() && !name.is_empty() && !name.contains('/')).then(|| Self::new(namespace, name))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// Name and version of an object.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Its name.
    pub key: Key,
    /// Its uid.
    pub uid: String,
    /// Grows with each change of it.
    pub version: u64,
    /// Its deletion was requested.
    pub deleting: bool,
    /// Seconds since 1970 at which it was made.
    pub created: i64,
}

/// Versions do not count: an object that was written again as it was is the same.
impl PartialEq for Meta {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.uid, self.deleting) == (&other.key, &other.uid, other.deleting)
    }
}
