//! Which phase follows which, by event. An empty cell: the event cannot happen there, or changes nothing.
//!
//! | event | Queued | DataWarming | Starting | Running | Shrinking | Growing | Recovering | Suspended | Succeeded | Failed |
//! |---|---|---|---|---|---|---|---|---|---|---|
//! | Suspend | Suspended | Suspended | Suspended | Suspended | Suspended | Suspended | Suspended | | | |
//! | Resume | | | | | | | | Queued | | |
//! | Deadline | | | Failed | Failed | Failed | Failed | Failed | | | |
//! | Granted | DataWarming | | | | | | | | | |
//! | Revoked | | Queued | Queued | Queued | Queued | Queued | Queued | | | |
//! | Shrunk | | DataWarming | Starting | Shrinking | Shrinking | Shrinking | Recovering | | | |
//! | Grown | | | | Growing | | | | | | |
//! | Seen | | | Starting | Running | Shrinking | Growing | Recovering | | | |
//! | Done | | | Starting | Running | Shrinking | Growing | Recovering | | | |
//! | Finished | | | Succeeded | Succeeded | Succeeded | Succeeded | Succeeded | | | |
//! | Lost | | | Starting | Recovering | Recovering | Recovering | Recovering | | | |
//! | Spent | | | Failed | Failed | Failed | Failed | Failed | | | |
//! | Warm | | Starting | | | | | | | | |
//! | Planned | | | Starting | | Shrinking | Growing | Recovering | | | |
//! | NoRoom | | | | | Shrinking | Growing | Recovering | | | |
//! | Unbound | | | Starting | | Shrinking | Growing | Recovering | | | |
//! | Released | | | Queued | | Queued | Queued | Queued | | | |
//! | Up | | | Running | | Running | Running | Running | | | |

use larder_api::Phase;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// The user wants it stopped.
    Suspend,
    /// The user wants it to go on.
    Resume,
    /// It has run as long as it may.
    Deadline,
    /// The queue gives it room.
    Granted,
    /// The queue takes all of it back.
    Revoked,
    /// The queue takes some of it back.
    Shrunk,
    /// Room to grow has stayed free.
    Grown,
    /// A pod was seen for the first time.
    Seen,
    /// A pod has succeeded.
    Done,
    /// The pods that decide have all succeeded.
    Finished,
    /// A pod was lost.
    Lost,
    /// A pod has crashed, and that was once too often.
    Spent,
    /// Its data is warm enough, or was waited for long enough.
    Warm,
    /// Pods without a node were given one.
    Planned,
    /// Pods have no node, and the job can go on without them.
    NoRoom,
    /// Pods were not bound in time and are planned again.
    Unbound,
    /// Pods have no node, and the job cannot go on without them.
    Released,
    /// All pods are ready or done, and those that were to end are gone.
    Up,
}

impl EventKind {
    pub const ALL: [Self; 18] = [
        Self::Suspend,
        Self::Resume,
        Self::Deadline,
        Self::Granted,
        Self::Revoked,
        Self::Shrunk,
        Self::Grown,
        Self::Seen,
        Self::Done,
        Self::Finished,
        Self::Lost,
        Self::Spent,
        Self::Warm,
        Self::Planned,
        Self::NoRoom,
        Self::Unbound,
        Self::Released,
        Self::Up,
    ];
}

/// The phase after an event; `None` if it does not count.
pub fn next(phase: Phase, event: EventKind) -> Option<Phase> {
    use EventKind as E;
    use Phase as P;
    match event {
        E::Suspend => (phase != P::Suspended && !phase.is_terminal()).then_some(P::Suspended),
        E::Resume => (phase == P::Suspended).then_some(P::Queued),
        E::Granted => (phase == P::Queued).then_some(P::DataWarming),
        E::Warm => (phase == P::DataWarming).then_some(P::Starting),
        E::Grown => (phase == P::Running).then_some(P::Growing),
        E::Revoked => (phase.has_pods() || phase == P::DataWarming).then_some(P::Queued),
        E::Shrunk => match phase {
            P::Running | P::Shrinking | P::Growing => Some(P::Shrinking),
            P::DataWarming | P::Starting | P::Recovering => Some(phase),
            P::Queued | P::Suspended | P::Succeeded | P::Failed => None,
        },
        E::Deadline | E::Spent => phase.has_pods().then_some(P::Failed),
        E::Finished => phase.has_pods().then_some(P::Succeeded),
        E::Seen | E::Done => phase.has_pods().then_some(phase),
        E::Lost => phase.has_pods().then_some(if phase == P::Starting { phase } else { P::Recovering }),
        E::Planned | E::Unbound => phase.is_making().then_some(phase),
        E::NoRoom => (phase.is_making() && phase != P::Starting).then_some(phase),
        E::Released => phase.is_making().then_some(P::Queued),
        E::Up => phase.is_making().then_some(P::Running),
    }
}
