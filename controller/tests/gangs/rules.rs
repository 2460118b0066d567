//! The rules that hold for the pods of training jobs at every moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::pods::Pod;

/// No gang of this many pods stays partially bound for longer than `most`, measured from the first pod's binding to the
/// last one's. Each attempt of a job counts separately.
pub(crate) fn bound_together(
    size: usize,
    most: Duration,
) -> impl FnMut(&BTreeMap<String, Pod>, Instant) -> Option<String> {
    let mut since: BTreeMap<String, Instant> = BTreeMap::new();
    let mut whole: BTreeMap<String, u32> = BTreeMap::new();
    move |pods, now| {
        let mut gangs: BTreeMap<(&str, &str), Vec<&Pod>> = BTreeMap::new();
        for pod in pods.values().filter(|pod| !pod.job.is_empty() && !pod.is_gone && pod.is_bound()) {
            gangs.entry((&pod.job_uid, &pod.job)).or_default().push(pod);
        }
        since.retain(|uid, _| gangs.keys().any(|(there, _)| there == uid));
        let mut breach = None;
        for ((uid, job), bound) in gangs {
            let newest = bound.iter().map(|pod| pod.attempt).max().unwrap_or(0);
            // A gang that was complete may end pod by pod.
            if whole.get(uid).is_some_and(|attempt| newest <= *attempt) || bound.iter().all(|pod| !pod.is_live()) {
                since.remove(uid);
            } else if bound.iter().filter(|pod| !pod.is_leaving).count() >= size {
                whole.insert(uid.to_owned(), newest);
                since.remove(uid);
            } else {
                let part = now - *since.entry(uid.to_owned()).or_insert(now);
                if part > most {
                    breach = Some(format!("{job}: {} of {size} bound for {part:?}", bound.len()));
                }
            }
        }
        breach
    }
}

/// No index has two live pods; no name is used twice within a job; an index that has succeeded gets no other pod.
pub(crate) fn run_once() -> impl FnMut(&BTreeMap<String, Pod>, Instant) -> Option<String> {
    move |pods, _| {
        let mut live: BTreeMap<(&str, &str, u32), &Pod> = BTreeMap::new();
        let mut names: BTreeMap<(&str, &str), &Pod> = BTreeMap::new();
        let mut done: BTreeMap<(&str, &str, u32), &Pod> = BTreeMap::new();
        for pod in pods.values().filter(|pod| !pod.job.is_empty()) {
            if let Some(other) = names.insert((&pod.job_uid, &pod.name), pod) {
                return Some(format!("{} was made twice: {} and {}", pod.name, other.uid, pod.uid));
            }
            if pod.phase == "Succeeded"
                && let Some(other) = done.insert(pod.place(), pod)
            {
                return Some(format!("{} and {} have both succeeded", other.name, pod.name));
            }
            if pod.is_live()
                && let Some(other) = live.insert(pod.place(), pod)
            {
                return Some(format!("{} and {} are both to run", other.name, pod.name));
            }
        }
        let again = live.iter().find_map(|(place, pod)| Some((pod, done.get(place)?)));
        again.map(|(pod, done)| format!("{} is to run, and {} has succeeded", pod.name, done.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod of a job that runs on a node.
    fn pod(name: &str, index: u32) -> Pod {
        let text = |text: &str| text.to_owned();
        Pod {
            name: text(name),
            uid: format!("uid of {name}"),
            job: text("job"),
            job_uid: text("uid"),
            index,
            attempt: 1,
            node: text("n"),
            phase: text("Running"),
            ..Pod::default()
        }
    }

    fn ended(pod: Pod) -> Pod {
        Pod { phase: "Succeeded".to_owned(), ..pod }
    }

    fn of<const N: usize>(pods: [Pod; N]) -> BTreeMap<String, Pod> {
        pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect()
    }

    #[test]
    fn an_index_that_runs_twice_is_seen() {
        let wrong = |pods| run_once()(&of(pods), Instant::now()).unwrap_or_default();
        let gone = |pod| Pod { is_gone: true, ..pod };
        assert_eq!(wrong([pod("a", 0), pod("b", 1)]), "");
        assert_eq!(wrong([gone(pod("a", 0)), pod("b", 0)]), "");
        assert_eq!(wrong([ended(pod("a", 0)), pod("b", 1)]), "");
        assert_eq!(wrong([pod("a", 0), pod("b", 0)]), "a and b are both to run");
        assert_eq!(wrong([ended(pod("a", 0)), pod("b", 0)]), "b is to run, and a has succeeded");
        assert_eq!(wrong([ended(pod("a", 0)), gone(ended(pod("b", 0)))]), "a and b have both succeeded");
        let again = Pod { uid: "z".to_owned(), ..pod("a", 0) };
        assert_eq!(wrong([gone(pod("a", 0)), again]), "a was made twice: uid of a and z");
    }

    #[test]
    fn a_part_of_a_gang_may_be_bound_for_its_time_and_no_longer() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut rule = bound_together(2, 5 * second);
        let unbound = || Pod { node: String::new(), ..pod("b", 1) };
        assert_eq!(rule(&of([pod("a", 0), unbound()]), start), None);
        assert_eq!(rule(&of([pod("a", 0), unbound()]), start + 5 * second), None);
        let wrong = rule(&of([pod("a", 0), unbound()]), start + 6 * second);
        assert_eq!(wrong.as_deref(), Some("job: 1 of 2 bound for 6s"));
        // A gang that was complete may end in any order, and a gang that was released starts over.
        assert_eq!(rule(&of([pod("a", 0), pod("b", 1)]), start + 7 * second), None);
        assert_eq!(rule(&of([pod("a", 0), ended(pod("b", 1))]), start + 20 * second), None);
        let next = || Pod { attempt: 2, ..pod("c", 0) };
        assert_eq!(rule(&of([next()]), start + 21 * second), None);
        assert_eq!(rule(&of([Pod { is_leaving: true, ..next() }]), start + 27 * second), None);
        assert_eq!(rule(&of([next()]), start + 28 * second), None);
    }
}
