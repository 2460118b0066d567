//! Short digests, for object names and for detecting changes.

use sha2::{Digest, Sha256};

/// Ten hex digits of a hash of `parts`.
pub fn short_hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        // A separator: otherwise ["ab", "c"] and ["a", "bc"] would have the same hash.
        hash.update([0]);
    }
    hash.finalize().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}
