//! Numbers of bytes, as the configuration and the annotations of pods write them.

use larder_dataset::size::parse_bytes;

/// Parses a number of bytes as Larder writes it (`64GiB`), or as Kubernetes does, which leaves out the B (`64Gi`, `500M`). The
/// error names the forms of Larder.
pub fn parse(text: &str) -> Result<u64, String> {
    // A thousandth, for Kubernetes.
    let kubernetes = if text.ends_with('m') { text.to_owned() } else { format!("{text}B") };
    parse_bytes(&kubernetes).or_else(|_| parse_bytes(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larders_units_and_those_of_kubernetes_are_read() {
        for (text, bytes) in [
            ("64GiB", 64 << 30),
            ("64Gi", 64 << 30),
            ("512Mi", 512 << 20),
            ("1Ki", 1 << 10),
            ("2Ti", 2 << 40),
            ("1.5Gi", 3 << 29),
            ("500M", 500_000_000),
            ("500MB", 500_000_000),
            ("4096", 4096),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "B", "Gi", "1XB", "7BB", "500m", "-1Gi", "16777216Ti", "unlimited"] {
            assert!(parse(wrong).unwrap_err().starts_with(&format!("`{wrong}` is not a size")), "{wrong}");
        }
    }
}
