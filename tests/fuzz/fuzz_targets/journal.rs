//! Reads bytes as a journal: its frames with their checksums, and each frame's record whatever its checksum.
//!
//! Invariant under test: no panic, no memory beyond what the bytes take, and a record that decodes encodes to the same
//! bytes.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the crate of imports would compile object_store and TLS, with the fuzzer's flags.
#[path = "../../../origin/import/src/journal/frames.rs"]
mod frames;
#[path = "../../../origin/import/src/journal/records.rs"]
mod records;

use frames::Frames;
use libfuzzer_sys::fuzz_target;
use records::{CopiedRecord, PackRecord, PageRecord};

/// Bytes of the header before the frames.
const HEADER_BYTES: usize = 64;

fuzz_target!(|data: &[u8]| {
    let mut rest = data.get(HEADER_BYTES..).unwrap_or_default();
    let mut frames = Frames::new(rest);
    while let Ok(Some(payload)) = frames.next_frame() {
        decode(payload);
    }
    // The frames again, without a check of their checksums.
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (payload, after) = after.split_at(len.min(after.len()));
        decode(payload);
        rest = after;
    }
    decode(data);
});

fn decode(payload: &[u8]) {
    if let Ok(page) = PageRecord::decode(payload) {
        assert_eq!(page.encode(), payload);
    }
    if let Ok(pack) = PackRecord::decode(payload) {
        assert_eq!(pack.encode(), payload);
    }
    if let Ok(copied) = CopiedRecord::decode(payload) {
        assert_eq!(copied.encode(), payload);
    }
}
