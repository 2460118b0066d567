//! Watches the objects that the controller decides from, kind by kind.

use std::time::Duration;

use larder_api::names::{JOB_LABEL, UID_LABEL};
use larder_kube::Key;
use larder_kube::kinds::{Kind, Part};
use larder_kube::unparsed::Unparsed;
use larder_kube::watch::{End, Turns, Update, Watched, end, listen};
use larder_kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clusters::known::Report;
use crate::read::Unreadable;
use crate::state::watched::Object;

/// An event about one kind.
#[derive(Debug)]
pub enum News {
    /// The complete list of a kind, and the objects of it that cannot be parsed.
    All(Kind, Vec<Object>, Vec<Unreadable>),
    /// An object was created or changed.
    Changed(Kind, Object),
    /// The controller created or changed an object. The watch may have reported the change already.
    Written(Kind, Object),
    /// An object was deleted, or no longer matters, at this resource version.
    Gone(Kind, Key, u64),
    /// An object was created or changed, and cannot be parsed.
    Unreadable(Unreadable),
    /// The cluster lacks this optional part of the API.
    Absent(Part),
    /// The cluster has the part, but its objects cannot be listed at the moment.
    Silent(Part),
    /// A report of the link with this number to the Cluster with this name.
    Link(String, u64, Report),
}

/// Sends events about the objects of `kind` until the receiver is closed, or the kind's part disappears.
pub async fn follow(client: Client, kind: Kind, namespace: String, turns: Turns, news: mpsc::Sender<News>) -> End {
    let api: Api<Unparsed> = match kind {
        // The controller may read only the ConfigMaps of Larder's namespace.
        Kind::ConfigMap => Api::namespaced_with(client, &namespace, &kind.resource()),
        _ => Api::all_with(client, &kind.resource()),
    };
    let read = |object| Object::read(kind, object).transpose();
    let message = |update| match update {
        Update::All(all) => {
            let (mut objects, mut unreadable) = (Vec::new(), Vec::new());
            for one in all {
                match one {
                    Ok(object) => objects.push(object),
                    Err(why) => unreadable.push(why),
                }
            }
            News::All(kind, objects, unreadable)
        }
        Update::Changed(Ok(object)) => News::Changed(kind, object),
        Update::Changed(Err(why)) => News::Unreadable(why),
        Update::Gone(key, version) => News::Gone(kind, key, version),
    };
    let mut watched = Watched::all(kind, &turns);
    watched.config.label_selector = label(kind).map(str::to_owned);
    listen(api, watched, read, |error| end(kind, error), message, news).await
}

/// The label that all objects of a kind have that matter to the controller.
const fn label(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Job | Kind::Volume => Some(UID_LABEL),
        Kind::PodGroup => Some(JOB_LABEL),
        _ => None,
    }
}

/// The time limit for listing all objects of a part.
const SILENCE: Duration = Duration::from_secs(60);

/// Follows all kinds of a part until one of them ends. Sends [`News::Silent`] if the part cannot be listed within 60 s.
pub async fn follow_part(client: &Client, part: Part, kinds: &[Kind], turns: &Turns, news: &mpsc::Sender<News>) -> End {
    let mut watches = JoinSet::new();
    for kind in kinds {
        watches.spawn(follow(client.clone(), *kind, String::new(), turns.clone(), news.clone()));
    }
    // The other watches end when the set is dropped.
    let mut ended = std::pin::pin!(watches.join_next());
    let ended = match tokio::time::timeout(SILENCE, &mut ended).await {
        Ok(ended) => ended,
        Err(_) => {
            if news.send(News::Silent(part)).await.is_err() {
                return End::Closed;
            }
            ended.await
        }
    };
    ended.and_then(Result::ok).unwrap_or(End::Closed)
}
