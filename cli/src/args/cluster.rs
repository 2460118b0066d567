//! The flags of the commands that use a Kubernetes cluster.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

#[derive(Debug, Default, Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the account of the pod.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

#[derive(Debug, Default, Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace of names without one. Default: that of the context.
    #[arg(long, short, value_name = "NAME", value_parser = plain_name)]
    pub(crate) namespace: Option<String>,
}

/// An object as users name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    /// Its namespace, if it is said.
    pub(crate) namespace: Option<String>,
    /// Its name.
    pub(crate) name: String,
}

impl ObjectName {
    /// The object, in `namespace` if it names none.
    pub(crate) fn within(&self, namespace: &str) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone().unwrap_or_else(|| namespace.to_owned()), name: self.name.clone() }
    }
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (of, name) = text.split_once('/').map_or((None, text), |(of, name)| (Some(of), name));
        if !of.is_none_or(is_name) || !is_name(name) {
            return Err("is not a name: write NAME or NAMESPACE/NAME".to_owned());
        }
        Ok(Self { namespace: of.map(str::to_owned), name: name.to_owned() })
    }
}

/// An object and its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The name of an object that is no path of its own.
fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(inner) && !text.starts_with('.')
}

/// A name that may be a part of a selector or a path.
pub(crate) fn plain_name(text: &str) -> Result<String, String> {
    if !is_name(text) {
        return Err("is not a name: use lower-case letters, digits and hyphens".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_with_or_without_its_namespace() {
        let key = |text: &str| text.parse::<ObjectName>().map(|name| name.within("here").to_string());
        assert_eq!(key("resnet").as_deref(), Ok("here/resnet"));
        assert_eq!(key("team-a/resnet").as_deref(), Ok("team-a/resnet"));
        for bad in ["", "/", "a/", "/a", "a/b/c", "../a", "A", "a?b", "-n=\u{1b}"] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }
}
