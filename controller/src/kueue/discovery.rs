//! Detects whether the cluster has Kueue, and follows its objects while it does. Kueue may be installed and removed at
//! any time. A cluster without it is polled for its API groups, and nothing is logged.

use std::time::Duration;

use larder_kube::{Client, Error};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::watch::{News, follow, follow_part};
use larder_kube::kinds::{KUEUE_GROUP, Kind, KueueKind, KueueVersion, Part};
use larder_kube::watch::{End, Turns};

/// The interval between two polls for Kueue.
const PAUSE: Duration = Duration::from_secs(60);

/// Sends events about Kueue's objects until the receiver is closed.
pub async fn follow_kueue(client: Client, turns: Turns, news: mpsc::Sender<News>) {
    // Logged once, not in every poll.
    let mut reported = None;
    while !news.is_closed() {
        match discover(&client).await {
            Ok(Some(version)) => {
                info!(version = version.as_str(), "jobs in Kueue's queues can wait for data");
                let kinds = KueueKind::ALL.into_iter().filter(|kind| *kind != KueueKind::MultiKueueConfig);
                let kinds: Vec<Kind> = kinds.map(|kind| Kind::Kueue(kind, version)).collect();
                let end = tokio::select! {
                    end = follow_part(&client, Part::Kueue, &kinds, &turns, &news) => end,
                    end = follow_configs(&client, version, &turns, &news) => end,
                };
                if end == End::Forbidden && reported != Some(End::Forbidden) {
                    warn!(
                        "the controller may not read Kueue's objects, so no job waits for data or Kueue's quota: apply its \
                         ClusterRole again"
                    );
                }
                reported = Some(end);
            }
            Ok(None) => {}
            Err(error) => {
                warn!(%error, "cannot list the API groups; retrying");
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

/// Sends events about MultiKueueConfigs until the receiver is closed. Only jobs that MultiKueue moves need them: where
/// they are not served, or may not be read, there are none.
async fn follow_configs(client: &Client, version: KueueVersion, turns: &Turns, news: &mpsc::Sender<News>) -> End {
    let kind = Kind::Kueue(KueueKind::MultiKueueConfig, version);
    let mut is_reported = false;
    loop {
        let end = follow(client.clone(), kind, String::new(), turns.clone(), news.clone()).await;
        if end == End::Closed || news.send(News::All(kind, Vec::new(), Vec::new())).await.is_err() {
            return End::Closed;
        }
        if end == End::Forbidden && !std::mem::replace(&mut is_reported, true) {
            warn!(
                "the controller may not read MultiKueueConfigs, so it nominates no clusters for MultiKueue: apply its \
                 ClusterRole again"
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn discover(client: &Client) -> Result<Option<KueueVersion>, Error> {
    let groups = client.list_api_groups().await?.groups;
    let served = groups.into_iter().filter(|group| group.name == KUEUE_GROUP).flat_map(|group| group.versions);
    let served: Vec<String> = served.map(|version| version.version).collect();
    Ok(preferred(&served))
}

/// The version to use of those that are served.
fn preferred(served: &[String]) -> Option<KueueVersion> {
    KueueVersion::ALL.into_iter().find(|version| served.iter().any(|served| served == version.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_known_version_is_used_in_whatever_order_they_are_served() {
        let preferred = |served: &[&str]| {
            let served: Vec<String> = served.iter().map(|version| (*version).to_owned()).collect();
            super::preferred(&served).map(KueueVersion::as_str)
        };
        assert_eq!(preferred(&["v1beta1"]), Some("v1beta1"), "Kueue 0.14");
        assert_eq!(preferred(&["v1beta1", "v1beta2"]), Some("v1beta2"), "Kueue 0.15 to 0.19");
        assert_eq!(preferred(&["v1beta2"]), Some("v1beta2"), "Kueue 0.20");
        assert_eq!(preferred(&["v1", "v1beta2"]), Some("v1beta2"));
        assert_eq!(preferred(&["v1"]), None);
    }
}
