//! Finds out whether this cluster has Kueue, and follows its objects while it does. Kueue may be installed and removed
//! at any time; a cluster without it is asked for its API groups now and then, and nothing is logged.

use std::time::Duration;

use larder_kube::{Client, Error};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::watch::{News, follow_part};
use larder_kube::kinds::{KUEUE_GROUP, Kind, KueueKind, KueueVersion, Part};
use larder_kube::watch::End;

/// How long until Kueue is looked for again.
const PAUSE: Duration = Duration::from_secs(60);

/// Sends what happens to Kueue's objects until the receiver is gone.
pub async fn follow_kueue(client: Client, news: mpsc::Sender<News>) {
    // Told once: that there is none is not news each minute.
    let mut told = None;
    while !news.is_closed() {
        match discover(&client).await {
            Ok(Some(version)) => {
                info!(version = version.as_str(), "jobs in Kueue's queues can wait for data");
                let kinds = KueueKind::ALL.map(|kind| Kind::Kueue(kind, version));
                let end = follow_part(&client, Part::Kueue, &kinds, &news).await;
                if end == End::Forbidden && told != Some(End::Forbidden) {
                    warn!(
                        "the controller may not read Kueue's objects, so no job waits for data or Kueue's quota: apply its \
                         ClusterRole again"
                    );
                }
                told = Some(end);
            }
            Ok(None) => {}
            Err(error) => {
                warn!(%error, "cannot ask for the API's groups; it is tried again");
                tokio::time::sleep(Duration::from_secs(5)).await;
                continue;
            }
        }
        if news.send(News::Absent(Part::Kueue)).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The version of Kueue's API to use.
async fn discover(client: &Client) -> Result<Option<KueueVersion>, Error> {
    let groups = client.list_api_groups().await?.groups;
    let served = groups.into_iter().filter(|group| group.name == KUEUE_GROUP).flat_map(|group| group.versions);
    let served: Vec<String> = served.map(|version| version.version).collect();
    Ok(KueueVersion::ALL.into_iter().find(|version| served.iter().any(|served| served == version.as_str())))
}
