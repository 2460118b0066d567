//! Follows training jobs and what they depend on, where they are installed: their definitions, and the controller's rights to
//! them. They may come at any time; a cluster without them is asked now and then, and nothing is logged.

use std::time::Duration;

use larder_kube::Client;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::watch::{News, follow_part};
use larder_kube::kinds::{Kind, Part};

/// How long until they are looked for again.
const PAUSE: Duration = Duration::from_secs(60);

/// A part that was there is looked for so many times more before it is given up: an API server that starts may refuse what it
/// grants a moment later.
const TRIES: u32 = 6;

/// How long until it is looked for again then.
const AGAIN: Duration = Duration::from_secs(5);

/// The kinds of the scheduler's gangs.
const GANGS: [Kind; 1] = [Kind::PodGroup];

/// Sends what happens to the scheduler's gangs until the receiver is gone: where they are served, and turned on.
pub async fn follow_gangs(client: Client, news: mpsc::Sender<News>) {
    follow(client, Part::Gangs, &GANGS, news).await;
}

/// Sends what happens to the objects of training jobs until the receiver is gone.
pub async fn follow_jobs(client: Client, news: mpsc::Sender<News>) {
    follow(client, Part::Jobs, &Kind::OF_JOBS, news).await;
}

async fn follow(client: Client, part: Part, kinds: &[Kind], news: mpsc::Sender<News>) {
    let mut tries = 0;
    while !news.is_closed() {
        let begun = Instant::now();
        // The definitions are missing, which come with the component `datasets`, or the rights, which come with `jobs`.
        follow_part(&client, part, kinds, &news).await;
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
