//! The records that every server has.

use bytes::Bytes;
use larder_dataset::CacheId;

/// The snapshot that the records belong to.
pub(super) const CACHE: CacheId = CacheId([7; 32]);
/// Number of records. The readers read them in turn.
pub(super) const RECORDS: u32 = 64;
/// The bucket of the S3 server.
pub(super) const BUCKET: &str = "bench";
/// The secret key of the S3 server.
pub(super) const SECRET: &str = "larder-secret";

/// The bytes of a record.
pub(super) fn content(record: u32, bytes: u32) -> Bytes {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(record) >> 13) as u8).collect::<Vec<_>>().into()
}
