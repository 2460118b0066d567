//! When the API last sent data about each watched kind, which bounds how outdated an answer may be.
//!
//! A cluster in which nothing changes is not stale: about once a minute the API sends a bookmark to each watch, and it
//! answers when a watch is resumed. Therefore received bytes count, not events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use larder_kube::Client;
use larder_kube::client::Body;
use tokio::time::Instant;

use crate::index::{FOLLOWED, Kind};

/// When the API last sent data, by kind.
#[derive(Debug)]
pub struct WatchAge {
    begun: Instant,
    /// In the order of [`FOLLOWED`]: milliseconds since `begun` plus one; 0 for never.
    at: [AtomicU64; FOLLOWED.len()],
}

impl Default for WatchAge {
    fn default() -> Self {
        Self { begun: Instant::now(), at: Default::default() }
    }
}

impl WatchAge {
    fn milliseconds(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Records that the API has sent data about a kind.
    pub fn note(&self, kind: Kind) {
        let at = FOLLOWED.iter().zip(&self.at).find(|(followed, _)| **followed == kind);
        at.into_iter().for_each(|(_, at)| at.store(self.milliseconds(), Ordering::Relaxed));
    }

    /// How long the API has been silent about the kind with the longest silence. A kind that was never served, or could
    /// never be read, does not count.
    pub fn age(&self) -> Duration {
        let at = self.at.iter().map(|at| at.load(Ordering::Relaxed)).filter(|at| *at > 0);
        at.min().map_or(Duration::ZERO, |at| Duration::from_millis(self.milliseconds().saturating_sub(at)))
    }
}

/// A client for a kind that records each response of the API, and each chunk of a watch.
pub fn measured_client(client: Client, kind: Kind, watch_age: Arc<WatchAge>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, watch_age) = (client.clone(), Arc::clone(&watch_age));
        async move {
            let response = client.send(request).await?;
            // A rejected list reveals nothing about the kind. A 404 does: the kind is not served.
            let is_about_kind = response.status().is_success() || response.status() == StatusCode::NOT_FOUND;
            let note = move || {
                if is_about_kind {
                    watch_age.note(kind);
                }
            };
            note();
            Ok::<_, larder_kube::Error>(response.map(|body| {
                body.map_frame(move |frame| {
                    note();
                    frame
                })
            }))
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: X4
    #[tokio::test(start_paused = true)]
    async fn the_age_is_that_of_the_kind_that_was_silent_for_longest() {
        let watch_age = WatchAge::default();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(watch_age.age(), Duration::ZERO);
        watch_age.note(Kind::Node);
        tokio::time::advance(Duration::from_secs(60)).await;
        watch_age.note(Kind::Pod);
        assert_eq!(watch_age.age(), Duration::from_secs(60));
        watch_age.note(Kind::Node);
        assert_eq!(watch_age.age(), Duration::ZERO);
    }
}
