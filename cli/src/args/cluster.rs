//! The flags of the commands that use a Kubernetes cluster.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

#[derive(Debug, Default, Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The kubeconfig context. Default: the current context.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

#[derive(Debug, Default, Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace for names without one. Default: the context's namespace.
    #[arg(long, short, value_name = "NAME", value_parser = plain_name)]
    pub(crate) namespace: Option<String>,
}

/// The name of an object, with an optional namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl ObjectName {
    /// The key of the object, in `namespace` if the name has none.
    pub(crate) fn within(&self, namespace: &str) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone().unwrap_or_else(|| namespace.to_owned()), name: self.name.clone() }
    }
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (of, name) = text.split_once('/').map_or((None, text), |(of, name)| (Some(of), name));
        if !of.is_none_or(is_name) || !is_name(name) {
            return Err("not a valid name: use NAME or NAMESPACE/NAME".to_owned());
        }
        Ok(Self { namespace: of.map(str::to_owned), name: name.to_owned() })
    }
}

/// The name of an object with its namespace.
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

/// Whether a text is a valid object name and therefore cannot change the path of a URL.
fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(inner) && !text.starts_with('.')
}

/// Parses a name that becomes part of a selector or a path.
pub(crate) fn plain_name(text: &str) -> Result<String, String> {
    if !is_name(text) {
        return Err("not a valid name: use lower-case letters, digits, hyphens and dots".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_a_name_is_optional() {
        let key = |text: &str| text.parse::<ObjectName>().map(|name| name.within("here").to_string());
        assert_eq!(key("resnet").as_deref(), Ok("here/resnet"));
        assert_eq!(key("team-a/resnet").as_deref(), Ok("team-a/resnet"));
        for bad in ["", "/", "a/", "/a", "a/b/c", "../a", "A", "a?b", "-n=\u{1b}"] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }
}
