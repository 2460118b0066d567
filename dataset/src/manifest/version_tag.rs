//! The version of an object's bytes, and the compact form in which a row stores an MD5 ETag.

use std::borrow::Cow;
use std::fmt::Write;

/// The version that an object's bytes are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionTag<'a> {
    /// An ETag exactly as the origin sends it, quotes included.
    ETag(Cow<'a, str>),
    /// The modification time and size of a local file.
    MtimeSize {
        /// Nanoseconds since the epoch.
        mtime_ns: i64,
        /// Size in bytes.
        size: u64,
    },
}

impl VersionTag<'_> {
    /// An ETag that is an MD5, and the number of parts of its upload (0 for one that was put whole, below 2^24); `None`
    /// for any other version.
    pub fn md5(&self) -> Option<([u8; 16], u32)> {
        match self {
            Self::ETag(etag) => parse_md5(etag),
            Self::MtimeSize { .. } => None,
        }
    }

    /// The ETag of which [`Self::md5`] gives this.
    pub fn from_md5(md5: &[u8; 16], parts: u32) -> VersionTag<'static> {
        VersionTag::ETag(Cow::Owned(format_md5(md5, parts)))
    }

    /// The same version, borrowed from this one.
    pub fn borrowed(&self) -> VersionTag<'_> {
        match self {
            Self::ETag(etag) => VersionTag::ETag(Cow::Borrowed(etag)),
            Self::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns: *mtime_ns, size: *size },
        }
    }
}

/// Parses `"<32 lower-case hex digits>"`, or the same with `-N` for an upload in N parts (0 without it). `None` for any
/// other ETag, and for one that [`format_md5`] would not reproduce exactly.
pub(super) fn parse_md5(etag: &str) -> Option<([u8; 16], u32)> {
    let inner = etag.strip_prefix('"')?.strip_suffix('"')?;
    let (hex, parts) = match inner.split_once('-') {
        Some((hex, parts)) if !parts.starts_with('0') && parts.bytes().all(|byte| byte.is_ascii_digit()) => {
            (hex, parts.parse().ok().filter(|&parts: &u32| parts > 0 && parts < 1 << 24)?)
        }
        Some(_) => return None,
        None => (inner, 0),
    };
    if hex.len() != 32 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut md5 = [0; 16];
    for (byte, digits) in md5.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some((md5, parts))
}

/// The ETag that [`parse_md5`] read.
pub(super) fn format_md5(md5: &[u8; 16], parts: u32) -> String {
    let mut etag = String::with_capacity(44);
    etag.push('"');
    for byte in md5 {
        // Writing to a String cannot fail.
        let _ = write!(etag, "{byte:02x}");
    }
    if parts > 0 {
        let _ = write!(etag, "-{parts}");
    }
    etag.push('"');
    etag
}
