//! Follows training jobs and what they depend on, where they are installed: their definitions, and the controller's rights to
//! them. They may come at any time; a cluster without them is asked now and then, and nothing is logged.

use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;

use crate::kinds::{Kind, Part};
use crate::watch::{News, follow_part};

/// How long until they are looked for again.
const PAUSE: Duration = Duration::from_secs(60);

/// Sends what happens to the objects of training jobs until the receiver is gone.
pub async fn follow_jobs(client: Client, news: mpsc::Sender<News>) {
    while !news.is_closed() {
        // Either the definitions or the rights are missing: both come with the component `jobs`.
        follow_part(&client, Part::Jobs, &Kind::OF_JOBS, &news).await;
        if news.send(News::Absent(Part::Jobs)).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
