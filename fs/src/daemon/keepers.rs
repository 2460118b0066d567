//! The keepers of the connections that were handed over, and when this process may stop.
//!
//! The daemon and its keeper each hold a duplicate of every connection, so that one can stop while the other stays. A
//! keeper that is to stop asks whether it may leave, and a daemon that is to stop no longer lets it: of two that stop at
//! the same time, the keeper stays until the next daemon has the connections.

use std::time::Duration;

use tokio::sync::watch;

/// How long the daemon keeps datasets for a keeper that is not connected. A plugin that is replaced returns within
/// seconds.
const AWAY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a stop waits for a keeper, whose image may have to be pulled.
const STOP_TIMEOUT: Duration = Duration::from_secs(100);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// How many are connected and have not left. A newer keeper replaces an older one.
    connected: usize,
    /// The daemon stops: no keeper may leave.
    is_stopping: bool,
}

#[derive(Debug, Default)]
pub(super) struct Keepers(watch::Sender<State>);

/// A connected keeper, until this is dropped.
#[derive(Debug)]
pub(super) struct Present<'a> {
    keepers: &'a Keepers,
    has_left: bool,
}

impl Keepers {
    pub(super) fn enter(&self) -> Present<'_> {
        self.0.send_modify(|state| state.connected += 1);
        Present { keepers: self, has_left: false }
    }

    /// No keeper may leave from now on.
    pub(super) fn stop(&self) {
        self.0.send_modify(|state| state.is_stopping = true);
    }

    /// Waits until a keeper is connected, which may not leave from then on. False if none came.
    pub(super) async fn stop_beside_one(&self) -> bool {
        let mut states = self.0.subscribe();
        let stop = async {
            loop {
                let mut is_beside_one = false;
                self.0.send_modify(|state| {
                    is_beside_one = state.connected > 0;
                    state.is_stopping |= is_beside_one;
                });
                if is_beside_one || states.wait_for(|state| state.connected > 0).await.is_err() {
                    return is_beside_one;
                }
            }
        };
        tokio::time::timeout(STOP_TIMEOUT, stop).await.unwrap_or(false)
    }

    /// Calls `let_go` when no keeper has been connected for a while. A connection that this daemon does not have ended
    /// with its keeper, so its dataset need not be kept. Returns with the daemon.
    pub(super) fn without_one<F>(&self, let_go: F) -> impl Future<Output = anyhow::Result<()>> + Send + use<F>
    where
        F: Fn() + Clone + Send + 'static,
    {
        let mut states = self.0.subscribe();
        async move {
            while states.wait_for(|state| state.connected == 0).await.is_ok() {
                let back = async { states.wait_for(|state| state.connected > 0).await.is_ok() };
                let is_back = match tokio::time::timeout(AWAY_TIMEOUT, back).await {
                    Ok(is_back) => is_back,
                    Err(_) => {
                        tokio::task::spawn_blocking(let_go.clone()).await?;
                        states.wait_for(|state| state.connected > 0).await.is_ok()
                    }
                };
                if !is_back {
                    break;
                }
            }
            Ok(())
        }
    }
}

impl Present<'_> {
    /// Whether the keeper may leave, which it then has.
    pub(super) fn leave(&mut self) -> bool {
        let has_left = &mut self.has_left;
        self.keepers.0.send_modify(|state| {
            if !state.is_stopping && !std::mem::replace(has_left, true) {
                state.connected -= 1;
            }
        });
        self.has_left
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.keepers.0.send_modify(|state| state.connected -= usize::from(!self.has_left));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    // SEMANTICS: C10
    #[tokio::test(start_paused = true)]
    async fn datasets_are_kept_for_a_keeper_that_is_away_for_less_than_a_minute() {
        let (keepers, calls) = (Keepers::default(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&calls);
        let let_go = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let task = tokio::spawn(keepers.without_one(let_go));
        let calls_after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            calls.load(Ordering::Relaxed)
        };
        assert_eq!(calls_after(59).await, 0, "it may still come");
        let first = keepers.enter();
        assert_eq!(calls_after(3600).await, 0, "it is there");
        drop(first);
        assert_eq!(calls_after(59).await, 0, "it may come back");
        assert_eq!(calls_after(3600).await, 1, "it did not");
        let mut second = keepers.enter();
        assert_eq!(calls_after(1).await, 1);
        assert!(second.leave());
        assert_eq!(calls_after(3600).await, 2, "nor did the next");
        drop(second);
        drop(keepers);
        task.await.unwrap().unwrap();
    }

    // SEMANTICS: K2
    #[tokio::test(start_paused = true)]
    async fn of_a_daemon_and_a_keeper_that_stop_at_the_same_time_one_stays() {
        let keepers = Keepers::default();
        let mut keeper = keepers.enter();
        assert!(keepers.stop_beside_one().await);
        assert!(!keeper.leave(), "the daemon has stopped beside it");
        drop(keeper);

        let keepers = Keepers::default();
        let mut keeper = keepers.enter();
        assert!(keeper.leave() && keeper.leave());
        let stop = keepers.stop_beside_one();
        tokio::pin!(stop);
        let soon = tokio::time::timeout(STOP_TIMEOUT / 2, &mut stop);
        assert!(soon.await.is_err(), "the daemon has the connections alone");
        drop(keeper);
        let mut next = keepers.enter();
        assert!(stop.await);
        assert!(!next.leave());
    }

    // SEMANTICS: K2
    #[tokio::test(start_paused = true)]
    async fn a_daemon_stops_although_no_keeper_comes() {
        assert!(!Keepers::default().stop_beside_one().await);
    }
}
