//! The name and the version of an object.

use std::fmt;

use kube::Resource;

/// The namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for a cluster-wide object.
    pub namespace: String,
    /// The name, unique among the objects of one kind in the namespace.
    pub name: String,
}

impl Key {
    /// The key of the object `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The key of a cluster-wide object.
    pub fn cluster(name: &str) -> Self {
        Self::new("", name)
    }

    /// The key of an object.
    pub fn of(object: &impl Resource) -> Self {
        let metadata = object.meta();
        Self::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }

    /// Parses `NAMESPACE/NAME`.
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
    /// The object's namespace and name.
    pub key: Key,
    /// The object's uid. A recreated object of the same name has a different uid.
    pub uid: String,
    /// The object's resource version, which grows with each change.
    pub version: u64,
    /// True if deletion was requested.
    pub deleting: bool,
    /// The creation time, in seconds since 1970.
    pub created: i64,
}

/// Versions are not compared, so a write that changes nothing leaves the object equal.
impl PartialEq for Meta {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.uid, self.deleting) == (&other.key, &other.uid, other.deleting)
    }
}
