//! When the API last said anything about each kind that is followed: answers are as old as that.
//!
//! A cluster in which nothing changes is no stale one: the API still tells its watches about once a minute that they are current,
//! and it answers when they begin again. So it is the connection that is listened to, not the news.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use larder_kube::Client;
use larder_kube::client::Body;
use tokio::time::Instant;

use crate::index::{FOLLOWED, Kind};

/// When the API last said anything, by kind.
#[derive(Debug)]
pub struct Heard {
    begun: Instant,
    /// By kind: milliseconds since then, and one more; 0: never.
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

    /// It said something.
    pub fn note(&self, kind: Kind) {
        let at = FOLLOWED.iter().zip(&self.at).find(|(followed, _)| **followed == kind);
        at.into_iter().for_each(|(_, at)| at.store(self.milliseconds(), Ordering::Relaxed));
    }

    /// How long it has been silent about the kind that it has been silent about for longest. Those that were never there or never
    /// might be read do not count.
    pub fn age(&self) -> Duration {
        let at = self.at.iter().map(|at| at.load(Ordering::Relaxed)).filter(|at| *at > 0);
        at.min().map_or(Duration::ZERO, |at| Duration::from_millis(self.milliseconds().saturating_sub(at)))
    }
}

/// A client for a kind that notes whenever the API says something: that it answers, and each piece of what it goes on to tell.
pub fn noting(client: Client, kind: Kind, heard: Arc<Heard>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, heard) = (client.clone(), Arc::clone(&heard));
        async move {
            let response = client.send(request).await?;
            // A list that is refused tells nothing; that there is no such kind does.
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
    async fn the_kind_that_is_silent_for_longest_counts() {
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
