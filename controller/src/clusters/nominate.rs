//! The clusters that are nominated for a Workload that MultiKueue is to move: pure.
//!
//! MultiKueue copies the Workload to each nominated cluster, and moves the job to the first whose Kueue admits it. Until
//! then, copies may hold quota in several clusters, and a cluster without the data may be the fastest. So one cluster is
//! nominated first: the one that [`choice`](super::choice) puts first. One more follows in each round, and after the last
//! of those that are known, all others together. A nomination is never taken back, because MultiKueue would delete the copy
//! there.

use crate::time::Seconds;

/// How long a cluster may take to admit a Workload before another one is nominated beside it, as in Kueue's own
/// incremental dispatcher.
pub const ROUND_SECONDS: i64 = 300;

/// The most nominated clusters that Kueue accepts.
const NOMINATED_MAX: usize = 20;

/// How many clusters are nominated by now; `None`: all, those that are not known included. `waited` is for how many
/// seconds the Workload has waited for a cluster, and `known` the number of clusters that can be compared.
pub fn due(waited: i64, known: usize) -> Option<usize> {
    let due = usize::try_from(waited.max(0) / ROUND_SECONDS).unwrap_or(usize::MAX).saturating_add(1);
    (due <= known).then_some(due)
}

/// When more than `due` clusters are nominated.
pub fn more_at(since: Seconds, due: usize) -> Seconds {
    since + ROUND_SECONDS.saturating_mul(i64::try_from(due).unwrap_or(i64::MAX))
}

/// True if fewer clusters are nominated than are due.
pub fn lacks(all: &[String], nominated: &[String], due: Option<usize>) -> bool {
    let due = due.unwrap_or(all.len()).min(NOMINATED_MAX);
    all.iter().filter(|name| nominated.contains(name)).count() < due
}

/// The clusters to nominate. `all` are those that the Workload may be moved to, and `known` those of them that can be
/// compared, the best first. `before` are the nominated ones.
pub fn nominate(all: &[String], known: &[String], before: &[String], due: Option<usize>) -> Vec<String> {
    let mut clusters: Vec<String> = before.iter().filter(|name| all.contains(name)).cloned().collect();
    let others = all.iter().filter(|name| due.is_none() && !known.contains(name));
    let most = due.unwrap_or(usize::MAX).min(NOMINATED_MAX);
    for name in known.iter().chain(others) {
        if clusters.len() < most && !clusters.contains(name) {
            clusters.push(name.clone());
        }
    }
    clusters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// The nominations this many seconds after the Workload began to wait, and when there are more.
    fn after(waited: i64, known: &[&str], before: &[&str]) -> (Vec<String>, Option<i64>) {
        let (all, before) = (names(&["a", "b", "c", "d"]), names(before));
        let due = due(waited, known.len());
        let clusters = nominate(&all, &names(known), &before, due);
        assert_eq!(clusters.iter().all(|name| before.contains(name)), !lacks(&all, &before, due), "{clusters:?}");
        assert!(!lacks(&all, &clusters, due), "{clusters:?}");
        (clusters, due.map(|due| more_at(Seconds(0), due).0))
    }

    // SEMANTICS: J23
    #[test]
    fn one_more_cluster_is_nominated_in_each_round_and_unknown_ones_last_and_together() {
        assert_eq!(after(0, &["c", "a"], &[]), (names(&["c"]), Some(300)));
        assert_eq!(after(299, &["c", "a"], &["c"]), (names(&["c"]), Some(300)));
        // The order may have changed meanwhile. No nomination is taken back.
        assert_eq!(after(300, &["a", "c"], &["c"]), (names(&["c", "a"]), Some(600)));
        assert_eq!(after(600, &["c", "a"], &["c", "a"]), (names(&["c", "a", "b", "d"]), None));
        // After a pause of the controller, all that are due follow at once.
        assert_eq!(after(10_000, &["c", "a"], &[]), (names(&["c", "a", "b", "d"]), None));
        // A clock that is behind stops nothing.
        assert_eq!(after(-50, &["c", "a"], &[]), (names(&["c"]), Some(300)));
    }

    // SEMANTICS: J23
    #[test]
    fn clusters_that_cannot_be_compared_are_nominated_at_once() {
        assert_eq!(after(0, &[], &[]), (names(&["a", "b", "c", "d"]), None));
        assert_eq!(after(0, &[], &["gone", "b"]), (names(&["b", "a", "c", "d"]), None));
        let many: Vec<String> = (0..30).map(|at| format!("c{at}")).collect();
        let most = nominate(&many, &[], &[], None);
        assert_eq!((most.len(), lacks(&many, &most, None)), (20, false));
    }
}
