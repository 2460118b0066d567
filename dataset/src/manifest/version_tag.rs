//! The version of an object's bytes, and the compact encoding of an MD5 ETag in a row.

use std::borrow::Cow;
use std::fmt::Write;

/// The version of an object. Cached bytes belong to one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionTag<'a> {
    /// An ETag exactly as the origin sends it, including its quotes.
    ETag(Cow<'a, str>),
    /// The modification time and size of a local file.
    MtimeSize {
        /// The modification time in nanoseconds since the epoch.
        mtime_ns: i64,
        /// Size in bytes.
        size: u64,
    },
}

impl VersionTag<'_> {
    /// Splits an ETag that is an MD5 into the MD5 and the number of parts of its upload. The number is below 2^24, and
    /// 0 if the object was uploaded whole. `None` for any other version.
    pub fn md5(&self) -> Option<([u8; 16], u32)> {
        match self {
            Self::ETag(etag) => parse_md5(etag),
            Self::MtimeSize { .. } => None,
        }
    }

    /// The ETag for which [`Self::md5`] returns these values.
    pub fn from_md5(md5: &[u8; 16], parts: u32) -> VersionTag<'static> {
        VersionTag::ETag(Cow::Owned(format_md5(md5, parts)))
    }

    /// The same version, borrowed from `self`.
    pub fn borrowed(&self) -> VersionTag<'_> {
        match self {
            Self::ETag(etag) => VersionTag::ETag(Cow::Borrowed(etag)),
            Self::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns: *mtime_ns, size: *size },
        }
    }
}

/// Parses `"<32 lower-case hex digits>"`, or the same with `-N` for an upload in N parts (0 without it). `None` for any
/// other ETag, including one that [`format_md5`] would not reproduce exactly.
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

/// Formats the ETag that [`parse_md5`] parses to these values.
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
