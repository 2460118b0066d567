//! Watches the objects of one kind. Each object is reduced to the fields that the program needs before it is stored.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Error};
use tokio::sync::{Semaphore, mpsc};
use tracing::warn;

use crate::fields::version;
use crate::key::Key;
use crate::kinds::Kind;
use crate::unparsed::Unparsed;

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

/// The turns of the watches of a program. One of them lists at a time, and one object is parsed at a time: users can
/// write objects of which not many fit into the program's memory.
#[derive(Clone, Debug)]
pub struct Turns {
    list: Arc<Semaphore>,
    parse: Arc<Mutex<()>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { list: Arc::new(Semaphore::new(1)), parse: Arc::default() }
    }
}

impl Turns {
    /// The turns of watches that must not wait for the lists of others, which the API may never answer.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { list: Arc::new(Semaphore::new(1)), parse: Arc::clone(&self.parse) }
    }
}

/// The objects to watch.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Their kind.
    pub kind: Kind,
    /// Which of them.
    pub config: watcher::Config,
    /// When they are listed.
    pub turns: Turns,
}

impl Watched {
    /// All objects of a kind.
    pub fn all(kind: Kind, turns: &Turns) -> Self {
        Self { kind, config: watcher::Config::default(), turns: turns.clone() }
    }
}

/// Sends the changes of the objects of one kind, until the receiver is dropped or `end` returns a reason to stop.
/// `read` reduces an object to the stored fields, and returns `None` for an object that is not of interest. `message`
/// converts a change to a message. A broken watch is resumed after growing pauses.
pub async fn listen<T, M>(
    api: Api<Unparsed>,
    watched: Watched,
    read: impl Fn(DynamicObject) -> Option<T>,
    end: impl Fn(&watcher::Error) -> Option<End>,
    message: impl Fn(Update<T>) -> M,
    messages: mpsc::Sender<M>,
) -> End {
    let Watched { kind, config, turns } = watched;
    let begin = || watch(api.clone(), config.clone().page_size(kind.page())).default_backoff().boxed();
    let read = |object: Unparsed| {
        let _turn = turns.parse.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of(&object);
        let parsed = object.parse();
        parsed
            .map_err(|error| warn!(kind = kind.name(), %key, %error, "skip an unreadable object"))
            .ok()
            .and_then(&read)
    };
    let mut events = begin();
    let (mut listed, mut turn) = (Vec::new(), None);
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return End::Closed,
            Err(error) => {
                drop(turn.take());
                if let Some(end) = end(&error) {
                    return end;
                }
                warn!(kind = kind.name(), error = %error, "watch failed; retrying");
                if is_version_gone(&error) {
                    tokio::time::sleep(RELIST).await;
                    events = begin();
                }
                continue;
            }
        };
        let update = match event {
            // The list begins when the next event is awaited.
            Event::Init => {
                listed.clear();
                turn = Arc::clone(&turns.list).acquire_owned().await.ok();
                continue;
            }
            Event::InitApply(object) => {
                listed.extend(read(object));
                continue;
            }
            Event::InitDone => {
                drop(turn.take());
                Update::All(std::mem::take(&mut listed))
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Client;
    use larder_testkit::FakeApi;
    use larder_testkit::fake_api::Mode;
    use serde_json::json;
    use tokio::task::JoinHandle;

    const HANGS: Duration = Duration::from_secs(60);

    /// Watches a kind, and counts its objects.
    fn follow(api: &FakeApi, kind: Kind, turns: &Turns) -> (JoinHandle<End>, mpsc::Receiver<usize>) {
        let (sender, messages) = mpsc::channel(16);
        let unparsed = Api::all_with(Client::new(api.service(), "default"), &kind.resource());
        let watched = Watched::all(kind, turns);
        let count = |update| match update {
            Update::All(all) => all.len(),
            Update::Changed(_) => 1,
            Update::Gone(..) => 0,
        };
        (tokio::spawn(listen(unparsed, watched, Some, |_| None, count, sender)), messages)
    }

    #[tokio::test(start_paused = true)]
    async fn all_pages_of_a_list_arrive_as_one_list() {
        let api = FakeApi::new();
        for nth in 0..25 {
            api.put("pods", json!({"metadata": {"namespace": "n", "name": format!("p-{nth}")}}));
        }
        let (_watch, mut counts) = follow(&api, Kind::Pod, &Turns::default());
        assert_eq!(counts.recv().await, Some(25));
        api.put("pods", json!({"metadata": {"namespace": "n", "name": "p-25"}}));
        assert_eq!(counts.recv().await, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn watches_list_in_turn_and_wait_for_no_list_of_those_apart() {
        let api = FakeApi::new();
        api.turn(&["pods"], Mode::Hangs(HANGS));
        let turns = Turns::default();
        let (_pods, _of_pods) = follow(&api, Kind::Pod, &turns);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (_claims, mut of_claims) = follow(&api, Kind::Claim, &turns);
        let (_jobs, mut of_jobs) = follow(&api, Kind::TrainingJob, &turns.apart());
        assert_eq!(of_jobs.recv().await, Some(0));
        tokio::time::sleep(HANGS / 2).await;
        assert_eq!(api.lists("persistentvolumeclaims"), 0);
        // A list that fails gives its turn away before the next attempt.
        assert_eq!(of_claims.recv().await, Some(0));
    }
}
