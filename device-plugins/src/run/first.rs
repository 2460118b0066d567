//! What is waited for before others are told of devices.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::nri::Status;
use crate::view::View;

/// Waits until the views tell whether the container runtime asks the NRI plugin, which has been started after `status` was
/// subscribed to, but not longer than `due`. Else devices whose limits need it would be out of service for a moment at every start.
pub(super) async fn nri(mut status: watch::Receiver<Status>, mut views: watch::Receiver<Arc<View>>, due: Instant) {
    let told = async {
        if status.changed().await.is_ok() && *status.borrow() == Status::Connected {
            // If it fails, there will be no more views.
            let _ = views.wait_for(|view| view.capabilities.nri.is_none()).await;
        }
    };
    // A runtime that is late is told of by later views.
    let _ = timeout_at(due, told).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MOST: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_view_that_knows_the_runtime_is_waited_for_and_not_for_ever() {
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
        assert!(!task.is_finished(), "the views do not tell yet");
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
