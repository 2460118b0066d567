//! The frames of a journal, each with a checksum of its own.
//!
//! ```text
//!   0  length of the payload, u32, 1 byte to 1 GiB
//!   4  CRC32C of the length and the payload
//!   8  payload
//! ```
//! All numbers are little-endian. Invariant: no input makes the decoder panic or reserve more memory than the input
//! itself takes.
//!
//! The fuzz targets include this file by its path, so it must not use the rest of this crate.

use std::io::{self, Read};

use larder_dataset::{crc32c, crc32c_append};

/// The size of a frame without its payload.
pub(super) const FRAME_HEAD_BYTES: usize = 8;
/// The longest payload. A page with a folder of ten million files still fits.
const FRAME_MAX: usize = 1 << 30;

/// Encodes a payload as a frame. `None` if the payload is empty or too long.
pub(super) fn encode_frame(payload: &[u8]) -> Option<Vec<u8>> {
    if payload.is_empty() || payload.len() > FRAME_MAX {
        return None;
    }
    let len = (payload.len() as u32).to_le_bytes();
    let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + payload.len());
    frame.extend_from_slice(&len);
    frame.extend_from_slice(&frame_crc(len, payload).to_le_bytes());
    frame.extend_from_slice(payload);
    Some(frame)
}

/// The CRC also covers the length, so that a tail of zeros is not a valid frame.
fn frame_crc(len: [u8; 4], payload: &[u8]) -> u32 {
    crc32c_append(crc32c(&len), payload)
}

/// Reads frames until the first invalid one.
#[derive(Debug)]
pub(super) struct Frames<R> {
    from: R,
    payload: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// Reads from the current position of `from`, which must be after the header.
    pub(super) fn new(from: R) -> Self {
        Self { from, payload: Vec::new() }
    }

    /// The next payload. `None` at the end, and at a frame that is cut off, empty, too long or has a wrong CRC; no
    /// further frame can be read after that. Errors: only those of reading.
    pub(super) fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let mut head = [0; FRAME_HEAD_BYTES];
        match self.from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let (len_bytes, crc) = ([l0, l1, l2, l3], u32::from_le_bytes([c0, c1, c2, c3]));
        let len = u32::from_le_bytes(len_bytes) as usize;
        if len == 0 || len > FRAME_MAX {
            return Ok(None);
        }
        self.payload.clear();
        // Reads only bytes that exist, so a wrong length reserves no memory.
        self.from.by_ref().take(len as u64).read_to_end(&mut self.payload)?;
        let whole = self.payload.len() == len && frame_crc(len_bytes, &self.payload) == crc;
        Ok(whole.then_some(&self.payload[..]))
    }
}
