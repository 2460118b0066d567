//! Parses kernel releases.

/// The major and the minor version of a kernel release.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version("5.4.0"), Some((5, 4)));
        assert!(version("5.10") > version("5.4.200"));
        assert_eq!(version("odd"), None);
    }
}
