//! Whether anybody still waits for a look-up. A pod that waits for a volume asks again at least every few minutes,
//! since the kubelet does.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long a look-up continues after it was last asked for. The kubelet tries again within two minutes.
pub(super) const UNWANTED_MOST: Duration = Duration::from_secs(600);

/// When a look-up was last asked for.
#[derive(Debug)]
pub(super) struct Wanted(Mutex<Instant>);

impl Default for Wanted {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Wanted {
    /// Notes that it is asked for now.
    pub(super) fn again(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn ends(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) + UNWANTED_MOST
    }

    /// Waits until nobody has asked for it for too long.
    pub(super) async fn no_more(&self) {
        loop {
            let ends = self.ends();
            sleep_until(ends).await;
            if self.ends() == ends {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_up_is_wanted_for_minutes_after_it_was_last_asked_for() {
        let (wanted, began) = (Wanted::default(), Instant::now());
        let asks = async {
            for _ in 0..100 {
                sleep(UNWANTED_MOST - Duration::from_secs(1)).await;
                wanted.again();
            }
            Instant::now()
        };
        let (last, ()) =
            timeout(Duration::from_secs(1 << 30), async { tokio::join!(asks, wanted.no_more()) }).await.unwrap();
        assert_eq!((Instant::now() - last).as_secs(), UNWANTED_MOST.as_secs());
        assert!(last - began > 90 * UNWANTED_MOST);
    }
}
