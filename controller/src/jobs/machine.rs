//! The life of one job, from its first wait to its end, as a pure state machine for jobs of every type.
//!
//! [`step`] takes the [`State`], the [`Observed`] facts and the [`Decisions`] about the job. It returns the next state
//! and the [`Action`]s that follow from it. `events` compares the state with the facts and derives what has happened;
//! [`table`] maps an event to the next phase; `apply` changes the state; `actions` compares the pods that should exist
//! with the pods that exist. [`loss`] determines why a pod was lost, `answer` what is replaced then, and `order` which
//! roles have to wait for others.
//!
//! The caller writes the state before it executes an action. It calls [`step`] after every change, and at the time that
//! [`Action::Again`] names. An action is returned again until its result is observed, so a controller may be killed at
//! any of them.
//!
//! Invariants:
//! - A job that has ended does not change.
//! - Each loss is counted once. The slot of a lost pod gets another attempt, and pods of other attempts are orphaned.
//! - Counters never decrease.
//! - Nodes that refused pods are remembered for an hour ([`State::refused_by`]), so that a plan is not repeated that
//!   the scheduler has refused.
//! - Each index has one live pod. If the type allows two, a second one that is terminating may exist beside it.
//! - An index that is done stays done, unless the user suspends the job or all its pods are recreated.
//! - A pod on a lost node is not live, and neither is a pod that should have terminated a minute ago: no other pod
//!   waits for it, and its name is never used again. On a healthy node, such a pod uses room and quota until it is
//!   deleted.

mod actions;
mod answer;
mod apply;
mod events;
pub mod loss;
mod observed;
mod order;
pub mod pod;
mod runs;
mod state;
pub mod table;
#[cfg(test)]
mod tests;
mod words;

pub use crate::objects::{Devices, PodStage};
use crate::time::Seconds;
pub use actions::Action;
pub use events::{is_warm, unplaced};
pub use larder_api::Phase;
pub use loss::Cause;
pub use observed::{Data, Decides, Decisions, Leeway, Observed, RoleTerms, Scope, Terms};
pub use pod::{NodeHealth, Pod, PodId};
pub(crate) use state::REFUSALS_MAX;
pub use state::{Restarts, Slot, Stage, State};
pub use table::EventKind;
pub use words::waits_for;

use events::News;

/// Applies the observed facts and the decisions to a state. Returns the new state and the actions that follow.
pub fn step(mut state: State, observed: &Observed, decisions: &Decisions, now: Seconds) -> (State, Vec<Action>) {
    let mut news = News::new(observed, decisions, now);
    loop {
        news.note(&mut state);
        let events = news.events(&state);
        if events.is_empty() {
            break;
        }
        for event in events {
            news.remember_refusals(&event, &mut state);
            event.apply(&mut state, &observed.terms, now);
        }
    }
    let actions = actions::of(&state, observed, now);
    (state, actions)
}
