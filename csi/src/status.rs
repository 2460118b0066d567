//! The only mapping from our errors to the gRPC codes that a caller sees.
//!
//! A caller's mistake never gets a code that invites a retry. A temporary condition is `UNAVAILABLE`. A condition that
//! needs an administrator is `INTERNAL`.

use tonic::{Code, Status};

use crate::attributes::AttributeError;
use crate::daemon::DaemonError;
use crate::datasets::GrantError;
use crate::fdkeeper::KeeperError;
use crate::mounter::MounterError;
use crate::node::{PublishError, StatsError, UnpublishError};
use crate::target_path::TargetError;
use crate::volumes::VolumeError;

fn attribute(error: &AttributeError) -> Code {
    match error {
        AttributeError::Field { .. }
        | AttributeError::Unknown { .. }
        | AttributeError::Value { .. }
        | AttributeError::Secret { .. }
        | AttributeError::MissingKeys { .. } => Code::InvalidArgument,
    }
}

fn target(error: &TargetError) -> Code {
    match error {
        TargetError::Invalid(_) | TargetError::NotAFolder { .. } => Code::InvalidArgument,
        TargetError::NoParent { .. } | TargetError::Foreign { .. } => Code::FailedPrecondition,
        TargetError::Io { .. } => Code::Internal,
    }
}

fn grant(error: &GrantError) -> Code {
    match error {
        GrantError::Denied(_) => Code::PermissionDenied,
        GrantError::File => Code::FailedPrecondition,
    }
}

fn mounter(error: &MounterError) -> Code {
    match error {
        MounterError::Io { .. } | MounterError::NoInit { .. } => Code::Internal,
        MounterError::Gone { .. } => Code::FailedPrecondition,
    }
}

fn keeper(error: &KeeperError) -> Code {
    match error {
        KeeperError::NotConnected { .. }
        | KeeperError::Broken { .. }
        | KeeperError::Silent { .. }
        | KeeperError::Busy => Code::Unavailable,
        KeeperError::Refused { .. } => Code::Internal,
    }
}

fn daemon(error: &DaemonError) -> Code {
    match error {
        DaemonError::Silent { .. } | DaemonError::Importing { .. } => Code::Unavailable,
        DaemonError::Malformed(_) => Code::Internal,
        DaemonError::Refused { code, .. } => match code {
            // The codes that larderd's proto documents are passed through, since they mean the same here.
            Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Unavailable => *code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Aborted => Code::Unavailable,
            Code::Ok
            | Code::Unknown
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => Code::Internal,
        },
    }
}

fn unpublish(error: &UnpublishError) -> Code {
    match error {
        UnpublishError::Attribute(error) => attribute(error),
        UnpublishError::Target(error) => target(error),
        UnpublishError::Busy => Code::Aborted,
        UnpublishError::Mount(error) => mounter(error),
    }
}

impl From<PublishError> for Status {
    fn from(error: PublishError) -> Self {
        let code = match &error {
            PublishError::Attribute(error) => attribute(error),
            PublishError::Target(error) => target(error),
            PublishError::Grant(error) => grant(error),
            PublishError::Busy => Code::Aborted,
            PublishError::Taken { .. } => Code::AlreadyExists,
            PublishError::NotReady | PublishError::Ended | PublishError::Renewal(_) | PublishError::NoKeys(_) => {
                Code::Unavailable
            }
            PublishError::Daemon(error) | PublishError::OwnCredentials(error) => daemon(error),
            PublishError::Keeper(error) => keeper(error),
            PublishError::Mount(error) => mounter(error),
            PublishError::OtherAccount => Code::PermissionDenied,
            PublishError::Record(_) => Code::Internal,
            PublishError::Withdraw(error) => unpublish(error),
        };
        Self::new(code, error.to_string())
    }
}

impl From<UnpublishError> for Status {
    fn from(error: UnpublishError) -> Self {
        Self::new(unpublish(&error), error.to_string())
    }
}

impl From<StatsError> for Status {
    fn from(error: StatsError) -> Self {
        let code = match &error {
            StatsError::Attribute(error) => attribute(error),
            StatsError::Unknown { .. } => Code::NotFound,
        };
        Self::new(code, error.to_string())
    }
}

impl From<VolumeError> for Status {
    fn from(error: VolumeError) -> Self {
        let code = match &error {
            VolumeError::Attribute(error) => attribute(error),
            VolumeError::Size(_) => Code::OutOfRange,
            VolumeError::Exists { .. } => Code::AlreadyExists,
            VolumeError::Unknown { .. } => Code::NotFound,
            VolumeError::Token => Code::Aborted,
            VolumeError::Disk(_) => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}
