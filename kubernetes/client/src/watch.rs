//! Follows the objects of one kind, each cut to the fields that are needed before it is kept.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Error};
use tokio::sync::mpsc;
use tracing::warn;

use crate::fields::meta;
use crate::key::{Key, Meta};
use crate::kinds::Kind;

/// Objects of a page of a list. Pages are parsed whole.
const PAGE: u32 = 100;
/// The pause before objects are listed again because a watch cannot begin from where it was.
const RELIST: Duration = Duration::from_secs(1);

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nobody wants its news.
    Closed,
    /// The API does not serve the kind.
    NotServed,
    /// The controller may not read the kind.
    Forbidden,
}

/// Why objects of a part that may not be there cannot be followed.
pub fn end(kind: Kind, error: &watcher::Error) -> Option<End> {
    let status = match error {
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status)) => status,
        watcher::Error::WatchError(status) => status,
        _ => return None,
    };
    kind.part()?;
    match status.code {
        404 => Some(End::NotServed),
        403 => Some(End::Forbidden),
        _ => None,
    }
}

/// What happened to the objects of one kind.
#[derive(Debug)]
pub enum Told<T> {
    /// These are all that there are.
    All(Vec<T>),
    /// One was made or changed.
    Changed(T),
    /// One is gone, or is not of interest any more; with its version.
    Gone(Key, u64),
}

/// True if the API does not know any more what a watch was told last, and says so before it begins: the watcher would ask for the
/// same again, for ever.
fn is_gone(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(Error::Api(status)) if status.code == 410)
}

/// Sends what happens to the objects of one kind, named `kind` in logs, until the receiver is gone or `ends` says that it is of no
/// use. `read` cuts an object to what is kept of it, if it is of interest. A watch that breaks is begun again, with pauses that
/// grow.
pub async fn listen<T, N>(
    api: Api<DynamicObject>,
    kind: &str,
    read: impl Fn(DynamicObject) -> Option<T>,
    ends: impl Fn(&watcher::Error) -> Option<End>,
    told: impl Fn(Told<T>) -> N,
    news: mpsc::Sender<N>,
) -> End {
    let begin = || watch(api.clone(), watcher::Config::default().page_size(PAGE)).default_backoff().boxed();
    let mut events = begin();
    let mut listed = Vec::new();
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return End::Closed,
            Err(error) => {
                if let Some(end) = ends(&error) {
                    return end;
                }
                warn!(kind, error = %error, "a watch broke; it is begun again");
                if is_gone(&error) {
                    tokio::time::sleep(RELIST).await;
                    events = begin();
                }
                continue;
            }
        };
        let next = match event {
            Event::Init => {
                listed.clear();
                continue;
            }
            Event::InitApply(object) => {
                listed.extend(read(object));
                continue;
            }
            Event::InitDone => Told::All(std::mem::take(&mut listed)),
            Event::Apply(object) => {
                let Meta { key, version, .. } = meta(&object);
                read(object).map_or_else(|| Told::Gone(key, version), Told::Changed)
            }
            Event::Delete(object) => {
                let Meta { key, version, .. } = meta(&object);
                Told::Gone(key, version)
            }
        };
        // A full channel makes the watch wait; the API server then keeps its events.
        if news.send(told(next)).await.is_err() {
            return End::Closed;
        }
    }
}
