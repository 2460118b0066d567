//! Reads bytes as what the agent of a job and a launcher say to each other, inside of TLS.
//!
//! Invariant under test: no panic; a decoded frame keeps within its limits and encodes to the same bytes.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: it is a module of a program.
#[path = "../../../controller/agent/src/frame.rs"]
mod frame;

use frame::{Frame, HEADER_BYTES, PAYLOAD_BYTES_MOST};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some((decoded, length))) = Frame::decode(rest) {
        assert!((HEADER_BYTES..=HEADER_BYTES + PAYLOAD_BYTES_MOST).contains(&length));
        let mut again = Vec::new();
        decoded.encode(&mut again);
        assert_eq!(again, rest[..length]);
        rest = &rest[length..];
    }
});
