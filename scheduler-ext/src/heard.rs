//! When the API last sent anything about each kind that is followed, which is how old an answer may be.
//!
//! A cluster in which nothing changes is not stale: about once a minute the API sends a bookmark to each watch, and it
//! answers when a watch is resumed. So the bytes of the connection count, not the events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use larder_kube::Client;
use larder_kube::client::Body;
use tokio::time::Instant;

use crate::index::{FOLLOWED, Kind};

/// When the API last sent anything, by kind.
#[derive(Debug)]
pub struct Heard {
    begun: Instant,
    /// By kind, in the order of [`FOLLOWED`]: milliseconds since `begun`, plus one; 0: never.
    at: [AtomicU64; FOLLOWED.len()],
}

impl Default for Heard {
    fn default() -> Self {
        Self { begun: Instant::now(), at: Default::default() }
    }
}

impl Heard {
    fn milliseconds(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// The API has sent something about a kind.
    pub fn note(&self, kind: Kind) {
        let at = FOLLOWED.iter().zip(&self.at).find(|(followed, _)| **followed == kind);
        at.into_iter().for_each(|(_, at)| at.store(self.milliseconds(), Ordering::Relaxed));
    }

    /// How long the API has been silent about the kind about which it has been silent for longest. A kind that was never
    /// served, or that could never be read, does not count.
    pub fn age(&self) -> Duration {
        let at = self.at.iter().map(|at| at.load(Ordering::Relaxed)).filter(|at| *at > 0);
        at.min().map_or(Duration::ZERO, |at| Duration::from_millis(self.milliseconds().saturating_sub(at)))
    }
}

/// A client for a kind that notes each answer of the API, and each piece of a watch.
pub fn noting(client: Client, kind: Kind, heard: Arc<Heard>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, heard) = (client.clone(), Arc::clone(&heard));
        async move {
            let response = client.send(request).await?;
            // A refused list tells nothing about the kind. That it is not served does.
            let tells = response.status().is_success() || response.status() == StatusCode::NOT_FOUND;
            let note = move || {
                if tells {
                    heard.note(kind);
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
        let heard = Heard::default();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(heard.age(), Duration::ZERO);
        heard.note(Kind::Node);
        tokio::time::advance(Duration::from_secs(60)).await;
        heard.note(Kind::Pod);
        assert_eq!(heard.age(), Duration::from_secs(60));
        heard.note(Kind::Node);
        assert_eq!(heard.age(), Duration::ZERO);
    }
}
