//! Selects the pods that are preempted so that another job has room.
//!
//! A [`Cut`] is a part of a job that may be taken: the pods of an elastic role above the minimum, or the whole job.
//! Cuts are taken in a fixed order, all pods above the minimum before any whole job. [`fewest`] finds the smallest set
//! of cuts that is enough, or none.

use std::collections::BTreeMap;

use super::facts::Job;

/// The pods of each role that jobs keep, by the job's position in the list.
pub(super) type Kept = BTreeMap<usize, Vec<u32>>;

/// A part of a job that may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The job's position in the list.
    pub(super) job: usize,
    /// The role that loses pods, from the highest index down; `None`: the whole job stops.
    pub(super) role: Option<usize>,
    /// The most pods of the role that may be taken; 1 for a whole job.
    pub(super) most: u32,
}

/// The pods of a role that a job can lose and still run. Index 0 always stays, because the other pods rendezvous there.
pub(super) fn surplus(job: &Job, role: usize, granted: u32) -> u32 {
    granted.saturating_sub(job.roles[role].min.max(1))
}

/// The pods that jobs keep if this many are taken from each cut. Jobs that lose nothing are omitted.
fn kept(cuts: &[Cut], taken: &[u32], granted: &dyn Fn(usize) -> Vec<u32>) -> Kept {
    let mut all = Kept::new();
    for (cut, taken) in cuts.iter().zip(taken).filter(|(_, taken)| **taken > 0) {
        let kept = all.entry(cut.job).or_insert_with(|| granted(cut.job));
        match cut.role {
            Some(role) => kept[role] = kept[role].saturating_sub(*taken),
            None => kept.fill(0),
        }
    }
    all
}

/// The smallest part to take so that `is_enough` holds; `None` if taking everything is not enough. `granted` is what a
/// job has now.
///
/// Assumes that taking more never makes it worse. First finds the shortest prefix of cuts that is enough. Then spares
/// every whole job of that prefix that is not needed, and reduces each role to the pods that are needed.
pub(super) fn fewest(
    cuts: &[Cut],
    granted: &dyn Fn(usize) -> Vec<u32>,
    mut is_enough: impl FnMut(&Kept) -> bool,
) -> Option<Kept> {
    let mut enough = |taken: &[u32]| is_enough(&kept(cuts, taken, granted));
    let first = |count: usize| -> Vec<u32> {
        cuts.iter().enumerate().map(|(at, cut)| if at < count { cut.most } else { 0 }).collect()
    };
    if !enough(&first(cuts.len())) {
        return None;
    }
    let (mut low, mut high) = (0, cuts.len());
    while low < high {
        let middle = low.midpoint(high);
        if enough(&first(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let mut taken = first(high);
    for at in (0..high).rev() {
        // Cuts are spared in the reverse of the order in which they are taken.
        let (mut low, mut high) = (0, taken[at]);
        while low < high {
            taken[at] = low.midpoint(high);
            if enough(&taken) {
                high = taken[at];
            } else {
                low = taken[at] + 1;
            }
        }
        taken[at] = high;
    }
    Some(kept(cuts, &taken, granted))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two jobs with one role of 10 pods each. The first may lose 6 pods, the second 4; then either job may stop.
    fn cuts() -> [Cut; 4] {
        let cut = |job, role, most| Cut { job, role, most };
        [cut(0, Some(0), 6), cut(1, Some(0), 4), cut(0, None, 1), cut(1, None, 1)]
    }

    fn ends(needed: u32) -> Option<(u32, u32)> {
        let lost = |kept: &Kept, job| kept.get(&job).map_or(0, |kept: &Vec<u32>| 10 - kept[0]);
        let kept = fewest(&cuts(), &|_| vec![10], |kept| lost(kept, 0) + lost(kept, 1) >= needed)?;
        Some((lost(&kept, 0), lost(&kept, 1)))
    }

    // SEMANTICS: J4
    #[test]
    fn the_first_surplus_goes_first_and_no_more_than_is_needed() {
        for (needed, expected) in [(0, (0, 0)), (1, (1, 0)), (6, (6, 0)), (7, (6, 1)), (10, (6, 4))] {
            assert_eq!(ends(needed), Some(expected), "{needed}");
        }
    }

    // SEMANTICS: J4
    #[test]
    fn whole_jobs_go_last_and_spare_the_surplus_of_others() {
        // Stopping the first job is enough, so the second keeps as many pods as possible.
        assert_eq!(ends(11), Some((10, 1)));
        // If the second job has to stop, the first keeps running.
        assert_eq!(ends(15), Some((5, 10)));
        assert_eq!(ends(21), None, "nothing is taken in vain");
    }

    #[test]
    fn a_victim_that_makes_no_room_is_spared() {
        let kept = fewest(&cuts(), &|_| vec![10], |kept| kept.get(&1).is_some_and(|kept| kept[0] <= 8));
        assert_eq!(kept, Some(Kept::from([(1, vec![8])])));
    }
}
