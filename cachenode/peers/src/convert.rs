//! Between what goes over the wire and our types. Nothing that came from the other side gets further unchecked.

use bytes::Bytes;
use larder_cachenode_api::frame::{RefusalCode, WORDS_BYTES_MOST, Wanted};
use larder_cachenode_api::{PROTOCOL, v1};
use larder_dataset::{BlockIndex, SnapshotId};
use tonic::{Code, Status};

use crate::blocks::{DatasetStats, ReadError, Want};

/// What a request says that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error(
        "protocol {theirs} was asked for, this node speaks {PROTOCOL}: run the same version of Larder on all nodes"
    )]
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

fn snapshot(bytes: &[u8]) -> Result<SnapshotId, BadRequest> {
    let id = bytes.try_into().map_err(|_| BadRequest::Field { field: "snapshot", what: "is not 32 bytes" })?;
    Ok(SnapshotId(id))
}

pub(crate) fn wanted(snapshot: SnapshotId, want: Want) -> Wanted {
    Wanted { snapshot: snapshot.0, block: want.block.0, start: want.start, len: want.len }
}

pub(crate) fn want(wanted: &Wanted) -> (SnapshotId, Want) {
    let want = Want { block: BlockIndex(wanted.block), start: wanted.start, len: wanted.len };
    (SnapshotId(wanted.snapshot), want)
}

/// What comes behind a range whose CRC32C this is.
pub(crate) fn sum(wanted: &Wanted, crc: u32) -> u32 {
    crc ^ larder_dataset::crc32c(&wanted.encode())
}

/// A refusal, and its words.
pub(crate) fn refusal(error: &ReadError) -> (RefusalCode, String) {
    let code = match error {
        ReadError::UnknownDataset => RefusalCode::UnknownDataset,
        ReadError::Denied => RefusalCode::Denied,
        ReadError::NoSuchRange => RefusalCode::NoSuchRange,
        ReadError::Gone => RefusalCode::Gone,
        ReadError::Stale => RefusalCode::Stale,
        ReadError::TimedOut => RefusalCode::TimedOut,
        ReadError::Unavailable { .. } => RefusalCode::Unavailable,
        ReadError::Stopping => RefusalCode::Stopping,
    };
    let mut words = match error {
        ReadError::Unavailable { message } => message.clone(),
        other => other.to_string(),
    };
    while words.len() > WORDS_BYTES_MOST {
        words.pop();
    }
    (code, words)
}

/// What a refusal means. Errors: what was asked cannot be, which is no refusal of anything.
pub(crate) fn read_error(code: RefusalCode, words: String) -> Result<ReadError, String> {
    Ok(match code {
        RefusalCode::UnknownDataset => ReadError::UnknownDataset,
        RefusalCode::Denied => ReadError::Denied,
        RefusalCode::NoSuchRange => ReadError::NoSuchRange,
        RefusalCode::Gone => ReadError::Gone,
        RefusalCode::Stale => ReadError::Stale,
        RefusalCode::TimedOut => ReadError::TimedOut,
        RefusalCode::Unavailable => ReadError::Unavailable { message: words },
        RefusalCode::Stopping => ReadError::Stopping,
        RefusalCode::Invalid => return Err(words),
    })
}

pub(crate) fn stats_to_wire(stats: DatasetStats) -> v1::DatasetStats {
    v1::DatasetStats {
        snapshot: Bytes::copy_from_slice(&stats.snapshot.0),
        name: stats.name,
        blocks_cached: stats.blocks_cached,
        bytes_cached: stats.bytes_cached,
        capacity_bytes: stats.capacity_bytes,
    }
}

pub(crate) fn stats_from_wire(stats: v1::DatasetStats) -> Result<DatasetStats, BadRequest> {
    Ok(DatasetStats {
        snapshot: snapshot(&stats.snapshot)?,
        name: stats.name,
        blocks_cached: stats.blocks_cached,
        bytes_cached: stats.bytes_cached,
        capacity_bytes: stats.capacity_bytes,
    })
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
        for error in EVERY_ERROR {
            let (code, words) = refusal(&error);
            assert_eq!(read_error(code, words), Ok(error));
        }
        assert_eq!(read_error(RefusalCode::Invalid, "no".to_owned()), Err("no".to_owned()));
        let (_, words) = refusal(&ReadError::unavailable("ä".repeat(WORDS_BYTES_MOST)));
        assert_eq!(words.len(), WORDS_BYTES_MOST, "whole characters");
    }
}
