//! Follows training jobs and the objects that they depend on, if their definitions are installed and the controller has
//! the rights to read them. Both may appear at any time. A cluster without them is polled, and nothing is logged.

use std::time::Duration;

use larder_kube::Client;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::watch::{News, follow_part};
use larder_kube::kinds::{Kind, Part};
use larder_kube::watch::Turns;

/// The interval between two polls for an absent part.
const PAUSE: Duration = Duration::from_secs(60);

/// A part that was present is retried this many times before it counts as absent: an API server that is starting may
/// temporarily deny rights that it grants a moment later.
const TRIES: u32 = 6;

/// The interval between those retries.
const AGAIN: Duration = Duration::from_secs(5);

/// The kinds of kube-scheduler's gang scheduling.
const GANGS: [Kind; 1] = [Kind::PodGroup];

/// Sends events about PodGroups until the receiver is closed. Does nothing while the API does not serve them.
pub async fn follow_gangs(client: Client, turns: Turns, news: mpsc::Sender<News>) {
    follow(client, Part::Gangs, &GANGS, turns, news).await;
}

/// The kinds of other clusters.
const CLUSTERS: [Kind; 1] = [Kind::Cluster];

/// Sends events about Clusters until the receiver is closed. Does nothing while the API does not serve them, or the
/// controller has no right to them.
pub async fn follow_clusters(client: Client, turns: Turns, news: mpsc::Sender<News>) {
    follow(client, Part::Clusters, &CLUSTERS, turns, news).await;
}

/// Sends events about the objects of training jobs until the receiver is closed.
pub async fn follow_jobs(client: Client, turns: Turns, news: mpsc::Sender<News>) {
    follow(client, Part::Jobs, &Kind::OF_JOBS, turns, news).await;
}

async fn follow(client: Client, part: Part, kinds: &[Kind], turns: Turns, news: mpsc::Sender<News>) {
    let mut tries = 0;
    while !news.is_closed() {
        let begun = Instant::now();
        // Either the definitions are missing, which the component `datasets` installs, or the rights, which `jobs`
        // grants.
        follow_part(&client, part, kinds, &turns, &news).await;
        if begun.elapsed() >= PAUSE {
            tries = TRIES;
        }
        if tries > 0 {
            tries -= 1;
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        if news.send(News::Absent(part)).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
