//! A condition of a kind that has only one.

use crate::time::Seconds;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// What was found.
pub(super) struct Finding {
    /// It holds.
    pub(super) is: bool,
    /// Why, in one word.
    pub(super) reason: &'static str,
    /// Why, in a sentence.
    pub(super) message: String,
}

/// A time as the API has it.
pub(super) fn time(at: Seconds) -> Time {
    Time(Timestamp::from_second(at.0).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// A condition with what was found. It has its status since `now`, unless it had that `before`.
pub(super) fn condition(
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
