//! The header of a journal: the work that it belongs to, and the start time of that work.
//!
//! ```text
//!   0  magic "LARDERJR"
//!   8  version byte, kind byte (1 import, 2 pack, 3 sync), 6 bytes of zero
//!  16  identity, 32 bytes: SHA-256 of the kind and the parameters of the work
//!  48  start time, i64 nanoseconds since the epoch
//!  56  4 bytes of zero
//!  60  CRC32C of bytes 0..60
//! ```
//! All numbers are little-endian. Frames follow the header; see `frames`.

use larder_dataset::crc32c;
use sha2::{Digest, Sha256};

const MAGIC: [u8; 8] = *b"LARDERJR";
const VERSION: u8 = 2;
pub(super) const HEADER_BYTES: usize = 64;

/// The kind of work that a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalKind {
    /// An import, whose records are pages.
    Import,
    /// A packing, whose records are packs.
    Pack,
    /// A copy to a mirror, whose records are copied objects.
    Sync,
}

impl JournalKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Import => 1,
            Self::Pack => 2,
            Self::Sync => 3,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Pack => "pack",
            Self::Sync => "sync",
        }
    }
}

/// Identifies one piece of work. Two runs with the same identity share a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalIdentity {
    kind: JournalKind,
    hash: [u8; 32],
}

impl JournalIdentity {
    /// The identity of work of this kind with these parameters, in this order.
    pub(crate) fn new(kind: JournalKind, parameters: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update([kind.byte()]);
        for parameter in parameters {
            hash.update((parameter.len() as u64).to_le_bytes());
            hash.update(parameter);
        }
        Self { kind, hash: hash.finalize().into() }
    }

    pub(super) fn file_name(&self) -> String {
        use std::fmt::Write;
        let mut name = format!("{}-", self.kind.as_str());
        for byte in &self.hash[..12] {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name + ".journal"
    }
}

pub(super) fn encode_header(identity: JournalIdentity, started_ns: i64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8] = VERSION;
    header[9] = identity.kind.byte();
    header[16..48].copy_from_slice(&identity.hash);
    header[48..56].copy_from_slice(&started_ns.to_le_bytes());
    let crc = crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Reasons why a journal cannot be continued, as text.
pub(super) const ANOTHER_VERSION: &str = "another version of Larder wrote it";
pub(super) const DAMAGED: &str = "it is damaged";

/// Decodes the start time. Errors: why the bytes are not a header of this version and identity.
pub(super) fn decode_header(header: &[u8; HEADER_BYTES], identity: JournalIdentity) -> Result<i64, &'static str> {
    let sealed = header[..8] == MAGIC && crc32c(&header[..60]).to_le_bytes() == header[60..];
    if !sealed {
        return Err(DAMAGED);
    }
    if header[8] != VERSION {
        return Err(ANOTHER_VERSION);
    }
    if header[9] != identity.kind.byte() || header[16..48] != identity.hash {
        return Err(DAMAGED);
    }
    let started_ns = header[48..].first_chunk().ok_or(DAMAGED)?;
    Ok(i64::from_le_bytes(*started_ns))
}
