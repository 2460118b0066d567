//! Reasons why a peer did not provide a range: [`PeerError`] for callers, and `RequestError` within the client.

use larder_cachenode_api::frame::Malformed;
use larder_dataset::Chain;
use tonic::{Code, Status};

use crate::counters::Cause;
use crate::read::ReadError;

/// The longest text from a peer that is passed on.
const MESSAGE_CHARS_MOST: usize = 200;

/// Why a peer did not provide a range. In every case the origin may still have it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer is down. The read was not sent, or it was abandoned because another read to the peer failed.
    #[error("the peer {peer} is down and bypassed")]
    Bypassed {
        /// The peer's name.
        peer: String,
    },
    /// The cluster has no node of this name, or it is this node.
    #[error("the cluster has no peer {peer}")]
    NoSuchPeer {
        /// The requested name.
        peer: String,
    },
    /// Another peer answered first, and this peer was notified that the read is no longer needed.
    #[error("the read from the peer {peer} was given up")]
    GivenUp {
        /// The peer's name.
        peer: String,
    },
    /// The request is invalid, which is a bug in the caller.
    #[error("{what}")]
    Invalid {
        /// Why it is invalid.
        what: String,
    },
    /// The peer works, but refuses the range.
    #[error("the peer {peer} refuses")]
    Refused {
        /// The peer's name.
        peer: String,
        /// Why the peer refuses.
        source: ReadError,
    },
    /// The peer failed and is bypassed from now on.
    #[error("the peer {peer} failed ({}): {what}", cause.name())]
    Failed {
        /// The peer's name.
        peer: String,
        /// How the failure is counted.
        cause: Cause,
        /// A description of the failure, for logs.
        what: String,
    },
}

impl PeerError {
    /// The cause of the peer's failure, or `None` if it did not fail.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Failed { cause, .. } => Some(*cause),
            Self::Bypassed { .. }
            | Self::NoSuchPeer { .. }
            | Self::GivenUp { .. }
            | Self::Invalid { .. }
            | Self::Refused { .. } => None,
        }
    }

    /// The peer's refusal, or `None` if it did not refuse.
    pub fn refusal(&self) -> Option<&ReadError> {
        match self {
            Self::Refused { source, .. } => Some(source),
            Self::Bypassed { .. }
            | Self::NoSuchPeer { .. }
            | Self::GivenUp { .. }
            | Self::Invalid { .. }
            | Self::Failed { .. } => None,
        }
    }
}

/// Why one request to a peer did not succeed.
#[derive(Clone, Debug)]
pub(super) enum RequestError {
    /// The peer failed.
    Failed(Failure),
    /// The peer refused.
    Refused(ReadError),
    /// The read was given up before the peer answered. The peer is not judged by it.
    GivenUp,
    /// The request was invalid.
    Invalid(String),
}

/// How a peer failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) what: String,
}

impl Failure {
    pub(super) fn new(cause: Cause, what: impl std::fmt::Display) -> Self {
        Self { cause, what: what.to_string() }
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::new(Cause::WrongBlock, error)
    }
}

pub(super) fn failed(cause: Cause, what: impl std::fmt::Display) -> RequestError {
    RequestError::Failed(Failure::new(cause, what))
}

/// The part of a peer's text that is passed on.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MOST).collect()
}

/// Classifies a gRPC status from a peer. `fault` is why its connection broke, if it did. The code alone distinguishes a
/// broken connection from a refusal, because only a peer sends the codes of refusals.
pub(super) fn judge(status: &Status, fault: Option<&str>) -> RequestError {
    let message = shortened(status.message());
    match status.code() {
        Code::FailedPrecondition | Code::Unimplemented => failed(Cause::OtherProtocol, message),
        Code::InvalidArgument => RequestError::Invalid(message),
        Code::ResourceExhausted => RequestError::Refused(ReadError::Unavailable { message }),
        Code::DeadlineExceeded => failed(Cause::TimedOut, message),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => {
            let what = fault.map_or_else(|| format!("{message} ({})", Chain(status)), str::to_owned);
            failed(Cause::Broken, what)
        }
    }
}
