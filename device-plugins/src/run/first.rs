//! The wait before devices are offered.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::nri::Status;
use crate::view::View;

/// Waits until the views know whether the container runtime calls the NRI plugin, but not after `due`. Without this wait, devices
/// whose limits need NRI would be out of service for a moment at every start. The plugin must start after `status` was subscribed to.
pub(super) async fn nri(mut status: watch::Receiver<Status>, mut views: watch::Receiver<Arc<View>>, due: Instant) {
    let known = async {
        if status.changed().await.is_ok() && *status.borrow() == Status::Connected {
            // If it fails, there will be no more views.
            let _ = views.wait_for(|view| view.capabilities.nri.is_none()).await;
        }
    };
    // Later views report a runtime that is late.
    let _ = timeout_at(due, known).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MOST: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_view_with_nri_is_bounded() {
        let away = || Status::Away("not tried yet".into());
        let begin = || (watch::Sender::new(away()), watch::Sender::new(Arc::new(View::default())));
        let waited = async |task: tokio::task::JoinHandle<()>, since: Instant| {
            task.await.unwrap();
            since.elapsed()
        };
        let ((status, views), since) = (begin(), Instant::now());
        let task = tokio::spawn(nri(status.subscribe(), views.subscribe(), since + MOST));
        status.send_replace(Status::Connected);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!task.is_finished(), "the views do not know yet");
        views.send_modify(|view| Arc::make_mut(view).capabilities.nri = None);
        assert_eq!(waited(task, since).await, Duration::from_millis(100));

        let ((status, views), since) = (begin(), Instant::now());
        let task = tokio::spawn(nri(status.subscribe(), views.subscribe(), since + MOST));
        tokio::task::yield_now().await;
        status.send_replace(Status::Away("connect: No such file".into()));
        assert_eq!(waited(task, since).await, Duration::ZERO);

        let ((status, views), since) = (begin(), Instant::now());
        let task = tokio::spawn(nri(status.subscribe(), views.subscribe(), since + MOST));
        assert_eq!(waited(task, since).await, MOST);
    }
}
