//! Counters of training jobs for operators: waits, losses and preemptions.

use crate::jobs::machine::{Cause, Phase, Restarts, State};
use crate::jobs::queue::{Role, Verdict};
use crate::time::Seconds;

/// The ends of the ranges of waiting times, in seconds: up to a week.
pub const WAIT_ENDS: [u64; 10] = [1, 5, 15, 60, 300, 1_800, 7_200, 28_800, 86_400, 604_800];

/// The events that the steps of a job count. They reach the metrics after the status with these steps is written, so
/// each event is counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lost pods, in the order of [`Cause::ALL`].
    pub lost: [u64; Cause::ALL.len()],
    /// How often a job got room after it had waited.
    pub starts: u64,
    /// The total waiting time before those starts, in seconds.
    pub waited_seconds: u64,
    /// The number of these waits in each range of [`WAIT_ENDS`]; the last range has no end.
    pub waits: [u64; WAIT_ENDS.len() + 1],
    /// How often room was taken back that the job's spec still requests.
    pub preemptions: u64,
}

/// The part of a state that is compared before and after a step.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    waiting_since: Option<Seconds>,
    restarts: Restarts,
}

impl Before {
    pub fn of(state: &State) -> Self {
        let waiting_since = (state.phase == Phase::Queued).then_some(state.since);
        Self { waiting_since, restarts: state.restarts }
    }
}

impl Counts {
    /// Counts a step that was made at `now`.
    pub fn step(&mut self, before: Before, after: &State, now: Seconds) {
        for (lost, cause) in self.lost.iter_mut().zip(Cause::ALL) {
            *lost += u64::from(after.restarts.of(cause).saturating_sub(before.restarts.of(cause)));
        }
        if let Some(since) = before.waiting_since.filter(|_| after.holds_room()) {
            self.starts += 1;
            let waited = u64::try_from(now - since).unwrap_or(0);
            self.waited_seconds += waited;
            self.waits[WAIT_ENDS.partition_point(|end| *end < waited)] += 1;
        }
    }

    /// Adds the counters of another job.
    pub fn add(&mut self, other: &Self) {
        for (lost, more) in self.lost.iter_mut().zip(other.lost) {
            *lost += more;
        }
        for (waits, more) in self.waits.iter_mut().zip(other.waits) {
            *waits += more;
        }
        self.starts += other.starts;
        self.waited_seconds += other.waited_seconds;
        self.preemptions += other.preemptions;
    }
}

/// True if a decision takes back room that the job's spec still requests.
pub fn takes_room(verdict: &Verdict, state: &State, roles: &[Role]) -> bool {
    let is_short = |((role, before), kept): ((&Role, u32), &u32)| *kept < role.asks_for(before);
    state.holds_room()
        && match verdict {
            Verdict::Stop { .. } => true,
            Verdict::Run(running) => roles.iter().zip(state.granted()).zip(&running.granted).any(is_short),
            Verdict::Start { .. } | Verdict::Wait(_) => false,
        }
}
