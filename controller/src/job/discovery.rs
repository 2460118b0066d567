//! Follows training jobs and what they depend on, where they are installed: their definitions, and the controller's rights to
//! them. They may come at any time; a cluster without them is asked now and then, and nothing is logged.

use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;

use crate::kinds::{Kind, Part};
use crate::watch::{News, follow_part};

/// How long until they are looked for again.
const PAUSE: Duration = Duration::from_secs(60);

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
    while !news.is_closed() {
        // Either the definitions or the rights are missing: both come with the component `jobs`.
        follow_part(&client, part, kinds, &news).await;
        if news.send(News::Absent(part)).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
