//! The GPUs, as NVIDIA's management library (NVML) reports them.
//!
//! The library is loaded at run time and may be absent. Its calls block, for minutes if the driver hangs, so two dedicated threads
//! make them, never the runtime: `ask` reads GPUs and their health every few seconds, and `listen` waits for Xids. [`run`] starts
//! both and watches whether their calls return. They report [`DriverNews`].
//!
//! Invariant: there are these two threads and never more, whatever hangs.

mod ask;
mod inventory;
mod listen;
mod news;
mod raw;
mod shared;

pub use news::{DriverNews, RecoveryAction, Settings};

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use shared::Shared;

/// A thread has stopped unexpectedly: a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread {0} stopped unexpectedly")]
pub struct ThreadEnded(&'static str);

/// Sends news until `stop`. While the channel is full, the threads wait: nothing is dropped, because the driver queues its events.
/// Cancel-safe: a thread inside a driver call is left behind and ends when the call returns.
///
/// # Errors
/// When a thread has ended.
pub async fn run(
    settings: Settings,
    news: mpsc::Sender<DriverNews>,
    stop: CancellationToken,
) -> Result<(), ThreadEnded> {
    let shared = Arc::new(Shared::default());
    let _stopped_with_this = StopOnDrop(Arc::clone(&shared));
    let mut asking = start("gpus-ask", {
        let (settings, shared, news) = (settings.clone(), Arc::clone(&shared), news.clone());
        move || ask::ask(settings, &shared, &news)
    });
    let mut listening = start("gpus-listen", {
        let (settings, shared, news) = (settings.clone(), Arc::clone(&shared), news.clone());
        move || listen::listen(&settings, &shared, &news)
    });
    let mut tick = tokio::time::interval(settings.silent_after / 4);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = news.closed() => break,
            _ = &mut asking => return Err(ThreadEnded("gpus-ask")),
            _ = &mut listening => return Err(ThreadEnded("gpus-listen")),
            _ = tick.tick() => {
                for call in shared.newly_overdue(settings.silent_after) {
                    let why = format!("{call} has not returned for {:?}", settings.silent_after);
                    tracing::warn!(why, "the GPU driver does not respond");
                    // If the receiver is gone, the next turn ends the loop.
                    let _ = news.send(DriverNews::Failed { why }).await;
                }
            }
        }
    }
    shared.stop();
    let both = async { (asking.await, listening.await) };
    if tokio::time::timeout(Duration::from_secs(1), both).await.is_err() {
        tracing::warn!("leaving a thread behind in a GPU driver call");
    }
    Ok(())
}

/// Runs `work` in a thread of its own. The returned receiver completes when the thread ends, also by a panic.
fn start(name: &'static str, work: impl FnOnce() + Send + 'static) -> oneshot::Receiver<()> {
    let (ended, wait) = oneshot::channel();
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _ended = ended;
        work();
    });
    if let Err(error) = spawned {
        tracing::error!(%error, name, "start a thread");
    }
    wait
}

struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
