//! The rule of versions beside each other: at most one minor version apart (docs/VERSIONS.md).

use std::collections::BTreeSet;

/// Whether programs of these versions work together. Versions of an unknown form do not count.
pub(super) fn is_supported<'v>(versions: impl IntoIterator<Item = &'v str>) -> bool {
    let minors: BTreeSet<(u64, u64)> = versions.into_iter().filter_map(minor).collect();
    let (Some(first), Some(last)) = (minors.first(), minors.last()) else { return true };
    first.0 == last.0 && last.1 - first.1 <= 1
}

/// Major and minor number of a version such as `0.3.0-dev`.
fn minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.').map(str::parse::<u64>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_one_minor_apart_are_supported() {
        for together in
            [&["0.3.0"][..], &["0.2.1", "0.3.0-dev"], &["0.3.0", "0.2.0", "0.3.9"], &["unknown", "0.3.0"], &[]]
        {
            assert!(is_supported(together.iter().copied()), "{together:?}");
        }
        for apart in [&["0.1.0", "0.3.0"][..], &["0.9.0", "1.0.0"], &["0.10.0", "0.2.0"]] {
            assert!(!is_supported(apart.iter().copied()), "{apart:?}");
        }
    }
}
