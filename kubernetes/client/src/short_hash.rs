//! Short digests, for names of objects and to tell whether something has changed.

use sha2::{Digest, Sha256};

/// Ten hex digits of a hash.
pub fn short_hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}
