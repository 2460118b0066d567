//! The result of a check, with its remedy.

use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// Works, but with less speed or fewer features.
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

impl Finding {
    pub(super) fn ok(what: &'static str, found: String) -> Self {
        Self { what, verdict: Verdict::Ok, found, remedy: "" }
    }

    /// The finding, without its remedy if the check passed.
    pub(super) fn settled(self) -> Self {
        match self.verdict {
            Verdict::Ok => Self { remedy: "", ..self },
            Verdict::Warn | Verdict::Fail => self,
        }
    }
}
