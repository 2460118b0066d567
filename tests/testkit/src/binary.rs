//! The built programs.

use std::path::PathBuf;

/// The program `name` of the same build as the running test.
///
/// # Panics
/// When it is not built.
pub fn built(name: &str) -> PathBuf {
    // TARGET/PROFILE/deps/TEST-HASH -> TARGET/PROFILE/NAME
    let test = std::env::current_exe().expect("a running test knows its own path");
    let binary = test.parent().and_then(|deps| deps.parent()).map(|profile| profile.join(name));
    match binary {
        Some(binary) if binary.is_file() => binary,
        _ => panic!("the program {name} is not built beside {}: run `make build`", test.display()),
    }
}

/// The `larder` command of the same build as the running test.
pub fn larder_binary() -> PathBuf {
    built("larder")
}
