//! Reads bytes as the record of a cached block: the header, then a part of the data, as a read of the store does.
//!
//! Invariant under test: no panic, whatever the header holds, even if its checksum is right.
#![no_main]
#![expect(dead_code, reason = "the target calls a part of what it includes")]

// Included rather than linked: the store's crate would compile RocksDB once more, with the fuzzer's flags.
#[path = "../../../cachenode/store/src/record.rs"]
mod record;

use libfuzzer_sys::fuzz_target;
use record::{HEADER_BYTES, Part, decode_header};

fuzz_target!(|data: &[u8]| {
    read(data);
    // The same again with a right checksum, to reach the code behind its check.
    let mut sealed = data.to_vec();
    if sealed.len() >= HEADER_BYTES {
        let crc = larder_dataset::crc32c(&sealed[..60]);
        sealed[60..64].copy_from_slice(&crc.to_le_bytes());
        read(&sealed);
    }
});

fn read(data: &[u8]) {
    let Ok(header) = decode_header(data) else { return };
    for (start, len) in [(0, header.len), (header.len / 2, header.len - header.len / 2), (header.len - 1, 1)] {
        if let Some(part) = Part::new(header.len, start, len) {
            let _ = part.check(&header.key, header.block, data);
        }
    }
}
