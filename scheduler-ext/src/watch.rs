//! Follows the objects of the cluster, and publishes what is known of them to readers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_kube::api::DynamicObject;
use larder_kube::runtime::watcher;
use larder_kube::watch::{End, Update, listen, refusal};
use larder_kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::admin::Counters;
use crate::config::Settings;
use crate::heard::noting;
use crate::index::state::Snapshot;
use crate::index::{Event, FOLLOWED, Index, Kind};
use crate::read;

/// Events that wait to be applied. With more, the watches wait.
const WAITING: usize = 4096;
/// The least time between two snapshots. Each copies what changed since the last one, so changes are published together.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause before a kind that is not served, or that may not be read, is asked for again.
const ABSENCE: Duration = Duration::from_secs(60);

/// Follows one kind for ever. Where the API does not serve the kind, there are no objects of it until it is asked for
/// again; where it may not be read, the objects that were known stay.
async fn follow(client: Client, kind: Kind, settings: Arc<Settings>, events: mpsc::Sender<Event>) -> Infallible {
    loop {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
        let event = |update| match update {
            Update::All(all) => Event::All(kind, all),
            Update::Changed(object) => Event::Changed(kind, Box::new(object)),
            Update::Gone(key, version) => Event::Gone(kind, key.to_string().into(), version),
        };
        let read = |object| read::object(kind, &settings, object);
        match listen(api, kind.name(), read, end, event, events.clone()).await {
            // The receiver lives as long as the program.
            End::Closed => std::future::pending::<()>().await,
            End::NotServed => {
                info!(kind = kind.name(), "kind not served by this cluster");
                let _ = events.send(Event::Absent(kind)).await;
            }
            End::Forbidden => {
                warn!(
                    kind = kind.name(),
                    "cannot list this kind: grant the ClusterRole larder-scheduler-ext; answers use the objects that \
                     were known before, if any"
                );
            }
        }
        tokio::time::sleep(ABSENCE).await;
    }
}

/// Why objects of a kind cannot be followed: the API refused to list them. A later error does not end a watch.
fn end(error: &watcher::Error) -> Option<End> {
    refusal(error).filter(|_| matches!(error, watcher::Error::InitialListFailed(_)))
}

/// Follows all kinds for ever, and publishes what is known of them in `shown`.
pub async fn run(client: Client, settings: Arc<Settings>, shown: Arc<ArcSwap<Snapshot>>, counters: Arc<Counters>) {
    let (sender, events) = mpsc::channel(WAITING);
    let mut watches = JoinSet::new();
    for kind in FOLLOWED {
        let client = noting(client.clone(), kind, Arc::clone(&counters.heard));
        watches.spawn(follow(client, kind, Arc::clone(&settings), sender.clone()));
    }
    let devices = settings.devices.iter().map(|device| device.resource.clone()).collect();
    tokio::select! {
        () = apply_all(events, Index::new(devices), &shown, &counters) => {}
        // A watch ends only by a bug.
        Some(ended) = watches.join_next() => warn!(?ended, "a watch ended"),
    }
}

/// Applies events and publishes what is known, at most every 2 ms, until all senders are gone.
pub async fn apply_all(
    mut events: mpsc::Receiver<Event>,
    mut index: Index,
    shown: &ArcSwap<Snapshot>,
    counters: &Counters,
) {
    let mut batch = Vec::new();
    while events.recv_many(&mut batch, WAITING).await > 0 {
        counters.events.fetch_add(batch.len() as u64, Ordering::Relaxed);
        for event in batch.drain(..) {
            index.apply(event);
        }
        let was_complete = shown.load().is_complete;
        let snapshot = index.show();
        if snapshot.is_complete && !was_complete {
            let counts = FOLLOWED.map(|kind| (kind, index.count(kind)));
            info!(?counts, "all objects are known");
        }
        shown.store(snapshot);
        tokio::time::sleep(PAUSE).await;
    }
}
