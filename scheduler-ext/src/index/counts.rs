//! Numbers by name, in short sorted lists.
//!
//! Invariants: a list is sorted by name, zero is not stored, and numbers do not wrap.

use super::facts::Name;

/// Adds to the number of a name, or subtracts from it.
pub(super) fn count<N>(counts: &mut Vec<(Name, N)>, name: Name, by: N, adds: bool)
where
    N: Copy + Into<u64> + TryFrom<u64>,
{
    let found = counts.binary_search_by(|(key, _)| key.cmp(&name));
    let now: u64 = found.map_or(0, |at| counts[at].1.into());
    let next = if adds { now.saturating_add(by.into()) } else { now.saturating_sub(by.into()) };
    match (found, N::try_from(next)) {
        (Ok(at), _) if next == 0 => drop(counts.remove(at)),
        (Ok(at), Ok(next)) => counts[at].1 = next,
        (Err(at), Ok(value)) if next > 0 => counts.insert(at, (name, value)),
        _ => {}
    }
}

/// The number of a name in a sorted list; 0 if it is not listed. The empty name always has 0, because nodes without a
/// label share no domain.
pub fn count_of<N: Copy + Default>(counts: &[(Name, N)], name: &str) -> N {
    if name.is_empty() {
        return N::default();
    }
    counts.binary_search_by(|(key, _)| (**key).cmp(name)).map_or(N::default(), |at| counts[at].1)
}
