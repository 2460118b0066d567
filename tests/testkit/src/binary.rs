//! The programs and libraries of the same build as the test.

use std::path::PathBuf;

/// The path of the program `name`, of the same build as the running test.
pub fn built(name: &str) -> PathBuf {
    // TARGET/PROFILE/deps/TEST-HASH -> TARGET/PROFILE/NAME
    let test = std::env::current_exe().expect("a running test knows its own path");
    let binary = test.parent().and_then(|deps| deps.parent()).map(|profile| profile.join(name));
    match binary {
        Some(binary) if binary.is_file() => binary,
        _ => panic!("the program {name} is not built beside {}: run `make build`", test.display()),
    }
}

/// The path of the shared library of the package with the Rust name `name`, of the same build as the running program.
/// Cargo builds the library for every package that depends on it.
pub fn built_library(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a running program knows its own path");
    let file = format!("lib{name}.so");
    let beside = program.parent().map(|folder| [folder.join(&file), folder.join("deps").join(&file)]);
    let found = beside.into_iter().flatten().find(|library| library.is_file());
    found.unwrap_or_else(|| panic!("the library {file} is not built beside {}", program.display()))
}

/// The release before this version. `.ci/earlier` reads it here.
const EARLIER: &str = "0.2.0";

/// The path of the program `name` of the release before this version. Without it, says that the test is skipped.
pub fn earlier(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("LARDER_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/larder")))?;
    let binary = cache.join("earlier").join(EARLIER).join(name);
    if !binary.is_file() {
        eprintln!("SKIPPED: no {name} of {EARLIER}: .ci/earlier compiles it");
        return None;
    }
    Some(binary)
}

/// The path of the command `larder`, of the same build as the running test.
pub fn larder_binary() -> PathBuf {
    built("larder")
}

#[cfg(test)]
mod tests {
    use super::EARLIER;

    #[test]
    fn the_earlier_release_is_of_the_minor_version_before() {
        let minor = |version: &str| version.split('.').nth(1).unwrap().parse::<u64>().unwrap();
        assert_eq!(minor(EARLIER) + 1, minor(env!("CARGO_PKG_VERSION")));
    }
}
