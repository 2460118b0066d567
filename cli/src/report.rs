//! Reports for the program that started the command in a pod: one short line of JSON.

use std::path::Path;

use anyhow::Context;
use larder_dataset::Chain;
use larder_origin::OriginError;
use serde::Serialize;

/// The longest message: the kubelet keeps 4 KiB of a termination message.
const MESSAGE_BYTES: usize = 1500;

/// Why a command failed.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    /// `no-credentials`, `not-found`, `denied`, `unavailable`, `invalid` or `other`.
    kind: &'static str,
    message: String,
}

impl Failure {
    /// The failure of an error. `kind` is set if the caller knows it better than the origin.
    pub(crate) fn of(error: &anyhow::Error, kind: Option<&'static str>) -> Self {
        let kind = kind.unwrap_or(match origin_error(error) {
            Some(OriginError::NotFound { .. }) => "not-found",
            Some(OriginError::Denied { .. }) => "denied",
            Some(OriginError::Invalid { .. }) => "invalid",
            Some(OriginError::Busy { .. } | OriginError::TimedOut { .. } | OriginError::Unavailable { .. }) => {
                "unavailable"
            }
            Some(_) | None => "other",
        });
        Self { kind, message: Chain(&**error).to_string().chars().take(MESSAGE_BYTES).collect() }
    }
}

/// Writes a report in place, because a file such as /dev/termination-log cannot be replaced.
pub(crate) fn write(report: &impl Serialize, file: &Path) -> anyhow::Result<()> {
    let line = serde_json::to_string(report)? + "\n";
    std::fs::write(file, line).with_context(|| format!("write the report {} (--report)", file.display()))
}

/// The error of the origin among the causes.
pub(crate) fn origin_error(error: &anyhow::Error) -> Option<&OriginError> {
    error.chain().find_map(|cause| cause.downcast_ref())
}
