//! Why a peer did not give what was wanted: as callers see it, and as it is told between the modules here.

use larder_cachenode_api::frame::Malformed;
use tonic::{Code, Status};

use crate::blocks::ReadError;
use crate::chain::chain;
use crate::counters::Cause;

/// The longest text of a peer that is passed on.
const MESSAGE_CHARS_MOST: usize = 200;

/// Why a peer did not give what was wanted. Whatever it is, the origin may have it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer failed before, and nothing was asked of it, or the read was given up because another failed.
    #[error("the node {node} is bypassed")]
    Bypassed {
        /// Which node.
        node: String,
    },
    /// There is no such node in the cluster, or it is this one.
    #[error("there is no peer {node}")]
    NoSuchNode {
        /// Which node.
        node: String,
    },
    /// What was wanted cannot be: a mistake of the one who asks.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
    },
    /// The peer works, and does not give it.
    #[error("the node {node} refuses")]
    Refused {
        /// Which node.
        node: String,
        /// Why.
        source: ReadError,
    },
    /// The peer failed, and is bypassed from now on.
    #[error("the node {node} failed ({}): {what}", cause.name())]
    Failed {
        /// Which node.
        node: String,
        /// What it is counted as.
        cause: Cause,
        /// What happened, for people.
        what: String,
    },
}

impl PeerError {
    /// How the peer failed, if it did.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Failed { cause, .. } => Some(*cause),
            Self::Bypassed { .. } | Self::NoSuchNode { .. } | Self::Invalid { .. } | Self::Refused { .. } => None,
        }
    }

    /// How the peer refused, if it did.
    pub fn refusal(&self) -> Option<&ReadError> {
        match self {
            Self::Refused { source, .. } => Some(source),
            Self::Bypassed { .. } | Self::NoSuchNode { .. } | Self::Invalid { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Why an attempt at a peer did not succeed.
#[derive(Clone, Debug)]
pub(super) enum Miss {
    /// The peer is at fault.
    Failed(Failure),
    /// It answered that it will not.
    Refused(ReadError),
    /// What was asked cannot be.
    Invalid(String),
}

/// What a peer did wrong.
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

pub(super) fn failed(cause: Cause, what: impl std::fmt::Display) -> Miss {
    Miss::Failed(Failure::new(cause, what))
}

/// As much of a peer's words as is passed on.
pub(super) fn shortened(words: &str) -> String {
    words.chars().take(MESSAGE_CHARS_MOST).collect()
}

/// What a gRPC status says of a peer. A connection that broke is told from a peer that says no by the code, which only
/// a peer chooses among these.
pub(super) fn judge(status: &Status, fault: Option<&str>) -> Miss {
    let said = shortened(status.message());
    match status.code() {
        Code::FailedPrecondition | Code::Unimplemented => failed(Cause::OtherProtocol, said),
        Code::InvalidArgument => Miss::Invalid(said),
        Code::ResourceExhausted => Miss::Refused(ReadError::Unavailable { message: said }),
        Code::DeadlineExceeded => failed(Cause::TimedOut, said),
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
            failed(Cause::Broken, fault.map_or_else(|| format!("{said} ({})", chain(status)), str::to_owned))
        }
    }
}
