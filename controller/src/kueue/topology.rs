//! The topology domains that Kueue has assigned to pods, in both of its encodings.
//!
//! `v1beta1` lists the domains. `v1beta2` packs them into slices: at each level, the domains of a slice have one common
//! value (`universal`), or values of their own between a common prefix and suffix (`individual`). How Kueue divides
//! domains into slices differs between its releases, so every division is read.
//!
//! An assignment is a few bytes that may stand for many: `domainCount` alone can claim two billion domains. Equal
//! domains therefore count once, and the result has a limit. An assignment that cannot be read is an error and never
//! "any node", because the pods would start on other nodes than those that were warmed.

use std::collections::BTreeSet;
use std::fmt;

use larder_kube::pod::node_affinity::Domains;
use serde::Deserialize;
use serde_json::Value;

/// The most memory that the domains of one pod set take, in bytes. 100,000 node names take half of it.
const BYTES_MAX: usize = 16 << 20;

/// Why an assignment cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is not in a form that is known.
    Form(String),
    /// It has no level, so its domains have no label.
    NoLevels,
    /// A domain or slice has another number of values than there are levels.
    Levels { values: usize, levels: usize },
    /// A slice has another number of values than domains.
    Count { values: usize, domains: usize },
    /// Its domains take more memory than [`BYTES_MAX`].
    TooLarge,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(why) => f.write_str(why),
            Self::NoLevels => f.write_str("it has no levels"),
            Self::Levels { values, levels } => write!(f, "{values} values for {levels} levels"),
            Self::Count { values, domains } => write!(f, "{values} values for {domains} domains"),
            Self::TooLarge => write!(f, "its domains take more than {} MiB", BYTES_MAX >> 20),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Assignment {
    levels: Vec<String>,
    domains: Option<Vec<Domain>>,
    slices: Option<Vec<Slice>>,
}

#[derive(Deserialize)]
struct Domain {
    values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Slice {
    domain_count: usize,
    values_per_level: Vec<Values>,
}

/// The values of a slice's domains at one level.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Values {
    Universal(String),
    Individual(Individual),
}

#[derive(Deserialize)]
struct Individual {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    suffix: String,
    roots: Vec<String>,
}

impl Values {
    /// The value of the domain at this position; `None` if there is none.
    fn at(&self, position: usize) -> Option<String> {
        match self {
            Self::Universal(value) => Some(value.clone()),
            Self::Individual(Individual { prefix, suffix, roots }) => {
                Some(format!("{prefix}{}{suffix}", roots.get(position)?))
            }
        }
    }
}

/// The domains of an assignment.
pub(super) fn domains(assignment: &Value) -> Result<Domains, Unreadable> {
    let Assignment { levels, domains, slices } =
        Assignment::deserialize(assignment).map_err(|error| Unreadable::Form(error.to_string()))?;
    if levels.is_empty() {
        return Err(Unreadable::NoLevels);
    }
    if domains.is_none() && slices.is_none() {
        return Err(Unreadable::Form("it has neither domains nor slices".to_owned()));
    }
    let mut read = Read { levels: levels.len(), values: BTreeSet::new(), bytes: 0 };
    for domain in domains.into_iter().flatten() {
        read.add(domain.values)?;
    }
    for slice in slices.iter().flatten() {
        read.add_slice(slice)?;
    }
    Ok(Domains { levels, values: read.values })
}

struct Read {
    /// The number of levels.
    levels: usize,
    values: BTreeSet<Vec<String>>,
    /// The memory that `values` takes.
    bytes: usize,
}

impl Read {
    fn add(&mut self, domain: Vec<String>) -> Result<(), Unreadable> {
        if domain.len() != self.levels {
            return Err(Unreadable::Levels { values: domain.len(), levels: self.levels });
        }
        let bytes: usize = domain.iter().map(|value| size_of::<String>() + value.len()).sum();
        if self.values.insert(domain) {
            self.bytes += bytes;
        }
        if self.bytes > BYTES_MAX { Err(Unreadable::TooLarge) } else { Ok(()) }
    }

    fn add_slice(&mut self, slice: &Slice) -> Result<(), Unreadable> {
        let domains = slice.domain_count;
        let roots = |values: &Values| match values {
            Values::Universal(_) => None,
            Values::Individual(individual) => Some(individual.roots.len()),
        };
        if let Some(values) = slice.values_per_level.iter().filter_map(roots).find(|values| *values != domains) {
            return Err(Unreadable::Count { values, domains });
        }
        // Without values of their own, all domains of the slice are the same.
        let distinct =
            if slice.values_per_level.iter().any(|values| roots(values).is_some()) { domains } else { domains.min(1) };
        for position in 0..distinct {
            self.add(slice.values_per_level.iter().filter_map(|values| values.at(position)).collect())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
