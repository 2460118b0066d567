//! Reads bytes as a configuration of `larder-devices`: ours, and that of Mellanox's plugin.
//!
//! Invariant under test: no panic; what is accepted keeps within its limits, and what is refused has a line of the text.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the crate would compile clients of Kubernetes, with the fuzzer's flags.
#[path = "../../../device-plugins/src"]
mod devices {
    pub(crate) mod config;
    pub(crate) mod machine;
}

use std::collections::BTreeSet;

use devices::{config, machine};
use libfuzzer_sys::fuzz_target;

use config::{Config, ConfigError, Give};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // YAML has more line breaks than Rust, and its reader counts one behind a comment that ends the text.
    let lines = text.matches(['\r', '\n', '\u{85}', '\u{2028}', '\u{2029}']).count() + 2;
    match Config::parse("file", text) {
        Ok(config) => {
            let names: BTreeSet<&str> = config.resources.iter().map(|resource| resource.name.as_str()).collect();
            assert_eq!(names.len(), config.resources.len());
            for resource in &config.resources {
                let most = if resource.give == Give::All { 4096 } else { 256 };
                assert!((1..=most).contains(&resource.share));
                assert!((1..=lines).contains(&resource.line));
            }
        }
        Err(ConfigError::Refused { refusal, .. }) => assert!((1..=lines).contains(&refusal.line), "{refusal}"),
        Err(ConfigError::Read { .. }) => unreachable!("nothing is read from disk"),
    }
});
