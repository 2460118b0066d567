//! Which phase follows which, by event. In an empty cell the event cannot happen, or changes nothing.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// The user suspended the job.
    Suspend,
    /// The user resumed the job.
    Resume,
    /// The job has run as long as it may.
    Deadline,
    /// The queue granted room to the job.
    Granted,
    /// The queue took all room back.
    Revoked,
    /// The queue took some of the room back.
    Shrunk,
    /// Room to grow has stayed free long enough.
    Grown,
    /// A pod was observed for the first time.
    Seen,
    /// A pod has succeeded.
    Done,
    /// The pods that decide the job's success have all succeeded.
    Finished,
    /// A pod was lost.
    Lost,
    /// A pod crashed, and the job has no crashes left.
    Spent,
    /// The data is warm enough, or its timeout has passed.
    Warm,
    /// Pods without a node were given nodes.
    Planned,
    /// Pods have no node, and the job can run without them.
    NoRoom,
    /// Pods were not bound in time and are planned a second time.
    Unbound,
    /// Pods have no node, and the job cannot run without them.
    Released,
    /// All pods are ready or done, and all superseded pods are gone.
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

/// The phase after an event; `None` if the event does not apply in this phase.
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
