//! An object's version and size, from the metadata of its file.

use rustix::fs::Stat;

use crate::listing::ObjectInfo;
use crate::version::Version;

pub(super) fn object_info(key: Vec<u8>, stat: &Stat) -> ObjectInfo {
    ObjectInfo { key, size: stat.st_size as u64, mtime_ns: mtime_ns(stat), version: version(stat) }
}

pub(super) fn version(stat: &Stat) -> Version {
    Version::MtimeSize { mtime_ns: mtime_ns(stat), size: stat.st_size as u64 }
}

pub(super) fn mtime_ns(stat: &Stat) -> i64 {
    stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64)
}
