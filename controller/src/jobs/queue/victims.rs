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

/// The smallest part to take so that it is enough; `None` if taking everything is not enough. `granted` is what each
/// job has now. `keep` changes in `room` what a job keeps, from the first to the second; in the end, jobs keep what
/// they have.
///
/// Assumes that taking more never makes it worse. First finds the shortest prefix of cuts that is enough. Then spares
/// every whole job of that prefix that is not needed, and reduces each role to the pods that are needed.
pub(super) fn fewest<R>(
    cuts: &[Cut],
    granted: &Kept,
    room: &mut R,
    keep: impl Fn(&mut R, usize, &[u32], &[u32]),
    is_enough: impl FnMut(&mut R) -> bool,
) -> Option<Kept> {
    let mut search = Search::new(cuts, granted, room, keep, is_enough);
    search.take_first(cuts.len());
    let found = search.is_enough().then(|| {
        let count = search.shortest();
        search.take_first(count);
        search.spare(count);
        search.kept()
    });
    search.take_first(0);
    found
}

/// A search for the fewest cuts. Each step changes only what differs from the one before.
struct Search<'s, R, K, E> {
    cuts: &'s [Cut],
    granted: &'s Kept,
    /// The positions of each job's cuts.
    of_job: BTreeMap<usize, Vec<usize>>,
    /// How much of each cut is taken now.
    taken: Vec<u32>,
    room: &'s mut R,
    keep: K,
    is_enough: E,
}

impl<'s, R, K: Fn(&mut R, usize, &[u32], &[u32]), E: FnMut(&mut R) -> bool> Search<'s, R, K, E> {
    fn new(cuts: &'s [Cut], granted: &'s Kept, room: &'s mut R, keep: K, is_enough: E) -> Self {
        let mut of_job: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, cut) in cuts.iter().enumerate() {
            of_job.entry(cut.job).or_default().push(at);
        }
        Self { cuts, granted, of_job, taken: vec![0; cuts.len()], room, keep, is_enough }
    }

    fn is_enough(&mut self) -> bool {
        (self.is_enough)(self.room)
    }

    /// The pods that a job keeps now.
    fn kept_by(&self, job: usize) -> Vec<u32> {
        let mut kept = self.granted[&job].clone();
        for at in self.of_job[&job].iter().filter(|at| self.taken[**at] > 0) {
            match self.cuts[*at].role {
                Some(role) => kept[role] = kept[role].saturating_sub(self.taken[*at]),
                None => kept.fill(0),
            }
        }
        kept
    }

    /// The pods that jobs keep. Jobs that lose nothing are omitted.
    fn kept(&self) -> Kept {
        let loses = |at: &usize| self.taken[*at] > 0;
        let losers = self.of_job.iter().filter(|(_, cuts)| cuts.iter().any(loses));
        losers.map(|(job, _)| (*job, self.kept_by(*job))).collect()
    }

    /// Takes this much of a cut.
    fn take(&mut self, at: usize, pods: u32) {
        if self.taken[at] == pods {
            return;
        }
        let job = self.cuts[at].job;
        let before = self.kept_by(job);
        self.taken[at] = pods;
        let now = self.kept_by(job);
        (self.keep)(self.room, job, &before, &now);
    }

    /// Takes the first `count` cuts, and no other.
    fn take_first(&mut self, count: usize) {
        for at in 0..self.cuts.len() {
            self.take(at, if at < count { self.cuts[at].most } else { 0 });
        }
    }

    /// The length of the shortest prefix that is enough. All cuts are.
    fn shortest(&mut self) -> usize {
        let (mut low, mut high) = (0, self.cuts.len());
        while low < high {
            let middle = low.midpoint(high);
            self.take_first(middle);
            if self.is_enough() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Spares what is not needed of the first `count` cuts, in the reverse of the order in which cuts are taken. Of
    /// thousands, few may be needed, so those between them are spared many at a time.
    fn spare(&mut self, count: usize) {
        let (mut end, mut many, mut grows) = (count, 1, true);
        while end > 0 {
            let begin = end.saturating_sub(many);
            (begin..end).for_each(|at| self.take(at, 0));
            if self.is_enough() {
                (end, many) = (begin, if grows { 2 * many } else { many.div_ceil(2) });
                continue;
            }
            (begin..end).for_each(|at| self.take(at, self.cuts[at].most));
            if many > 1 {
                (many, grows) = (many / 2, false);
                continue;
            }
            // Some of this one is needed.
            (end, grows) = (end - 1, true);
            let (mut low, mut high) = (1, self.cuts[end].most);
            while low < high {
                let middle = low.midpoint(high);
                self.take(end, middle);
                if self.is_enough() {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            self.take(end, high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two jobs with one role of 10 pods each. The first may lose 6 pods, the second 4; then either job may stop.
    fn cuts() -> [Cut; 4] {
        let cut = |job, role, most| Cut { job, role, most };
        [cut(0, Some(0), 6), cut(1, Some(0), 4), cut(0, None, 1), cut(1, None, 1)]
    }

    /// The fewest of these cuts, each job having `pods` pods, if these are enough, and how often that was asked.
    fn of(cuts: &[Cut], pods: u32, is_enough: impl Fn(&Kept) -> bool) -> (Option<Kept>, usize) {
        let granted: Kept = cuts.iter().map(|cut| (cut.job, vec![pods])).collect();
        let (mut room, mut asked) = (granted.clone(), 0);
        let keep = |room: &mut Kept, job: usize, before: &[u32], now: &[u32]| {
            assert_eq!(room.insert(job, now.to_vec()).as_deref(), Some(before));
        };
        let kept = fewest(cuts, &granted, &mut room, keep, |room| {
            asked += 1;
            is_enough(room)
        });
        assert_eq!(room, granted, "the jobs keep what they have");
        (kept, asked)
    }

    fn ends(needed: u32) -> Option<(u32, u32)> {
        let lost = |kept: &Kept, job| kept.get(&job).map_or(0, |kept: &Vec<u32>| 10 - kept[0]);
        let kept = of(&cuts(), 10, |kept| lost(kept, 0) + lost(kept, 1) >= needed).0?;
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
        let kept = of(&cuts(), 10, |kept| kept[&1][0] <= 8).0;
        assert_eq!(kept, Some(Kept::from([(1, vec![8])])));
    }

    // SEMANTICS: J16
    #[test]
    fn a_search_among_thousands_of_jobs_ends_soon() {
        let cuts: Vec<Cut> = (0..10_000).map(|job| Cut { job, role: None, most: 1 }).collect();
        let needed = [17, 4_000, 9_998];
        let (kept, asked) = of(&cuts, 1, |kept| needed.iter().all(|job| kept[job] == [0]));
        assert_eq!(kept, Some(Kept::from(needed.map(|job| (job, vec![0])))));
        assert!(asked < 150, "{asked}");
    }
}
