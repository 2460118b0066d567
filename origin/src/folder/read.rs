//! Reading a file.
//!
//! The invariant: bytes are returned only if the size and time of the file were the same before and after the read.

use std::ops::Range;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;

use crate::error::OriginError;
use crate::folder::error::failed;
use crate::folder::root::Root;
use crate::folder::stat;
use crate::key::Key;
use crate::version::Version;

/// Reads a range of a file; see `Origin::read`.
pub(super) fn range(
    root: &Root,
    key: &[u8],
    range: Range<u64>,
    version: Option<&Version>,
) -> Result<Bytes, OriginError> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let (file, before) = root.open_file(key)?;
    let found = stat::version(&before);
    if let Some(expected) = version.filter(|expected| **expected != found) {
        return Err(OriginError::Stale { key: Key::from(key), expected: expected.clone(), got: Some(found) });
    }
    let expected = range.end - range.start;
    let size = before.st_size as u64;
    if range.end > size {
        return Err(OriginError::Truncated { key: Key::from(key), expected, got: size.saturating_sub(range.start) });
    }
    let bytes = pread(&file, key, range)?;
    // A concurrent write may have changed some of the bytes, so compare the metadata again.
    let after = rustix::fs::fstat(&file).map_err(|errno| failed(key, "stat", errno))?;
    if stat::version(&after) != found {
        return Err(OriginError::Stale { key: Key::from(key), expected: found, got: Some(stat::version(&after)) });
    }
    if bytes.len() as u64 != expected {
        return Err(OriginError::Truncated { key: Key::from(key), expected, got: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// Reads a whole file; see `Origin::read_all`.
pub(super) fn whole(root: &Root, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
    let (_, metadata) = root.open_file(key)?;
    let size = metadata.st_size as u64;
    if size > limit {
        return Err(OriginError::TooLarge { key: Key::from(key), size, limit });
    }
    let version = stat::version(&metadata);
    Ok((range(root, key, 0..size, Some(&version))?, version))
}

fn pread(file: &OwnedFd, key: &[u8], range: Range<u64>) -> Result<Bytes, OriginError> {
    let expected = (range.end - range.start) as usize;
    let mut bytes = BytesMut::zeroed(expected);
    let mut got = 0;
    while got < expected {
        match rustix::io::pread(file, &mut bytes[got..], range.start + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(key, "read", errno)),
        }
    }
    bytes.truncate(got);
    Ok(bytes.freeze())
}
