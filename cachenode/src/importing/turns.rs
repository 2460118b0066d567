//! The slots of imports: an import waits for one, and holds it for a turn or longer.
//!
//! - [`Turns`] are the slots of a node, and the line in front of them.
//! - [`Permit`] is a place in that line, and then a slot.
//! - [`Turn`] reports when the holder of a slot must give it away: its turn is over, and another import is to have it.
//!
//! Invariant: no more permits are slots at a time than there are slots. A permit that is dropped, in the line or with a
//! slot, lets the next import in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::line::Line;

/// The slots of a node.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    /// Shows each change of the line.
    changed: watch::Sender<()>,
    turn: Duration,
}

#[derive(Debug)]
struct State {
    line: Line,
    /// Channels that notify the imports in the line that they have a slot.
    waiting: HashMap<u64, oneshot::Sender<()>>,
}

/// A place in the line, then a slot.
#[derive(Debug)]
pub(super) struct Permit {
    turns: Arc<Turns>,
    id: u64,
}

/// The turn of the holder of a slot.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    id: u64,
    changed: watch::Receiver<()>,
    /// `None` until it begins.
    ends: Option<Instant>,
}

impl Turns {
    /// Creates `slots` slots. A holder keeps its slot at least for the time `turn`.
    pub(super) fn new(slots: usize, turn: Duration) -> Arc<Self> {
        let state = State { line: Line::new(slots), waiting: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), changed: watch::Sender::new(()), turn })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot. Cancel-safe: the place in the line is then given up.
    pub(super) async fn take(self: &Arc<Self>, owner: &str) -> Permit {
        let (sender, has_slot) = oneshot::channel();
        let permit = {
            let mut state = self.lock();
            let id = state.line.join(owner);
            state.waiting.insert(id, sender);
            Permit { turns: Arc::clone(self), id }
        };
        self.admit();
        // The sender is dropped with the permit only.
        let _ = has_slot.await;
        permit
    }

    fn admit(&self) {
        let mut state = self.lock();
        while let Some(id) = state.line.admit() {
            if let Some(waiting) = state.waiting.remove(&id) {
                // One that waits no more drops its permit next.
                let _ = waiting.send(());
            }
        }
        drop(state);
        self.changed.send_replace(());
    }
}

impl Permit {
    /// The turn of this slot, which has not begun.
    pub(super) fn turn(&self) -> Turn {
        let changed = self.turns.changed.subscribe();
        Turn { turns: Arc::clone(&self.turns), id: self.id, changed, ends: None }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.line.leave(self.id);
        state.waiting.remove(&self.id);
        drop(state);
        self.turns.admit();
    }
}

impl Turn {
    /// Begins the turn. Later calls change nothing.
    pub(super) fn begin(&mut self) {
        self.ends.get_or_insert_with(|| Instant::now() + self.turns.turn);
    }

    /// Waits until the slot is to be given away: for ever, if the turn has not begun or nobody else waits. Returns
    /// once. Cancel-safe.
    pub(super) async fn over(&mut self) {
        let Some(ends) = self.ends else { return std::future::pending().await };
        sleep_until(ends).await;
        loop {
            self.changed.mark_unchanged();
            if self.turns.lock().line.gives_way(self.id) {
                return;
            }
            // The sender lives as long as the slots.
            let _ = self.changed.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::time::timeout;

    use super::*;

    const TURN: Duration = Duration::from_secs(300);
    const LATER: Duration = Duration::from_secs(100 * 3600);

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_given_away_after_a_turn_if_another_owner_waits_and_kept_otherwise() {
        let turns = Turns::new(1, TURN);
        let first = turns.take("a").await;
        let mut turn = first.turn();
        assert!(timeout(LATER, turn.over()).await.is_err(), "it has not begun");
        turn.begin();
        assert!(timeout(LATER, turn.over()).await.is_err(), "nobody waits");
        let mut second = Box::pin(turns.take("b"));
        assert!(poll!(&mut second).is_pending());
        // Its turn was over long ago.
        timeout(Duration::from_secs(1), turn.over()).await.unwrap();
        drop(first);
        let second = second.await;
        // The first joins again, and waits for a whole turn of the second.
        let mut again = Box::pin(turns.take("a"));
        assert!(poll!(&mut again).is_pending());
        let (began, mut turn) = (Instant::now(), second.turn());
        turn.begin();
        turn.begin();
        turn.over().await;
        assert_eq!(began.elapsed().as_secs(), TURN.as_secs());
        drop(second);
        again.await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stops_waiting_has_no_place_and_no_slot() {
        let turns = Turns::new(1, TURN);
        let first = turns.take("a").await;
        let mut turn = first.turn();
        turn.begin();
        let (mut gone, mut stays) = (Box::pin(turns.take("b")), Box::pin(turns.take("c")));
        assert!(poll!(&mut gone).is_pending() && poll!(&mut stays).is_pending());
        drop(gone);
        drop(first);
        // The slot was given to it, and it stops waiting before it is notified.
        drop(stays);
        let last = turns.take("d").await;
        assert!(timeout(LATER, turn.over()).await.is_err(), "one that has ended gives nothing away");
        drop(last);
        assert!(turns.lock().waiting.is_empty());
    }
}
