//! The result of a check, with what to do about it.

use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// Works, but slower than it could, or with less.
    Warn,
    /// Does not work.
    Fail,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) remedy: &'static str,
}

/// A finding; one that is ok needs no remedy.
pub(super) fn finding(what: &'static str, verdict: Verdict, found: String, remedy: &'static str) -> Finding {
    Finding { what, verdict, found, remedy: if verdict == Verdict::Ok { "" } else { remedy } }
}
