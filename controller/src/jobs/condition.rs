//! Conditions of kinds whose status has only one.

use crate::time::Seconds;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// The result of a check.
pub(crate) struct Finding {
    /// Whether the condition is true.
    pub(crate) is: bool,
    /// The reason, as one CamelCase word.
    pub(crate) reason: &'static str,
    /// The reason, as a sentence.
    pub(crate) message: String,
}

/// A time in the API's type.
pub(crate) fn time(at: Seconds) -> Time {
    Time(Timestamp::from_second(at.0).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Builds a condition from a finding. Keeps the transition time of `before` if the status is the same.
pub(crate) fn condition(
    kind: &str,
    finding: Finding,
    generation: i64,
    before: &[Condition],
    now: Seconds,
) -> Condition {
    let Finding { is, reason, message } = finding;
    let status = if is { "True" } else { "False" };
    let old = before.iter().find(|old| old.type_ == kind && old.status == status);
    Condition {
        last_transition_time: old.map_or_else(|| time(now), |old| old.last_transition_time.clone()),
        message: message.chars().take(1000).collect(),
        observed_generation: Some(generation),
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}
