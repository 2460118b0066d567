//! Events: news about an object for people, which `kubectl describe` shows.

use k8s_openapi::jiff::Timestamp;
use larder_api::names::FIELD_MANAGER;
use serde_json::{Value, json};

/// An event about an object. `kind` is `Normal` or `Warning`.
pub fn event(now: i64, regarding: Value, kind: &str, reason: &str, message: &str) -> Value {
    let at = Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH).to_string();
    let message: String = message.chars().take(1000).collect();
    json!({
        "involvedObject": regarding,
        "reason": reason,
        "message": message,
        "type": kind,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    })
}
