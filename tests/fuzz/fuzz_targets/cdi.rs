//! Reads bytes as a CDI file of somebody else, in both formats.
//!
//! Invariant under test: no panic; each name is `VENDOR/CLASS=DEVICE`, and there are not too many.
#![no_main]

// Included rather than linked: the crate would compile kube and NVML, with the fuzzer's flags.
#[path = "../../../device-plugins/src/cdi/decode.rs"]
mod decode;

use decode::{Format, NAMES_MOST, names};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for format in [Format::Json, Format::Yaml] {
        let names = names(data, format);
        assert!(names.len() <= NAMES_MOST);
        for name in names {
            let parts = name.split_once('=').and_then(|(kind, device)| Some((kind.split_once('/')?, device)));
            let ((vendor, class), device) = parts.expect("a qualified name");
            assert!([vendor, class, device].iter().all(|part| !part.is_empty() && !part.contains(['=', '/'])), "{name}");
        }
    }
});
