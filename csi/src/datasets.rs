//! The datasets that the administrator grants to namespaces, from a YAML (or JSON) file, usually a mounted ConfigMap.
//! The file is read at each use, so a change needs no restart.
//!
//! ```yaml
//! datasets:
//!   imagenet:
//!     source: s3://datasets/imagenet
//!     cacheSize: 200GiB
//!     namespaces: [team-a]      # or "*"
//! ```
//!
//! Invariant: a namespace that may not use a dataset cannot tell whether a dataset of that name exists.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use larder_dataset::DatasetSpec;
use larder_dataset::written::{InvalidValue, Rules, WrittenSpec, namespace};
use serde::Deserialize;
use tracing::{error, info};

use crate::attributes::{Attributes, Selection};

/// The largest file, in bytes: the limit of a ConfigMap.
const FILE_BYTES: u64 = 1 << 20;

/// Why a volume is denied its dataset.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The dataset is not granted to the pod, or does not exist.
    #[error("{0}")]
    Denied(String),
    /// The administrator's file cannot be used. Only the log says why: the pod's author may not see the file.
    #[error("the administrator's datasets file cannot be read; see the log of larder-csi")]
    File,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatasetsFile {
    #[serde(default)]
    datasets: BTreeMap<String, Entry>,
}

/// An entry as written. Its values are text, so that an invalid value affects only its own entry and not the whole
/// file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    source: String,
    #[serde(default)]
    endpoint: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    anonymous: bool,
    #[serde(default)]
    snapshot: String,
    #[serde(default)]
    cache_size: Option<String>,
    #[serde(default)]
    policy: String,
    #[serde(default)]
    placement: String,
    #[serde(default)]
    refresh: String,
    namespaces: Vec<String>,
}

#[derive(Debug)]
struct Grant {
    spec: DatasetSpec,
    namespaces: Vec<String>,
}

impl Entry {
    fn check(&self, rules: &Rules) -> Result<Grant, InvalidValue> {
        let spec = WrittenSpec {
            source: &self.source,
            endpoint: &self.endpoint,
            region: &self.region,
            anonymous: self.anonymous,
            snapshot: &self.snapshot,
            cache_size: self.cache_size.as_deref(),
            policy: &self.policy,
            placement: &self.placement,
            refresh: &self.refresh,
        };
        Ok(Grant {
            spec: spec.check(rules)?,
            namespaces: self.namespaces.iter().map(|name| namespace(name)).collect::<Result<_, _>>()?,
        })
    }
}

/// The administrator's file. If it is `None`, nothing is granted.
#[derive(Clone, Debug)]
pub struct Datasets {
    file: Option<PathBuf>,
    rules: Rules,
}

impl Datasets {
    /// Does not read the file.
    pub fn new(file: Option<PathBuf>, rules: Rules) -> Self {
        Self { file, rules }
    }

    /// Returns the dataset of a volume, if its pod may use it. Blocks.
    pub fn resolve(&self, attributes: &Attributes) -> Result<DatasetSpec, GrantError> {
        let pod = &attributes.pod.namespace;
        if let Some(allowed) = &attributes.namespaces {
            check_namespace(allowed, pod, "this volume")?;
        }
        let (name, cache_bytes) = match &attributes.selection {
            Selection::Spec(spec) => return Ok(spec.clone()),
            Selection::Entry { name, cache_bytes } => (name, *cache_bytes),
        };
        let what = format!("the dataset {name}");
        let grant = match &self.file {
            Some(file) => self.read(file)?.remove(name),
            None => None,
        };
        let allowed = grant.as_ref().map(|grant| grant.namespaces.as_slice()).unwrap_or_default();
        check_namespace(allowed, pod, &what)?;
        let Some(Grant { mut spec, .. }) = grant else { return Err(denied(pod, &what)) };
        if !attributes.inline {
            spec.cache_bytes = cache_bytes.or(spec.cache_bytes);
        } else if cache_bytes.is_some() && cache_bytes != spec.cache_bytes {
            // All pods of a node share the dataset's cache, so a pod cannot size it.
            let (asked, granted) = (cache_bytes, spec.cache_bytes);
            info!(
                dataset = name,
                namespace = pod,
                asked,
                granted,
                "a pod's cacheSize has no effect: the entry's applies"
            );
        }
        Ok(spec)
    }

    fn read(&self, path: &Path) -> Result<BTreeMap<String, Grant>, GrantError> {
        let broken = |error: &dyn std::fmt::Display| {
            error!(path = %path.display(), %error, "cannot use the datasets file");
            GrantError::File
        };
        let mut text = String::new();
        let opened = std::fs::File::open(path);
        // The ConfigMap is optional, and may be created later.
        if opened.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Ok(BTreeMap::new());
        }
        opened.and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text)).map_err(|error| broken(&error))?;
        let file: Option<DatasetsFile> = serde_yaml_ng::from_str(&text).map_err(|error| broken(&error))?;
        let mut grants = BTreeMap::new();
        for (name, entry) in file.unwrap_or_default().datasets {
            match entry.check(&self.rules) {
                Ok(grant) => drop(grants.insert(name, grant)),
                Err(error) => error!(path = %path.display(), dataset = %name, %error, "skip an invalid dataset"),
            }
        }
        Ok(grants)
    }
}

fn check_namespace(allowed: &[String], pod: &str, what: &str) -> Result<(), GrantError> {
    let named = !pod.is_empty() && allowed.iter().any(|name| name == pod);
    if named || allowed.iter().any(|name| name == "*") { Ok(()) } else { Err(denied(pod, what)) }
}

/// The message is the same whether the dataset is missing or not granted.
fn denied(pod: &str, what: &str) -> GrantError {
    GrantError::Denied(if pod.is_empty() {
        format!(
            "{what} is restricted to certain namespaces, and the kubelet did not report the pod's (set podInfoOnMount \
             of the CSIDriver)"
        )
    } else {
        format!("the namespace {pod} may not use {what}, or it does not exist; ask the administrator")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use larder_dataset::Placement;

    use super::*;

    const FILE: &str = "datasets:
  imagenet: {source: s3://sets/imagenet, cacheSize: 10GiB, placement: partitioned, refresh: 24h, namespaces: [team-a]}
  open: {source: s3://sets/open, namespaces: ['*']}
  team-b/imagenet: {source: s3://sets/own, namespaces: [team-b, team-a]}
  broken: {source: file:///etc, namespaces: ['*']}
  misplaced: {source: s3://sets/misplaced, placement: everywhere, namespaces: ['*']}
";

    fn resolve(text: &str, pairs: &[(&str, &str)]) -> Result<DatasetSpec, GrantError> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("datasets.yaml");
        std::fs::write(&file, text).expect("write");
        let context: HashMap<String, String> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let rules = Rules::default();
        Datasets::new(Some(file), rules.clone()).resolve(&Attributes::parse(&context, &rules).expect("valid"))
    }

    fn inline<'a>(dataset: &'a str, namespace: &'a str) -> [(&'a str, &'a str); 3] {
        [
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("dataset", dataset),
            ("csi.storage.k8s.io/pod.namespace", namespace),
        ]
    }

    #[test]
    fn a_namespace_gets_what_it_was_granted() {
        let got = resolve(FILE, &inline("imagenet", "team-a")).expect("granted");
        assert_eq!((got.source.as_str(), got.cache_bytes), ("s3://sets/imagenet", Some(10 << 30)));
        assert_eq!((got.placement, got.refresh), (Some(Placement::Partitioned), "24h".parse().ok()));
        resolve(FILE, &inline("open", "anyone")).expect("granted to all");
        resolve(FILE, &inline("open", "")).expect("granted to all");
        // A namespace prefix is part of the entry's name. It does not affect grants.
        let own = resolve(FILE, &inline("team-b/imagenet", "team-b")).expect("granted");
        assert_eq!(own.source, "s3://sets/own");
        resolve(FILE, &inline("team-b/imagenet", "team-a")).expect("granted");
        resolve(FILE, &inline("imagenet", "team-b")).expect_err("not its namespace's, but the administrator's");
        // JSON is YAML.
        let json = r#"{"datasets": {"j": {"source": "s3://b", "namespaces": ["team-a"]}}}"#;
        resolve(json, &inline("j", "team-a")).expect("granted");
    }

    #[test]
    fn what_is_denied_and_what_does_not_exist_look_the_same() {
        let denied = resolve(FILE, &inline("imagenet", "team-b")).expect_err("not granted").to_string();
        let missing = resolve(FILE, &inline("imagine", "team-b")).expect_err("missing").to_string();
        assert_eq!(denied.replace("imagenet", "imagine"), missing);
        assert!(denied.contains("the namespace team-b may not use the dataset imagenet"), "{denied}");
        let unknown = resolve(FILE, &inline("imagenet", "")).expect_err("unknown namespace").to_string();
        assert!(unknown.contains("podInfoOnMount"), "{unknown}");
        for dataset in ["broken", "misplaced", "missing"] {
            assert!(matches!(resolve(FILE, &inline(dataset, "team-a")), Err(GrantError::Denied(_))), "{dataset}");
        }
    }

    // SEMANTICS: K7
    #[test]
    fn the_entry_sizes_the_cache_whatever_a_pod_wishes() {
        let asks = |dataset, size| {
            let mut pairs = inline(dataset, "team-a").to_vec();
            pairs.push(("cacheSize", size));
            resolve(FILE, &pairs).expect("granted").cache_bytes
        };
        for size in ["1", "1GiB", "11GiB"] {
            assert_eq!((asks("imagenet", size), asks("open", size)), (Some(10 << 30), None), "{size}");
        }
        // The author of a volume is an administrator.
        let volume = [("dataset", "imagenet"), ("cacheSize", "11GiB"), ("csi.storage.k8s.io/pod.namespace", "team-a")];
        assert_eq!(resolve(FILE, &volume).expect("granted").cache_bytes, Some(11 << 30));
    }

    #[test]
    fn a_broken_file_is_an_error_that_tells_a_pod_author_nothing() {
        for text in ["datasets: [", "datasets:\n  x: {source: s3://secret-place, oops: 1, namespaces: []}", "sets: {}"]
        {
            let error = resolve(text, &inline("x", "team-a")).expect_err(text);
            assert!(matches!(error, GrantError::File) && !error.to_string().contains("secret-place"), "{error}");
        }
        assert!(matches!(resolve("", &inline("x", "team-a")), Err(GrantError::Denied(_))));
    }

    #[test]
    fn a_volume_with_namespaces_is_for_those() {
        let volume = |namespace| {
            let source = [("source", "s3://b"), ("namespaces", "team-a")];
            resolve("", &[source.as_slice(), &[("csi.storage.k8s.io/pod.namespace", namespace)]].concat())
        };
        volume("team-a").expect("listed");
        volume("team-b").expect_err("not listed");
        volume("").expect_err("unknown");
    }
}
