//! The mirrors of a dataset as users describe them: in a Dataset object, and in the attribute of a volume, as JSON.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::written::{InvalidValue, Rules, WrittenSpec, is_mirror_name};

/// The most mirrors of a dataset.
pub const MIRRORS_MAX: usize = 16;

/// The most labels by which a mirror is near.
const NEAR_MAX: usize = 16;

/// A mirror of a dataset: copies of its snapshots in another origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MirrorSpec {
    /// Its name, which begins the names of its keys in the dataset's Secret.
    pub name: String,
    /// The URL of the bucket and prefix.
    pub source: String,
    /// The URL of the S3 server; `None` for that of the dataset, if both are of one kind of store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The region; `None` as for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// True to read it without credentials.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// It is near to nodes that have all of these labels. Empty: to none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub near: BTreeMap<String, String>,
    /// The cost of reading from it. That of the dataset's own origin is 0.
    #[serde(default)]
    pub cost: u32,
}

/// Checks the mirrors of a dataset at `source`. Errors name the mirror by its position, from 0.
pub fn check_mirrors(source: &str, mirrors: &[MirrorSpec]) -> Result<(), InvalidValue> {
    if mirrors.len() > MIRRORS_MAX {
        return Err(InvalidValue::new("mirrors", format!("has more than {MIRRORS_MAX} mirrors")));
    }
    let mut names = BTreeSet::new();
    for (nth, mirror) in mirrors.iter().enumerate() {
        let refuse = |what: &str| Err(InvalidValue::new("mirrors", format!("[{nth}] {what}")));
        if !is_mirror_name(&mirror.name) {
            return refuse("has no name of up to 63 lower-case letters, digits and `-`");
        }
        if !names.insert(&mirror.name) {
            return refuse(&format!("has the name `{}` of another mirror", mirror.name));
        }
        let written = WrittenSpec {
            source: &mirror.source,
            endpoint: mirror.endpoint.as_deref().unwrap_or_default(),
            region: mirror.region.as_deref().unwrap_or_default(),
            anonymous: mirror.anonymous,
            ..WrittenSpec::default()
        };
        if let Err(error) = written.check(&Rules::default()) {
            return refuse(&format!("({}): {error}", mirror.name));
        }
        if mirror.source.trim_end_matches('/') == source.trim_end_matches('/') {
            return refuse(&format!("({}) has the dataset's own URL: name the copy", mirror.name));
        }
        if mirror.near.len() > NEAR_MAX {
            return refuse(&format!("({}) has more than {NEAR_MAX} labels in near", mirror.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(name: &str, source: &str) -> MirrorSpec {
        MirrorSpec { name: name.into(), source: source.into(), ..MirrorSpec::default() }
    }

    #[test]
    fn mistakes_in_mirrors_are_named() {
        let check = |mirrors: &[MirrorSpec]| check_mirrors("s3://b/set", mirrors).map_err(|error| error.to_string());
        let endpoint = |url: &str| MirrorSpec { endpoint: Some(url.into()), ..mirror("a", "s3://c") };
        let near = (0..17).map(|n| (n.to_string(), String::new())).collect();
        for (mirrors, words) in [
            (vec![mirror("", "s3://c")], "has no name"),
            (vec![mirror("E.U", "s3://c")], "has no name"),
            (vec![mirror("a", "s3://c"), mirror("a", "s3://d")], "[1] has the name `a` of another"),
            (vec![mirror("a", "s3://b/set/")], "the dataset's own URL"),
            (vec![mirror("a", "c")], "`source`"),
            (vec![mirror("a", "file:///data")], "`source`"),
            (vec![endpoint("ftp://h")], "`endpoint`"),
            (vec![MirrorSpec { near, ..mirror("a", "s3://c") }], "more than 16 labels"),
            ((0..17).map(|n| mirror(&format!("m{n}"), "s3://c")).collect(), "more than 16 mirrors"),
        ] {
            let error = check(&mirrors).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
        assert_eq!(check(&[mirror("a", "s3://c"), mirror("b", "gs://d/e"), endpoint("http://h:9000")][1..]), Ok(()));
    }
}
