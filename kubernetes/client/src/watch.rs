//! Watches the objects of one kind. Each object is reduced to the fields that the program needs before it is stored.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Error};
use tokio::sync::mpsc;
use tracing::warn;

use crate::fields::version;
use crate::key::Key;
use crate::kinds::Kind;

/// Objects per page of a list. A page is parsed as a whole, so the page size bounds the memory of a list.
pub(crate) const PAGE: u32 = 100;
/// The pause before objects are listed again when a watch cannot resume.
const RELIST: Duration = Duration::from_secs(1);

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The receiver was dropped.
    Closed,
    /// The API does not serve the kind.
    NotServed,
    /// The program may not read the kind.
    Forbidden,
}

/// Why objects of `kind` cannot be watched. Only for a kind of an optional API, which a cluster may not serve or may
/// not permit; `None` for other kinds.
pub fn end(kind: Kind, error: &watcher::Error) -> Option<End> {
    kind.part().and_then(|_| refusal(error))
}

/// Why the API rejects requests for a kind permanently; `None` for an error that a retry may resolve.
pub fn refusal(error: &watcher::Error) -> Option<End> {
    let status = match error {
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status)) => status,
        watcher::Error::WatchError(status) => status,
        _ => return None,
    };
    match status.code {
        404 => Some(End::NotServed),
        403 => Some(End::Forbidden),
        _ => None,
    }
}

/// A change of the objects of one kind.
#[derive(Debug)]
pub enum Update<T> {
    /// The complete list of objects.
    All(Vec<T>),
    /// An object was created or changed.
    Changed(T),
    /// An object was deleted, or is no longer of interest. With its last version.
    Gone(Key, u64),
}

/// True if the version at which a watch would resume has expired, and the API reports that before the watch begins. The
/// watcher does not handle this case: it would request the same version forever.
fn is_version_gone(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(Error::Api(status)) if status.code == 410)
}

/// Sends the changes of the objects of one kind, until the receiver is dropped or `end` returns a reason to stop.
/// `kind` is the name in logs. `read` reduces an object to the stored fields, and returns `None` for an object that is
/// not of interest. `message` converts a change to a message. A broken watch is resumed after growing pauses.
pub async fn listen<T, M>(
    api: Api<DynamicObject>,
    kind: &str,
    read: impl Fn(DynamicObject) -> Option<T>,
    end: impl Fn(&watcher::Error) -> Option<End>,
    message: impl Fn(Update<T>) -> M,
    messages: mpsc::Sender<M>,
) -> End {
    listen_where(api, watcher::Config::default(), kind, read, end, message, messages).await
}

/// As [`listen`], for the objects that the selectors of `config` select.
pub async fn listen_where<T, M>(
    api: Api<DynamicObject>,
    config: watcher::Config,
    kind: &str,
    read: impl Fn(DynamicObject) -> Option<T>,
    end: impl Fn(&watcher::Error) -> Option<End>,
    message: impl Fn(Update<T>) -> M,
    messages: mpsc::Sender<M>,
) -> End {
    let begin = || watch(api.clone(), config.clone().page_size(PAGE)).default_backoff().boxed();
    let mut events = begin();
    let mut listed = Vec::new();
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return End::Closed,
            Err(error) => {
                if let Some(end) = end(&error) {
                    return end;
                }
                warn!(kind, error = %error, "watch failed; retrying");
                if is_version_gone(&error) {
                    tokio::time::sleep(RELIST).await;
                    events = begin();
                }
                continue;
            }
        };
        let update = match event {
            Event::Init => {
                listed.clear();
                continue;
            }
            Event::InitApply(object) => {
                listed.extend(read(object));
                continue;
            }
            Event::InitDone => Update::All(std::mem::take(&mut listed)),
            Event::Apply(object) => {
                let (key, version) = (Key::of(&object), version(&object));
                read(object).map_or_else(|| Update::Gone(key, version), Update::Changed)
            }
            Event::Delete(object) => Update::Gone(Key::of(&object), version(&object)),
        };
        // A full channel makes the watch wait, and the API server buffers its events.
        if messages.send(message(update)).await.is_err() {
            return End::Closed;
        }
    }
}
