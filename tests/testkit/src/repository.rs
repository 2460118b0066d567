//! The path of the clone.

use std::path::{Path, PathBuf};

/// The repository's root, derived from the package whose test runs. It is found at run time, because clones share one
/// target folder and another clone may have built the test.
pub fn repository() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo or nextest runs this");
    let root = Path::new(&package).ancestors().find(|folder| folder.join("Cargo.lock").exists());
    root.expect("a package lies in the repository").to_owned()
}
