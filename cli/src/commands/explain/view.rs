//! The sentence about a Dataset, and below it the status from which it is derived.

use std::fmt::Write;

use larder_api::names::CLEAN_ANNOTATION;
use larder_api::{ConditionKind, Dataset, DatasetStatus, Explanation};
use larder_dataset::size::show_bytes;

use crate::output::count;

/// The number of leading digits of a snapshot's id that are shown; they suffice to distinguish snapshots.
const DIGITS: usize = 12;

/// The output of `larder explain dataset`.
pub(super) fn view(key: &str, dataset: &Dataset, explanation: &Explanation) -> String {
    let mut text = format!("{}\n", explanation.sentence(key));
    if let Some(status) = &dataset.status {
        conditions(status, &mut text);
        facts(status, &mut text);
    }
    let asked = dataset.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CLEAN_ANNOTATION));
    let cleaned = dataset.status.as_ref().and_then(|status| status.cleaned.as_ref());
    if let Some(asked) = asked.filter(|asked| Some(*asked) != cleaned) {
        line(&mut text, "clean", &format!("requested {asked}, not done yet"));
    }
    text
}

fn line(text: &mut String, what: &str, value: &str) {
    let _ = writeln!(text, "  {what:<9} {value}");
}

fn conditions(status: &DatasetStatus, text: &mut String) {
    for &kind in ConditionKind::ALL {
        let Some(condition) = kind.find(&status.conditions) else { continue };
        let since = condition.last_transition_time.0;
        let said = format!("{:<5} {:<18} since {since}  {}", condition.status, condition.reason, condition.message);
        line(text, kind.as_str(), said.trim_end());
    }
}

fn facts(status: &DatasetStatus, text: &mut String) {
    let short = |id: &String| id.chars().take(DIGITS).collect::<String>();
    if let Some(snapshot) = &status.snapshot {
        let files = status.files.map(|files| format!(", {}", count(files, "file"))).unwrap_or_default();
        let bytes = status.bytes.map(|bytes| format!(", {}", show_bytes(bytes))).unwrap_or_default();
        let next = status.next.as_ref().map(|next| format!("; next {}, being warmed", short(next))).unwrap_or_default();
        line(text, "snapshot", &format!("{}{files}{bytes}{next}", short(snapshot)));
    }
    if let Some(nodes) = status.nodes {
        let percent = status.percent.map(|percent| format!(" ({percent} %)")).unwrap_or_default();
        let eta = status.eta.as_ref().map(|eta| format!(", complete at about {}", eta.0)).unwrap_or_default();
        let said = format!("{} wanted, {} holding, {} warm{percent}{eta}", nodes.wanted, nodes.holding, nodes.warm);
        line(text, "nodes", &said);
    }
    for lag in &status.lagging {
        let said = format!("{}: {:?} {}", lag.node, lag.reason, lag.message);
        line(text, "lagging", said.trim_end());
    }
    if let Some(users) = &status.users {
        let mut said = count(users.count.into(), "pod");
        if !users.pods.is_empty() {
            let _ = write!(said, ": {}", users.pods.join(", "));
        }
        let more = (users.count as usize).saturating_sub(users.pods.len());
        if more > 0 {
            let _ = write!(said, " and {more} more");
        }
        line(text, "users", &said);
    }
}

#[cfg(test)]
mod tests {
    use larder_api::explain;

    use super::*;

    #[test]
    fn the_lines_show_the_status() {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            serde_json::json!({
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": "2026-01-31T08:00:00Z",
            })
        };
        let dataset = serde_json::json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "Dataset",
            "metadata": {
                "namespace": "team-a",
                "name": "pets",
                "annotations": {"larder.dev/clean": "2026-01-31T09:00:00Z"},
            },
            "spec": {"origin": {"source": "s3://b", "anonymous": true}},
            "status": {
                "snapshot": "ab".repeat(32),
                "next": "cd".repeat(32),
                "files": 1,
                "bytes": 1_500_000,
                "nodes": {"wanted": 4, "holding": 3, "warm": 2},
                "percent": 60,
                "eta": "2026-01-31T10:42:00Z",
                "users": {"count": 3, "pods": ["team-a/x", "team-b/y"]},
                "lagging": [
                    {"node": "n3", "reason": "WarmingFailed", "message": "no space"},
                    {"node": "n4", "reason": "Queued"},
                ],
                "conditions": [
                    condition("Ready", "False", "Warming", "60 % on 4 nodes"),
                    condition("Imported", "True", "Listed", "1 files"),
                ],
            },
        });
        let mut dataset: Dataset = serde_json::from_value(dataset).unwrap();
        let of = |dataset: &Dataset| view("team-a/pets", dataset, &explain(dataset));
        let text = of(&dataset);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("team-a/pets is not ready: its bytes are being fetched"), "{text}");
        assert_eq!(
            lines[1..],
            [
                "  Imported  True  Listed             since 2026-01-31T08:00:00Z  1 files",
                "  Ready     False Warming            since 2026-01-31T08:00:00Z  60 % on 4 nodes",
                "  snapshot  abababababab, 1 file, 1.4 MiB; next cdcdcdcdcdcd, being warmed",
                "  nodes     4 wanted, 3 holding, 2 warm (60 %), complete at about 2026-01-31T10:42:00Z",
                "  lagging   n3: WarmingFailed no space",
                "  lagging   n4: Queued",
                "  users     3 pods: team-a/x, team-b/y and 1 more",
                "  clean     requested 2026-01-31T09:00:00Z, not done yet",
            ]
        );
        dataset.status.as_mut().unwrap().cleaned = Some("2026-01-31T09:00:00Z".into());
        assert!(!of(&dataset).contains("clean "), "it is done");
        dataset.status = None;
        assert_eq!(of(&dataset).lines().count(), 2, "the sentence, and what was asked for");
    }
}
