//! Follows the objects of the cluster, and shows readers what is known of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_kube::api::DynamicObject;
use larder_kube::key::Key;
use larder_kube::kinds;
use larder_kube::runtime::watcher;
use larder_kube::watch::{End, Told, listen};
use larder_kube::{Api, Client, Error};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::admin::Counters;
use crate::config::Settings;
use crate::heard::noting;
use crate::index::state::Snapshot;
use crate::index::{Event, Index, Kind};
use crate::read;

/// How many news wait to be applied; then the watches wait.
const WAITING: usize = 4096;
/// The most often that readers are shown something new. A change costs a copy of what was shown, so changes are shown together.
const PAUSE: Duration = Duration::from_millis(2);
/// How long after a kind was found not to be served, or not to be readable, it is asked for again.
const ABSENCE: Duration = Duration::from_secs(60);

/// The kind as the API knows it.
const fn of_api(kind: Kind) -> kinds::Kind {
    match kind {
        Kind::Node => kinds::Kind::Node,
        Kind::Pod => kinds::Kind::Pod,
        Kind::Volume => kinds::Kind::Volume,
        Kind::Cache => kinds::Kind::NodeCache,
        Kind::Dataset => kinds::Kind::Dataset,
        Kind::Job => kinds::Kind::TrainingJob,
    }
}

/// Follows one kind for ever. Where the API does not serve it, there are no objects of it, until later; where it may not be read,
/// there are those that were known, if any.
async fn follow(client: Client, kind: Kind, settings: Arc<Settings>, news: mpsc::Sender<Event>) -> Infallible {
    let of_api = of_api(kind);
    loop {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &of_api.resource());
        let told = |told| match told {
            Told::All(all) => Event::All(kind, all),
            Told::Changed(object) => Event::Changed(kind, Box::new(object)),
            Told::Gone(Key { namespace, name }, version) => {
                Event::Gone(kind, read::name_of(&namespace, &name), version)
            }
        };
        let read = |object| read::object(kind, &settings, object);
        match listen(api, of_api.name(), read, ends, told, news.clone()).await {
            // The receiver lives as long as the program.
            End::Closed => std::future::pending::<()>().await,
            End::NotServed => {
                info!(kind = of_api.name(), "the cluster has none of these");
                let _ = news.send(Event::Absent(kind)).await;
            }
            End::Forbidden => {
                warn!(
                    kind = of_api.name(),
                    "these may not be read: it needs the rights of the ClusterRole larder-scheduler-ext; answers go on from what \
                     was known of them, if they were"
                );
            }
        }
        tokio::time::sleep(ABSENCE).await;
    }
}

/// Why objects of a kind cannot be followed: its first list was refused.
fn ends(error: &watcher::Error) -> Option<End> {
    let watcher::Error::InitialListFailed(Error::Api(status)) = error else { return None };
    match status.code {
        404 => Some(End::NotServed),
        403 => Some(End::Forbidden),
        _ => None,
    }
}

/// Follows all kinds for ever, and shows readers what becomes of it.
pub async fn run(client: Client, settings: Arc<Settings>, shown: Arc<ArcSwap<Snapshot>>, counters: Arc<Counters>) {
    let (news, events) = mpsc::channel(WAITING);
    let mut watches = JoinSet::new();
    for kind in Kind::ALL {
        let client = noting(client.clone(), kind, Arc::clone(&counters.heard));
        watches.spawn(follow(client, kind, Arc::clone(&settings), news.clone()));
    }
    let devices = settings.devices.iter().map(|device| device.resource.clone()).collect();
    tokio::select! {
        () = apply_all(events, Index::new(devices), &shown, &counters) => {}
        // None of them ends but by a mistake in the program.
        Some(ended) = watches.join_next() => warn!(?ended, "a watch ended"),
    }
}

/// Applies news and shows what is known, at most every 2 ms, until there will be none.
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
            let counts = Kind::ALL.map(|kind| (kind, index.count(kind)));
            info!(?counts, "all objects are known");
        }
        shown.store(snapshot);
        tokio::time::sleep(PAUSE).await;
    }
}
