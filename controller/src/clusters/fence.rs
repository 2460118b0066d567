//! Until when a job of another home may have pods.
//!
//! A home reads the time of this cluster's clock (the heartbeat of `here`) and writes it back as its lease. A copy of a
//! job runs until its lease is [`Home::fence_after`] old, on the clock that wrote the heartbeat. The home starts the job
//! elsewhere only when it received the last time that it has ever written back longer ago than that, and the time that
//! pods take to end. So it does not matter how the two clocks differ, nor when a request arrives that was under way
//! while the link was lost: it has an old time.

use std::collections::BTreeMap;

use crate::time::Seconds;

/// A job that arrives more than this many seconds after its home has read the time for it never runs: the home may have
/// given it to another cluster meanwhile. The home deletes it.
pub const CREATE_SECONDS: i64 = 60;

/// By how many seconds the clocks of the machines of one cluster may differ: another replica of the controller may have
/// written a heartbeat.
const AHEAD_SECONDS: i64 = 30;

/// The home of a job that another cluster has placed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Home {
    /// The id of the home: the name of its account here, and the uid of its Cluster for this one.
    pub id: String,
    /// The uid of the job at its home.
    pub job: String,
    /// The generation of the job at its home.
    pub generation: i64,
    /// The time that the home had read when it created the job.
    pub read: Seconds,
    /// The job has no pods while the lease is older than this many seconds; `None` for a job that never leaves.
    pub fence_after: Option<i64>,
}

impl Home {
    /// True if the job arrived too late to run. `created` is the time of its creation.
    pub fn is_late(&self, created: Seconds) -> bool {
        created - self.read > CREATE_SECONDS
    }

    /// Until when the job with this uid here may have pods; `None`: without limit. `lease` is the time in the home's
    /// lease.
    pub fn runs_until(&self, uid: &str, created: Seconds, lease: Option<Seconds>, void: &Void) -> Option<Seconds> {
        if self.is_late(created) {
            return Some(Seconds::default());
        }
        let lease = lease.filter(|time| !void.has(&self.id, *time));
        let read = Some(self.read).filter(|time| !void.has(uid, *time));
        self.fence_after.map(|after| lease.max(read).unwrap_or_default() + after)
    }
}

/// The times that this cluster's clock showed before it was set back, by the id of the home whose lease has it, or the
/// uid of the job that was created with it. They count as none, also when the clock reaches them again: by then, the
/// home may have started the job elsewhere.
#[derive(Debug, Default)]
pub struct Void(BTreeMap<String, Seconds>);

impl Void {
    /// Finds such times among all times that are there now.
    pub fn refresh(&mut self, times: impl Iterator<Item = (String, Seconds)>, now: Seconds) {
        let before = std::mem::take(&mut self.0);
        let is_void =
            |(of, time): &(String, Seconds)| *time > now + AHEAD_SECONDS || before.get(of).is_some_and(|it| it == time);
        self.0 = times.filter(is_void).collect();
    }

    fn has(&self, of: &str, time: Seconds) -> bool {
        self.0.get(of).is_some_and(|it| *it == time)
    }
}

/// After how many seconds without a renewed lease a job with this failover, in seconds, has no pods. The other half is
/// for its pods to end.
pub fn fence_after(failover: i64) -> i64 {
    failover / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An event at the home, with the seconds that pass before it.
    #[derive(Clone, Debug)]
    enum Step {
        /// The home reads the heartbeat.
        Reads(i64),
        /// The home sends its lease, which arrives so much later.
        Renews(i64, i64),
        /// Time passes.
        Passes(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..40_i64).prop_map(Step::Reads),
            (0..40_i64, 0..2_000_i64).prop_map(|(at, late)| Step::Renews(at, late)),
            (0..200_i64).prop_map(Step::Passes),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        // SEMANTICS: J19
        #[test]
        fn the_other_cluster_has_ended_the_pods_before_the_home_may_start_others(
            steps in steps(),
            ahead in -100_000_i64..100_000,
            failover in 120_i64..3_600,
        ) {
            let mut now = 1_000_000;
            // The heartbeat is at most as new as the time at which it is read.
            let (mut read, mut read_at, mut arrivals) = (now + ahead, now, Vec::new());
            let home = Home { read: Seconds(read), fence_after: Some(fence_after(failover)), ..Home::default() };
            let created = Seconds(read);
            for step in steps {
                match step {
                    Step::Reads(after) => {
                        now += after;
                        (read, read_at) = (now + ahead, now);
                    }
                    Step::Renews(after, late) => {
                        now += after;
                        arrivals.push((now + late, read));
                    }
                    Step::Passes(after) => now += after,
                }
            }
            let may_start = read_at + failover;
            // Any lease that arrives, however late, has a time that the home had read.
            for at in arrivals.iter().map(|(at, _)| *at).chain([may_start]) {
                let lease = arrivals.iter().filter(|(arrived, _)| *arrived <= at).map(|(_, time)| Seconds(*time)).max();
                let mut void = Void::default();
                void.refresh(lease.into_iter().map(|lease| (String::new(), lease)), Seconds(at + ahead));
                let until = home.runs_until("u", created, lease, &void).expect("it has a fence");
                prop_assert!(until.0 - ahead + failover / 2 <= may_start, "{until:?} {may_start}");
            }
        }
    }

    #[test]
    fn a_copy_that_arrives_late_never_runs_and_one_without_failover_runs_on() {
        let (home, void) = (Home { read: Seconds(100), ..Home::default() }, Void::default());
        assert_eq!(home.runs_until("u", Seconds(100 + CREATE_SECONDS), None, &void), None);
        let late = home.runs_until("u", Seconds(101 + CREATE_SECONDS), Some(Seconds(1_000_000)), &void);
        assert_eq!(late, Some(Seconds(0)));
    }

    // SEMANTICS: J19
    #[test]
    fn a_time_of_a_clock_that_was_set_back_counts_as_none_also_when_the_clock_reaches_it_again() {
        let home = Home { id: "h".into(), read: Seconds(1_000), fence_after: Some(60), ..Home::default() };
        let mut void = Void::default();
        let mut until = |lease: i64, now: i64| {
            let times = [("h".to_owned(), Seconds(lease)), ("u".to_owned(), home.read)];
            void.refresh(times.into_iter(), Seconds(now));
            home.runs_until("u", Seconds(1_000), Some(Seconds(lease)), &void)
        };
        assert_eq!(until(1_400, 1_400), Some(Seconds(1_460)));
        assert_eq!(until(1_400, 1_370), Some(Seconds(1_460)));
        assert_eq!(until(1_400, 1_369), Some(Seconds(1_060)), "the time of its creation is known");
        assert_eq!(until(1_400, 1_390), Some(Seconds(1_060)));
        assert_eq!(until(1_400, 900), Some(Seconds(60)));
        assert_eq!(until(1_400, 1_500), Some(Seconds(60)));
        assert_eq!(until(1_490, 1_500), Some(Seconds(1_550)), "a new lease counts");
    }
}
