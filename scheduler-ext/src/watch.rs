//! Watches the objects of the cluster, and publishes snapshots to readers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_kube::runtime::watcher;
use larder_kube::unparsed::Unparsed;
use larder_kube::watch::{End, Turns, Update, Watched, listen, refusal};
use larder_kube::{Api, Client};
use larder_telemetry::Heartbeat;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::admin::Counters;
use crate::config::Settings;
use crate::index::state::Snapshot;
use crate::index::{Event, FOLLOWED, Index, Kind};
use crate::read;
use crate::watch_age::measured_client;

/// The limit of queued events. When it is reached, the watches block.
const WAITING: usize = 4096;
/// The minimum interval between two snapshots. A snapshot copies everything that changed since the last one, so changes
/// are published together.
const PAUSE: Duration = Duration::from_millis(2);
/// The delay before the program retries a kind that is not served, or that it may not read.
const ABSENCE: Duration = Duration::from_secs(60);

/// Watches one kind. Never returns. If the API does not serve the kind, it counts as empty until the next retry. If the
/// kind may not be read, its known objects stay.
async fn follow(
    client: Client,
    kind: Kind,
    settings: Arc<Settings>,
    turns: Turns,
    events: mpsc::Sender<Event>,
) -> Infallible {
    loop {
        let api: Api<Unparsed> = Api::all_with(client.clone(), &kind.resource());
        let event = |update| match update {
            Update::All(all) => Event::All(kind, all),
            Update::Changed(object) => Event::Changed(kind, Box::new(object)),
            Update::Gone(key, version) => Event::Gone(kind, key.to_string().into(), version),
        };
        let read = |object| read::object(kind, &settings, object);
        match listen(api, Watched::all(kind, &turns), read, end, event, events.clone()).await {
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

/// Why a kind cannot be watched: the API refused to list it. Later errors do not end a watch.
fn end(error: &watcher::Error) -> Option<End> {
    refusal(error).filter(|_| matches!(error, watcher::Error::InitialListFailed(_)))
}

/// Watches all kinds, and publishes snapshots in `shown`. Never returns.
pub async fn run(client: Client, settings: Arc<Settings>, shown: Arc<ArcSwap<Snapshot>>, counters: Arc<Counters>) {
    let (sender, events) = mpsc::channel(WAITING);
    let mut watches = JoinSet::new();
    let all = Turns::default();
    // The cluster may not serve TrainingJobs, or not answer: nothing else waits for them.
    let turns = |kind: Kind| if kind.part().is_some() { all.apart() } else { all.clone() };
    for kind in FOLLOWED {
        let client = measured_client(client.clone(), kind, Arc::clone(&counters.watch_age));
        watches.spawn(follow(client, kind, Arc::clone(&settings), turns(kind), sender.clone()));
    }
    let devices = settings.devices.iter().map(|device| device.resource.clone()).collect();
    tokio::select! {
        () = apply_all(events, Index::new(devices), &shown, &counters) => {}
        // A watch ends only because of a bug.
        Some(ended) = watches.join_next() => warn!(?ended, "a watch ended"),
    }
}

/// Applies events and publishes snapshots, at most every 2 ms, until all senders are dropped.
pub async fn apply_all(
    mut events: mpsc::Receiver<Event>,
    mut index: Index,
    shown: &ArcSwap<Snapshot>,
    counters: &Counters,
) {
    let mut batch = Vec::new();
    loop {
        counters.heartbeat.beat();
        match tokio::time::timeout(Heartbeat::EVERY, events.recv_many(&mut batch, WAITING)).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(_) => continue,
        }
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
