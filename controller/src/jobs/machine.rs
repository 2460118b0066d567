//! One job, from its first wait to its end: a pure state machine for jobs of every type.
//!
//! [`step`] takes the [`State`], what is [`Observed`] and what was decided ([`Decisions`]), and returns the next state and the
//! [`Action`]s that follow from it.
//! `events` compares both and names what has happened; [`table`] says which phase follows; `apply` changes the state; `actions`
//! compares what should be there with what is. [`loss`] knows why pods are lost.
//!
//! The caller writes the state before it executes an action, and makes steps whenever something has changed or [`Action::Again`]
//! says so. Actions are named again until they are seen to be done, so it does not matter at which of them a controller dies.
//!
//! Invariants: an ended job stays as it is. Each loss is counted once: the slot of a lost pod gets another attempt, and pods of
//! other attempts are nobody's. Counters never fall. Of each index there is one live pod, and beside it one that was told to end if
//! the type allows two. An index that is done stays done, unless the user suspends the job or all its pods are made again. A pod on
//! a lost node, or one that should have ended a minute ago, is not live: no other pod waits for it, and its name is never used
//! again. On a node that is well it uses room and quota until it is gone.

mod actions;
mod apply;
mod events;
pub mod loss;
mod observed;
pub mod pod;
mod runs;
mod state;
pub mod table;
#[cfg(test)]
mod tests;
mod words;

use crate::time::Seconds;
pub use actions::Action;
pub use events::unplaced;
pub use larder_api::Phase;
pub use loss::Cause;
pub use observed::{Data, Decides, Decisions, Observed, RoleTerms, Scope, Terms};
pub use pod::{Devices, NodeHealth, Pod, PodId, PodStage};
pub use state::{Restarts, Slot, Stage, State};
pub use table::EventKind;
pub use words::waits_for;

use events::News;

/// The state after what is observed and decided, and what is to be done.
pub fn step(mut state: State, observed: &Observed, decisions: &Decisions, now: Seconds) -> (State, Vec<Action>) {
    let mut news = News::new(observed, decisions, now);
    loop {
        news.note(&mut state);
        let events = news.events(&state);
        if events.is_empty() {
            break;
        }
        for event in events {
            event.apply(&mut state, &observed.terms, now);
        }
    }
    let actions = actions::of(&state, observed, now);
    (state, actions)
}
