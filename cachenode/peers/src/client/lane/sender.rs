//! Sends the requests of a lane, and pings a silent peer.

use std::time::Duration;

use larder_cachenode_api::frame::Request;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::pending::PendingReads;
use crate::client::error::Failure;
use crate::counters::Cause;
use crate::token::Token;

/// A request that waits to be sent, and the token that follows it.
pub(super) type QueuedRequest = (Request, Option<Token>);

/// Sends requests. If a read is pending and nothing arrives for `half` of the timeout, sends a ping; if nothing arrives
/// for the other half, ends. Returns why it ended.
pub(super) async fn send_requests(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<QueuedRequest>,
    pending: &PendingReads,
    half: Duration,
) -> Failure {
    let mut out = Vec::new();
    let mut silent = std::pin::pin!(silence(pending, half));
    let mut pinged_at = None;
    loop {
        tokio::select! {
            next = queue.recv() => {
                let Some((request, token)) = next else {
                    return Failure::new(Cause::Broken, "the connection is no longer used");
                };
                append(&mut out, &request, token.as_ref());
                while let Ok((request, token)) = queue.try_recv() {
                    append(&mut out, &request, token.as_ref());
                }
            }
            arrivals = &mut silent => {
                if pinged_at == Some(arrivals) {
                    return Failure::new(Cause::TimedOut, format_args!("no sign of life within {:?}", half * 2));
                }
                pinged_at = Some(arrivals);
                silent.set(silence(pending, half));
                append(&mut out, &Request::Ping, None);
            }
        }
        let written = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        if let Err(error) = written.await {
            return Failure::new(Cause::Broken, error);
        }
        out.clear();
    }
}

fn append(out: &mut Vec<u8>, request: &Request, token: Option<&Token>) {
    request.encode(out);
    if let Some(token) = token {
        out.extend_from_slice(token.reveal().as_bytes());
    }
}

/// Waits until a read is pending and nothing has arrived for `duration`. Returns the number of arrivals by then.
async fn silence(pending: &PendingReads, duration: Duration) -> u64 {
    loop {
        // A read that was added and answered in the meantime leaves a notification behind, so check again.
        while pending.is_empty() {
            pending.added().await;
        }
        let before = pending.arrivals();
        tokio::time::sleep(duration).await;
        if pending.arrivals() == before && !pending.is_empty() {
            return before;
        }
    }
}
