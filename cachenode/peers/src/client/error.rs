//! Why a peer did not give a range: for callers, and for the modules of the client.

use larder_cachenode_api::frame::Malformed;
use larder_dataset::Chain;
use tonic::{Code, Status};

use crate::counters::Cause;
use crate::read::ReadError;

/// The longest text of a peer that is passed on.
const MESSAGE_CHARS_MOST: usize = 200;

/// Why a peer did not give a range. The origin may have it in every case.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer is down. The read was not sent, or it was abandoned because another read failed.
    #[error("the peer {peer} is down and bypassed")]
    Bypassed {
        /// Its name.
        peer: String,
    },
    /// The cluster has no such node, or it is this one.
    #[error("the cluster has no peer {peer}")]
    NoSuchPeer {
        /// Its name.
        peer: String,
    },
    /// Another peer answered first, and this one was notified that the read is no longer needed.
    #[error("the read from the peer {peer} was given up")]
    GivenUp {
        /// Its name.
        peer: String,
    },
    /// The request cannot be answered: the caller's mistake.
    #[error("{what}")]
    Invalid {
        /// Why it is invalid.
        what: String,
    },
    /// The peer works, and refuses the range.
    #[error("the peer {peer} refuses")]
    Refused {
        /// Its name.
        peer: String,
        /// Why.
        source: ReadError,
    },
    /// The peer failed, and is bypassed from now on.
    #[error("the peer {peer} failed ({}): {what}", cause.name())]
    Failed {
        /// Its name.
        peer: String,
        /// How the failure is counted.
        cause: Cause,
        /// Description of the failure, for people.
        what: String,
    },
}

impl PeerError {
    /// How the peer failed, if it did.
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

    /// How the peer refused, if it did.
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
    /// The read was given up before the peer had answered, which says nothing about the peer.
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

/// As much of a peer's text as is passed on.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MOST).collect()
}

/// Classifies a gRPC status of a peer; `fault` is why its connection broke, if it did. The code distinguishes a broken
/// connection from a refusal, since only a peer sends the codes of refusals.
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
