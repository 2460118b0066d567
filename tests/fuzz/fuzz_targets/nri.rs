//! Reads bytes as frames of NRI's socket, and their payloads as the annotation by which a pod requests lower limits.
//!
//! Invariant under test: no panic; a decoded header keeps within its limits and encodes to the same bytes.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the crate would compile tonic and kube, with the fuzzer's flags.
#[path = "../../../device-plugins/src/nri/frame.rs"]
mod frame;
#[path = "../../../device-plugins/src/limits/lower.rs"]
mod lower;

use frame::{HEADER_BYTES, Header, RECEIVED_BYTES_MOST};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    annotated(data);
    let mut rest = data;
    while let Some((bytes, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let Some(header) = Header::decode(*bytes) else { return };
        assert!(header.length <= RECEIVED_BYTES_MOST);
        assert_eq!(header.encode(), *bytes);
        let (payload, after) = after.split_at(header.length.min(after.len()));
        annotated(payload);
        rest = after;
    }
});

fn annotated(text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text) {
        // Whatever it asks for: it is text.
        if let Err(error) = text.parse::<lower::LowerLimits>() {
            assert!(error.to_string().len() < 4096);
        }
    }
}
