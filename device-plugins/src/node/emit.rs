//! Creates Events: one task finds what to report, another creates one Event after the other.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use larder_kube::api::{Api, PostParams};
use larder_kube::{Client, Error};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::counters::Counters;
use super::events::{About, PendingEvent, between, noticed};
use super::pods::{Known, Pods};
use crate::health::Notice;
use crate::pace::Backoff;
use crate::resource::Resource;
use crate::view::View;

/// How many Events may wait to be created; more are dropped and counted.
pub(super) const WAITING: usize = 1024;
/// The pause between two Events.
const PAUSE: Duration = Duration::from_millis(100);
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Attempts at an Event that the API server answers with a server error.
const TRIES: u32 = 4;
/// Older Events are dropped.
const TOO_OLD: Duration = Duration::from_secs(3600);
/// A repeated notice is reported again after this time.
const SAME_NOTICE: Duration = Duration::from_secs(60);
/// How often an unreachable kubelet is asked for the holders of a changed device, once a second.
const ASKS: u32 = 30;

/// Finds the Events to create, until the sender of views is gone.
pub(super) struct Finder {
    pub(super) node: String,
    pub(super) pods: Arc<Pods>,
    pub(super) found: mpsc::Sender<(PendingEvent, Instant)>,
    pub(super) counters: Arc<Counters>,
}

impl Finder {
    pub(super) async fn run(self, mut view: watch::Receiver<Arc<View>>, mut notices: mpsc::Receiver<Notice>) {
        let (mut before, mut recent) = (None::<Arc<View>>, Recent::default());
        view.mark_changed();
        loop {
            tokio::select! {
                changed = view.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    before = Some(self.compare(before, &mut view).await);
                }
                Some(notice) = notices.recv() => {
                    let now = Arc::clone(&view.borrow());
                    let known = self.pods.known(&now.resources).await;
                    self.put(recent.news(&notice, noticed(&notice, &now, &known.held, Timestamp::now())));
                }
            }
        }
    }

    /// Reports what changed since `before`, and returns the view that was reported.
    async fn compare(&self, before: Option<Arc<View>>, view: &mut watch::Receiver<Arc<View>>) -> Arc<View> {
        let at = Timestamp::now();
        let now = Arc::clone(&view.borrow_and_update());
        // A device that is gone is in none of the current resources.
        let mut resources: Vec<Resource> = now.resources.to_vec();
        resources.extend(before.iter().flat_map(|view| view.resources.iter().cloned()));
        let is_about_pods = before.as_ref().is_none_or(|before| before.faults != now.faults);
        let mut known = Known::default();
        if is_about_pods {
            known = self.pods.known(&resources).await;
            for _ in 0..ASKS {
                if known.trouble.is_none() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
                known = self.pods.known(&resources).await;
            }
        }
        self.put(between(&self.node, before.as_deref(), &now, &known.held, at));
        now
    }

    fn put(&self, events: Vec<PendingEvent>) {
        for event in events {
            if self.found.try_send((event, Instant::now())).is_err() {
                self.counters.events_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The recent notices, by the object that they were reported on.
#[derive(Default)]
pub(super) struct Recent(BTreeMap<(Notice, About), Instant>);

impl Recent {
    /// The Events of a notice, without those that were reported on the same object recently.
    pub(super) fn news(&mut self, notice: &Notice, mut events: Vec<PendingEvent>) -> Vec<PendingEvent> {
        self.0.retain(|_, at| at.elapsed() < SAME_NOTICE);
        events.retain(|event| match self.0.entry((notice.clone(), event.about.clone())) {
            Entry::Occupied(_) => false,
            Entry::Vacant(new) => {
                new.insert(Instant::now());
                true
            }
        });
        events
    }
}

/// The outcome of a request.
enum Made {
    /// The Event exists.
    Yes,
    /// The API server will never accept it.
    Refused(String),
    /// The API server answers with an error of its own.
    Failed(String),
    /// The API server is unreachable or overloaded.
    Away(String),
}

/// Creates the Events that were found. One that the API server does not accept is dropped; while the API server is unreachable,
/// all wait.
pub(super) async fn make(
    client: Client,
    node: String,
    mut found: mpsc::Receiver<(PendingEvent, Instant)>,
    counters: Arc<Counters>,
) {
    let mut warned = false;
    while let Some((pending, since)) = found.recv().await {
        let (mut backoff, mut tries) = (Backoff::new(), 0);
        loop {
            let made = create(&client, &node, &pending).await;
            let (is_over, trouble) = match made {
                Made::Yes => {
                    counters.events.fetch_add(1, Ordering::Relaxed);
                    warned = false;
                    break;
                }
                Made::Refused(why) => (true, why),
                Made::Failed(why) => {
                    tries += 1;
                    (tries >= TRIES, why)
                }
                Made::Away(why) => (since.elapsed() >= TOO_OLD, why),
            };
            counters.api_errors.fetch_add(1, Ordering::Relaxed);
            if !warned {
                warned = true;
                warn!(error = trouble, reason = pending.reason, "cannot create events");
            }
            if is_over {
                counters.events_dropped.fetch_add(1, Ordering::Relaxed);
                break;
            }
            sleep(backoff.pause()).await;
        }
        sleep(PAUSE).await;
    }
}

async fn create(client: &Client, node: &str, pending: &PendingEvent) -> Made {
    let event = pending.event(node, Timestamp::now());
    let events: Api<Event> = Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
    match timeout(PATIENCE, events.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => Made::Yes,
        // It was created before.
        Ok(Err(Error::Api(status))) if status.code == 409 => Made::Yes,
        Ok(Err(Error::Api(status))) if status.code == 429 => Made::Away(status.to_string()),
        Ok(Err(Error::Api(status))) if (400..500).contains(&status.code) => Made::Refused(status.to_string()),
        Ok(Err(Error::Api(status))) => Made::Failed(status.to_string()),
        Ok(Err(error)) => Made::Away(error.to_string()),
        Err(_) => Made::Away("the API server does not answer".to_owned()),
    }
}
