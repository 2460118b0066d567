//! The sentence about a job, and below it the status from which it is derived.

use std::fmt::Write;

use larder_api::TrainingJob;
use larder_api::training_job::conditions::JobConditionKind;

use crate::output::cell;

/// The output of `larder explain job`.
pub(super) fn view(sentence: &str, job: &TrainingJob) -> String {
    let mut text = format!("{sentence}\n");
    let Some(status) = &job.status else { return text };
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "  {what:<13} {}", value.trim_end());
    };
    if let Some(phase) = status.phase {
        line("phase", &format!("{phase:?}"));
    }
    for &kind in JobConditionKind::ALL {
        let Some(condition) = kind.find(&status.conditions) else { continue };
        let since = condition.last_transition_time.0;
        let reason = cell(&condition.reason);
        let said = format!("{:<5} {reason:<18} since {since}  {}", cell(&condition.status), cell(&condition.message));
        line(kind.as_str(), &said);
    }
    for role in &status.roles {
        let said =
            format!("{} desired, {} active, {} ready, {} done", role.desired, role.active, role.ready, role.done);
        line(&cell(&role.name), &said);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_show_the_status() {
        let job = serde_json::json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"namespace": "team-a", "name": "resnet"},
            "spec": {"type": "pytorch", "roles": []},
            "status": {
                "phase": "Queued",
                "roles": [{"name": "worker", "desired": 4, "active": 3, "ready": 2, "done": 1}],
                "conditions": [
                    {"type": "QuotaReserved", "status": "False", "reason": "QuotaUsed", "message": "two\nlines",
                        "lastTransitionTime": "2026-01-31T08:00:00Z"},
                    {"type": "Valid", "status": "True", "reason": "Accepted", "message": "",
                        "lastTransitionTime": "2026-01-31T08:00:00Z"},
                ],
            },
        });
        let text = view("It waits.", &serde_json::from_value(job).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "It waits.",
                "  phase         Queued",
                "  Valid         True  Accepted           since 2026-01-31T08:00:00Z",
                "  QuotaReserved False QuotaUsed          since 2026-01-31T08:00:00Z  two lines",
                "  worker        4 desired, 3 active, 2 ready, 1 done",
            ]
        );
    }
}
