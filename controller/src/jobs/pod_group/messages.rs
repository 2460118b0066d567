//! The scheduler's message about a gang that has not started, as a part of the job's sentence.

use super::known::KnownGroup;

/// The sentence; `None` if the scheduler has reported nothing that still applies. `attempts` are the attempts of pods
/// that have no node.
pub fn waits_for(job: &str, attempts: &[u32], there: &[&KnownGroup]) -> Option<String> {
    let mut groups = there.iter().filter(|group| {
        let attempt = group.meta.key.name.strip_prefix(job).and_then(|rest| rest.strip_prefix('-')?.parse().ok());
        attempt.is_some_and(|attempt: u32| attempts.contains(&attempt))
    });
    let group = groups.find(|group| group.said.is_some())?;
    let said = group.said.as_ref()?;
    let of = format!("{} pods start together or not at all", group.min_count);
    Some(match said.reason.as_str() {
        "Unschedulable" => format!("{of}: {}", said.message),
        reason => format!("{of}; the scheduler has failed ({reason}): {}", said.message),
    })
}
