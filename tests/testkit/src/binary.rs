//! The built command.

use std::path::PathBuf;

/// The `larder` command of the same build as the running test.
///
/// # Panics
/// When it is not built.
pub fn larder_binary() -> PathBuf {
    // TARGET/release/deps/TEST-HASH -> TARGET/release/larder
    let test = std::env::current_exe().expect("a running test knows its own path");
    let binary = test.parent().and_then(|deps| deps.parent()).map(|profile| profile.join("larder"));
    match binary {
        Some(binary) if binary.is_file() => binary,
        _ => panic!("the command larder is not built beside {}: run `make test`", test.display()),
    }
}
