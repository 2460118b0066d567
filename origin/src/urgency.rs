//! Whether somebody waits for a call.

use tokio::sync::watch;

/// Whether somebody waits for a call to an origin. Clones share their state: raising one raises all.
#[derive(Clone, Debug)]
pub struct Urgency(Option<watch::Sender<bool>>);

impl Urgency {
    /// Somebody waits.
    pub const HIGH: Self = Self(None);

    /// Nobody waits yet: the call lets those that are waited for go first, until [`Self::raise`].
    pub fn low() -> Self {
        Self(Some(watch::Sender::new(false)))
    }

    /// From now on somebody waits.
    pub fn raise(&self) {
        if let Some(raised) = &self.0 {
            raised.send_replace(true);
        }
    }

    /// True if somebody waits.
    pub fn is_high(&self) -> bool {
        self.0.as_ref().is_none_or(|raised| *raised.borrow())
    }

    /// Waits until somebody waits. Cancel-safe.
    pub async fn high(&self) {
        if let Some(raised) = &self.0 {
            // The sender is `self`'s.
            let _ = raised.subscribe().wait_for(|raised| *raised).await;
        }
    }
}
