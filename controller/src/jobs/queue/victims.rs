//! Which pods end so that another job has room.
//!
//! A [`Cut`] is a part of a job that may be taken: the surplus of an elastic role above its floor, or all of a job. Cuts come in
//! the order in which they are to be taken: every surplus before any whole job. [`fewest`] finds the least of them that is
//! enough, or none at all.

use std::collections::BTreeMap;

use super::facts::Job;

/// What jobs keep of their pods, by the job's place in the list.
pub(super) type Kept = BTreeMap<usize, Vec<u32>>;

/// A part of a job that may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The job's place in the list.
    pub(super) job: usize,
    /// The role whose pods of the highest indexes end; `None`: the whole job stops.
    pub(super) role: Option<usize>,
    /// How many pods of the role may end at most; 1 for a whole job.
    pub(super) most: u32,
}

/// The pods of a role that a job can lose and run on. Index 0 stays: others meet there.
pub(super) fn surplus(job: &Job, role: usize, granted: u32) -> u32 {
    granted.saturating_sub(job.roles[role].min.max(1))
}

/// What jobs keep if so much of each cut is taken; jobs that lose nothing are left out.
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

/// The least that has to be taken for `is_enough`; `None` if everything is not. `granted` is what a job has now.
///
/// Taking more is taken to be never worse. The fewest cuts in their order come first; of those, whole jobs are spared that are
/// not needed, and then each role loses no more pods than needed.
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
        // The last to be taken is the first to be spared.
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

    /// Two jobs of one role with 10 pods each; the first may lose 6, the second 4, then either stops.
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
        // All of the first job is enough, so the second keeps what it can.
        assert_eq!(ends(11), Some((10, 1)));
        // Where the second has to stop, the first may go on.
        assert_eq!(ends(15), Some((5, 10)));
        assert_eq!(ends(21), None, "nothing is taken in vain");
    }

    #[test]
    fn a_victim_that_makes_no_room_is_spared() {
        let kept = fewest(&cuts(), &|_| vec![10], |kept| kept.get(&1).is_some_and(|kept| kept[0] <= 8));
        assert_eq!(kept, Some(Kept::from([(1, vec![8])])));
    }
}
