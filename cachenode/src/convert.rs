//! Between the generated types and ours. Nothing that came from the other side gets further unchecked.

use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_cachenode_api::{HAVE_BLOCKS_MOST, PROTOCOL, READ_BYTES_MOST, WANTS_MOST, v1};
use larder_dataset::{BLOCK_BYTES, BlockIndex, SnapshotId};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::blocks::{Ask, DatasetStats, ReadError, Token, Want};

const AUTHORIZATION: &str = "authorization";
const BEARER: &str = "Bearer ";

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

pub(crate) fn snapshot(bytes: &[u8]) -> Result<SnapshotId, BadRequest> {
    let id = bytes.try_into().map_err(|_| BadRequest::Field { field: "snapshot", what: "is not 32 bytes" })?;
    Ok(SnapshotId(id))
}

/// The token of a request. A header that holds none is as good as no header: the dataset decides.
pub(crate) fn token(metadata: &MetadataMap) -> Option<Token> {
    let header = metadata.get(AUTHORIZATION)?.to_str().ok()?;
    Token::new(header.strip_prefix(BEARER)?).ok()
}

pub(crate) fn set_token(metadata: &mut MetadataMap, token: Option<&Token>) {
    let Some(token) = token else { return };
    if let Ok(mut value) = MetadataValue::try_from(format!("{BEARER}{}", token.reveal())) {
        // Kept out of what HTTP/2 remembers to compress, and out of what it prints.
        value.set_sensitive(true);
        metadata.insert(AUTHORIZATION, value);
    }
}

/// Wants that a node may ask for: some, not too many, each a range that a block can have.
pub(crate) fn check_wants(wants: &[Want]) -> Result<u64, BadRequest> {
    let field = |what| BadRequest::Field { field: "wants", what };
    if wants.is_empty() || wants.len() > WANTS_MOST {
        return Err(field("are none, or too many"));
    }
    let fits = |want: &Want| want.len > 0 && u64::from(want.start) + u64::from(want.len) <= BLOCK_BYTES;
    if !wants.iter().all(fits) {
        return Err(field("have a range that is empty, or ends after what a block can hold"));
    }
    let bytes = wants.iter().map(|want| u64::from(want.len)).sum();
    if bytes > READ_BYTES_MOST { Err(field("are too many bytes")) } else { Ok(bytes) }
}

/// A read as the server goes about it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) snapshot: SnapshotId,
    pub(crate) asks: Vec<Ask>,
    pub(crate) deadline: Instant,
}

pub(crate) fn asked(
    request: &v1::ReadRequest,
    token: Option<Token>,
    deadline_most: Duration,
) -> Result<Asked, BadRequest> {
    protocol(request.protocol)?;
    let snapshot = snapshot(&request.snapshot)?;
    let wants: Vec<Want> = request
        .wants
        .iter()
        .map(|want| Want { block: BlockIndex(want.block), start: want.start, len: want.len })
        .collect();
    check_wants(&wants)?;
    let wanted = Duration::from_millis(request.deadline_ms.into());
    let patience = if wanted.is_zero() { deadline_most } else { wanted.min(deadline_most) };
    let deadline = Instant::now() + patience;
    let asks = wants
        .into_iter()
        .map(|Want { block, start, len }| Ask {
            snapshot,
            token: token.clone(),
            block,
            start,
            len,
            forwarded: request.forwarded,
            deadline,
        })
        .collect();
    Ok(Asked { snapshot, asks, deadline })
}

pub(crate) fn have_run(request: &v1::HaveRequest) -> Result<(SnapshotId, BlockIndex, u32), BadRequest> {
    protocol(request.protocol)?;
    let snapshot = snapshot(&request.snapshot)?;
    if request.blocks == 0 || request.blocks > HAVE_BLOCKS_MOST {
        return Err(BadRequest::Field { field: "blocks", what: "are none, or too many" });
    }
    Ok((snapshot, BlockIndex(request.first_block), request.blocks))
}

pub(crate) fn refusal(want: u32, error: &ReadError) -> v1::Refusal {
    let code = match error {
        ReadError::UnknownDataset => v1::RefusalCode::UnknownDataset,
        ReadError::Denied => v1::RefusalCode::Denied,
        ReadError::NoSuchRange => v1::RefusalCode::NoSuchRange,
        ReadError::Gone => v1::RefusalCode::Gone,
        ReadError::Stale => v1::RefusalCode::Stale,
        ReadError::TimedOut => v1::RefusalCode::TimedOut,
        ReadError::Unavailable { .. } => v1::RefusalCode::Unavailable,
        ReadError::Stopping => v1::RefusalCode::Stopping,
    };
    let message = match error {
        ReadError::Unavailable { message } => message.clone(),
        other => other.to_string(),
    };
    v1::Refusal { want, code: code.into(), message }
}

pub(crate) fn read_error(refusal: v1::Refusal) -> ReadError {
    match v1::RefusalCode::try_from(refusal.code) {
        Ok(v1::RefusalCode::UnknownDataset) => ReadError::UnknownDataset,
        Ok(v1::RefusalCode::Denied) => ReadError::Denied,
        Ok(v1::RefusalCode::NoSuchRange) => ReadError::NoSuchRange,
        Ok(v1::RefusalCode::Gone) => ReadError::Gone,
        Ok(v1::RefusalCode::Stale) => ReadError::Stale,
        Ok(v1::RefusalCode::TimedOut) => ReadError::TimedOut,
        Ok(v1::RefusalCode::Stopping) => ReadError::Stopping,
        Ok(v1::RefusalCode::Unavailable | v1::RefusalCode::Unspecified) | Err(_) => {
            ReadError::Unavailable { message: refusal.message }
        }
    }
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
    fn refusals_survive_the_wire_and_unknown_ones_are_unavailable() {
        for error in EVERY_ERROR {
            assert_eq!(read_error(refusal(3, &error)), error);
        }
        let unknown = v1::Refusal { want: 0, code: 99, message: "from the future".to_owned() };
        assert_eq!(read_error(unknown), ReadError::unavailable("from the future"));
    }

    #[test]
    fn a_token_travels_as_bearer() {
        let mut metadata = MetadataMap::new();
        assert_eq!(token(&metadata), None);
        let ours = Token::new("abc").unwrap();
        set_token(&mut metadata, Some(&ours));
        assert_eq!(metadata.get("authorization").unwrap().to_str().unwrap(), "Bearer abc");
        assert!(!format!("{metadata:?}").contains("abc"), "{metadata:?}");
        assert_eq!(token(&metadata), Some(ours));
        metadata.insert("authorization", "Basic abc".parse().unwrap());
        assert_eq!(token(&metadata), None);
    }

    #[test]
    fn requests_that_cannot_be_are_refused() {
        let good = v1::ReadRequest {
            protocol: PROTOCOL,
            snapshot: Bytes::from_static(&[7; 32]),
            wants: vec![v1::Want { block: 1, start: 0, len: 4 << 20 }],
            deadline_ms: 0,
            forwarded: true,
        };
        let most = Duration::from_secs(9);
        let asked_for = |request: &v1::ReadRequest| asked(request, None, most);
        let read = asked_for(&good).unwrap();
        assert!(read.asks[0].forwarded && read.asks[0].deadline == read.deadline);
        let bad = |change: fn(&mut v1::ReadRequest)| {
            let mut request = good.clone();
            change(&mut request);
            asked_for(&request).unwrap_err()
        };
        assert_eq!(bad(|request| request.protocol = 2), BadRequest::Protocol { theirs: 2 });
        for error in [
            bad(|request| request.snapshot = Bytes::from_static(&[7; 31])),
            bad(|request| request.wants.clear()),
            bad(|request| request.wants[0].len = 0),
            bad(|request| request.wants[0].start = 1),
            bad(|request| request.wants[0].start = u32::MAX),
            bad(|request| request.wants = vec![request.wants[0]; 17]),
            bad(|request| request.wants = vec![v1::Want { block: 0, start: 0, len: 1 }; WANTS_MOST + 1]),
        ] {
            assert!(matches!(error, BadRequest::Field { .. }), "{error}");
        }
    }
}
