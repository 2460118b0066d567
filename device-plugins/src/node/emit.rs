//! Emits events: one task finds what to report, another creates one event after the other.

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
use super::events::{About, Report, between, noticed};
use super::pods::{Known, Pods};
use crate::health::Notice;
use crate::pace::pauses;
use crate::resource::Resource;
use crate::view::View;

/// How many events wait to be made; more are dropped and counted.
pub(super) const WAITING: usize = 1024;
/// The most often that an event is made.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest that one request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Attempts at an event that the API server answers with an error of its own.
const TRIES: u32 = 4;
/// An event that has waited this long is dropped.
const TOO_OLD: Duration = Duration::from_secs(3600);
/// The same notice is reported again after this time.
const SAME_NOTICE: Duration = Duration::from_secs(60);
/// How often an unreachable kubelet is asked, once a second, which pods hold a changed device.
const ASKS: u32 = 30;

/// Finds what to report, until the views end.
pub(super) struct Finder {
    pub(super) node: String,
    pub(super) pods: Arc<Pods>,
    pub(super) found: mpsc::Sender<(Report, Instant)>,
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

    /// Reports what changed, and returns the view that it has reported.
    async fn compare(&self, before: Option<Arc<View>>, view: &mut watch::Receiver<Arc<View>>) -> Arc<View> {
        let at = Timestamp::now();
        let now = Arc::clone(&view.borrow_and_update());
        // A device that is gone is in none of the resources of now.
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

    fn put(&self, reports: Vec<Report>) {
        for report in reports {
            if self.found.try_send((report, Instant::now())).is_err() {
                self.counters.events_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Which notices were reported recently, and to whom.
#[derive(Default)]
pub(super) struct Recent(BTreeMap<(Notice, About), Instant>);

impl Recent {
    /// The reports of a notice, without those that the same pod has got recently.
    pub(super) fn news(&mut self, notice: &Notice, mut reports: Vec<Report>) -> Vec<Report> {
        self.0.retain(|_, at| at.elapsed() < SAME_NOTICE);
        reports.retain(|report| match self.0.entry((notice.clone(), report.about.clone())) {
            Entry::Occupied(_) => false,
            Entry::Vacant(new) => {
                new.insert(Instant::now());
                true
            }
        });
        reports
    }
}

/// How a request ended.
enum Made {
    /// It is there.
    Yes,
    /// The API will never take it.
    Refused(String),
    /// The API says that it has failed.
    Failed(String),
    /// The API is away, or has too much to do.
    Away(String),
}

/// Makes the events that are found. One that the API does not take is dropped, and the next one is made; while the API is away
/// all wait.
pub(super) async fn make(
    client: Client,
    node: String,
    mut found: mpsc::Receiver<(Report, Instant)>,
    counters: Arc<Counters>,
) {
    let mut warned = false;
    while let Some((report, since)) = found.recv().await {
        let (mut backoff, mut tries) = (pauses(), 0);
        loop {
            let made = create(&client, &node, &report).await;
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
                warn!(error = trouble, reason = report.reason, "no event could be made about a pod or the node");
            }
            if is_over {
                counters.events_dropped.fetch_add(1, Ordering::Relaxed);
                break;
            }
            sleep(backoff.next().unwrap_or_default()).await;
        }
        sleep(PAUSE).await;
    }
}

async fn create(client: &Client, node: &str, report: &Report) -> Made {
    let event = report.event(node, Timestamp::now());
    let events: Api<Event> = Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
    match timeout(PATIENCE, events.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => Made::Yes,
        // It was made before.
        Ok(Err(Error::Api(status))) if status.code == 409 => Made::Yes,
        Ok(Err(Error::Api(status))) if status.code == 429 => Made::Away(status.to_string()),
        Ok(Err(Error::Api(status))) if (400..500).contains(&status.code) => Made::Refused(status.to_string()),
        Ok(Err(Error::Api(status))) => Made::Failed(status.to_string()),
        Ok(Err(error)) => Made::Away(error.to_string()),
        Err(_) => Made::Away("the API server does not answer".to_owned()),
    }
}
