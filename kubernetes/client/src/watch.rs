//! Follows the objects of one kind, each cut to the fields that are needed before it is kept.

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

/// Objects of a page of a list. A page is parsed whole, so it bounds the memory that a list takes.
const PAGE: u32 = 100;
/// The pause before objects are listed again because a watch cannot resume where it was.
const RELIST: Duration = Duration::from_secs(1);

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The receiver is gone.
    Closed,
    /// The API does not serve the kind.
    NotServed,
    /// The program may not read the kind.
    Forbidden,
}

/// Why objects of `kind` cannot be followed, if its API is optional: the cluster may lack it, or may not grant it.
pub fn end(kind: Kind, error: &watcher::Error) -> Option<End> {
    kind.part().and_then(|_| refusal(error))
}

/// Why the API refuses a kind as a whole; `None` for an error that a later attempt may not have.
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
    /// An object was deleted, or is not of interest any more; with its version.
    Gone(Key, u64),
}

/// True if the API has forgotten the version at which a watch would resume, and says so before the watch begins. The
/// watcher would ask for the same version for ever.
fn is_version_gone(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(Error::Api(status)) if status.code == 410)
}

/// Sends the changes of the objects of one kind, named `kind` in logs, until the receiver is gone or `end` names a
/// reason to stop. `read` cuts an object to the fields that are kept, and returns `None` for one that is not of
/// interest; `message` makes a message of a change. A watch that breaks is resumed, after pauses that grow.
pub async fn listen<T, M>(
    api: Api<DynamicObject>,
    kind: &str,
    read: impl Fn(DynamicObject) -> Option<T>,
    end: impl Fn(&watcher::Error) -> Option<End>,
    message: impl Fn(Update<T>) -> M,
    messages: mpsc::Sender<M>,
) -> End {
    let begin = || watch(api.clone(), watcher::Config::default().page_size(PAGE)).default_backoff().boxed();
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
        // A full channel makes the watch wait; the API server then keeps its events.
        if messages.send(message(update)).await.is_err() {
            return End::Closed;
        }
    }
}
