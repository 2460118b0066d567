//! Translates between wire types and the crate's own types. Everything from a peer is validated here.

use bytes::Bytes;
use larder_cachenode_api::frame::{REASON_BYTES_MOST, RefusalCode, WireRange};
use larder_cachenode_api::{PROTOCOL, v1};
use larder_dataset::{BlockIndex, BlockRange, CacheId, SnapshotId, crc32c};
use tonic::{Code, Status};

use crate::blocks::{AskedDataset, DatasetStats, OtherSnapshot};
use crate::read::ReadError;
use crate::token::Token;

/// The most datasets in one request for statistics.
pub(crate) const ASKED_MOST: usize = 1024;

/// The longest hash of an origin, in bytes.
const ORIGIN_BYTES_MOST: usize = 64;

/// The error for bytes that cannot be a token.
pub(crate) const NO_TOKEN: &str = "no dataset can have such a token";

/// Why a message is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error("the peer speaks protocol {theirs}, this node {PROTOCOL}: run the same version of Larder on all nodes")]
    Protocol { theirs: u32 },
    #[error("{field}: {what}")]
    Field { field: &'static str, what: &'static str },
}

impl From<BadRequest> for Status {
    fn from(error: BadRequest) -> Self {
        let code = match error {
            BadRequest::Protocol { .. } => Code::FailedPrecondition,
            BadRequest::Field { .. } => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

pub(crate) fn protocol(theirs: u32) -> Result<(), BadRequest> {
    if theirs == PROTOCOL { Ok(()) } else { Err(BadRequest::Protocol { theirs }) }
}

fn id(bytes: &[u8]) -> Result<[u8; 32], BadRequest> {
    bytes.try_into().map_err(|_| BadRequest::Field { field: "snapshot", what: "is not 32 bytes" })
}

pub(crate) fn range_to_wire(cache: CacheId, range: BlockRange) -> WireRange {
    WireRange { snapshot: cache.0, block: range.block.0, start: range.start, len: range.len }
}

pub(crate) fn range_from_wire(range: &WireRange) -> (CacheId, BlockRange) {
    let WireRange { snapshot, block, start, len } = *range;
    (CacheId(snapshot), BlockRange { block: BlockIndex(block), start, len })
}

/// The sum that follows a range: its `crc` (CRC32C) combined with the request's.
pub(crate) fn sum(range: &WireRange, crc: u32) -> u32 {
    crc ^ crc32c(&range.encode())
}

/// The code and the reason of a refusal. A peer without the token gets the same answer as a peer that asks for an
/// unknown dataset, so that it cannot find out which datasets exist.
pub(crate) fn refusal(error: &ReadError) -> (RefusalCode, String) {
    let error = if *error == ReadError::Denied { &ReadError::UnknownDataset } else { error };
    let code = match error {
        ReadError::UnknownDataset | ReadError::Denied => RefusalCode::UnknownDataset,
        ReadError::NoSuchRange => RefusalCode::NoSuchRange,
        ReadError::Gone => RefusalCode::Gone,
        ReadError::Stale => RefusalCode::Stale,
        ReadError::TimedOut => RefusalCode::TimedOut,
        ReadError::Unavailable { .. } => RefusalCode::Unavailable,
        ReadError::Stopping => RefusalCode::Stopping,
    };
    let mut reason = match error {
        ReadError::Unavailable { message } => message.clone(),
        other => other.to_string(),
    };
    while reason.len() > REASON_BYTES_MOST {
        reason.pop();
    }
    (code, reason)
}

/// The error that a refusal stands for. Error: the reason why the request itself was invalid.
pub(crate) fn read_error(code: RefusalCode, reason: String) -> Result<ReadError, String> {
    Ok(match code {
        RefusalCode::UnknownDataset => ReadError::UnknownDataset,
        RefusalCode::Denied => ReadError::Denied,
        RefusalCode::NoSuchRange => ReadError::NoSuchRange,
        RefusalCode::Gone => ReadError::Gone,
        RefusalCode::Stale => ReadError::Stale,
        RefusalCode::TimedOut => ReadError::TimedOut,
        RefusalCode::Unavailable => ReadError::Unavailable { message: reason },
        RefusalCode::Stopping => ReadError::Stopping,
        RefusalCode::Invalid => return Err(reason),
    })
}

pub(crate) fn asked_to_wire(asked: &AskedDataset) -> v1::AskedDataset {
    v1::AskedDataset {
        snapshot: Bytes::copy_from_slice(&asked.cache.0),
        token: asked.token.as_ref().map_or_else(String::new, |token| token.reveal().to_owned()),
        origin: asked.origin.clone(),
    }
}

pub(crate) fn asked_from_wire(asked: &[v1::AskedDataset]) -> Result<Vec<AskedDataset>, BadRequest> {
    if asked.len() > ASKED_MOST {
        return Err(BadRequest::Field { field: "datasets", what: "are more than 1,024" });
    }
    let one = |asked: &v1::AskedDataset| {
        let token = match asked.token.as_str() {
            "" => None,
            token => Some(Token::new(token).map_err(|_| BadRequest::Field { field: "token", what: NO_TOKEN })?),
        };
        if asked.origin.len() > ORIGIN_BYTES_MOST {
            return Err(BadRequest::Field { field: "origin", what: "is no hash" });
        }
        Ok(AskedDataset { cache: CacheId(id(&asked.snapshot)?), token, origin: asked.origin.clone() })
    };
    asked.iter().map(one).collect()
}

pub(crate) fn stats_to_wire(stats: DatasetStats) -> v1::DatasetStats {
    v1::DatasetStats {
        snapshot: Bytes::copy_from_slice(&stats.cache.0),
        name: stats.name,
        blocks_cached: stats.blocks_cached,
        bytes_cached: stats.bytes_cached,
        capacity_bytes: stats.capacity_bytes,
    }
}

pub(crate) fn stats_from_wire(stats: v1::DatasetStats) -> Result<DatasetStats, BadRequest> {
    Ok(DatasetStats {
        cache: CacheId(id(&stats.snapshot)?),
        name: stats.name,
        blocks_cached: stats.blocks_cached,
        bytes_cached: stats.bytes_cached,
        capacity_bytes: stats.capacity_bytes,
    })
}

pub(crate) fn other_to_wire(other: OtherSnapshot) -> v1::OtherSnapshot {
    let (asked, snapshot) = (Bytes::copy_from_slice(&other.asked.0), Bytes::copy_from_slice(&other.snapshot.0));
    v1::OtherSnapshot { asked, snapshot, listed_ns: other.listed_ns }
}

pub(crate) fn other_from_wire(other: &v1::OtherSnapshot) -> Result<OtherSnapshot, BadRequest> {
    let (asked, snapshot) = (CacheId(id(&other.asked)?), SnapshotId(id(&other.snapshot)?));
    Ok(OtherSnapshot { asked, snapshot, listed_ns: other.listed_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY_ERROR: [ReadError; 8] = [
        ReadError::UnknownDataset,
        ReadError::Denied,
        ReadError::NoSuchRange,
        ReadError::Gone,
        ReadError::Stale,
        ReadError::TimedOut,
        ReadError::Unavailable { message: String::new() },
        ReadError::Stopping,
    ];

    #[test]
    fn refusals_survive_the_wire() {
        for error in EVERY_ERROR.into_iter().filter(|error| *error != ReadError::Denied) {
            let (code, reason) = refusal(&error);
            assert_eq!(read_error(code, reason), Ok(error));
        }
        assert_eq!(refusal(&ReadError::Denied), refusal(&ReadError::UnknownDataset), "a peer must not learn which");
        assert_eq!(read_error(RefusalCode::Invalid, "no".to_owned()), Err("no".to_owned()));
        let (_, reason) = refusal(&ReadError::unavailable("ä".repeat(REASON_BYTES_MOST)));
        assert_eq!(reason.len(), REASON_BYTES_MOST, "cut between characters");
    }
}
