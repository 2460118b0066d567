//! The leader ends before another controller may act.

use std::time::Duration;

use larder_kube::lease::Election;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{client, new_api};

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_ends_before_its_lease_does() {
    // At any time the API server may stop answering, also just before or in the middle of a renewal.
    for silent_after in [0, 4999, 5001, 7000, 9999] {
        let api = new_api();
        let election = |name: &str| Election::new(client(&api), "larder-system", "larder-controller", name);
        let since = election("first").win().await;
        let holder = tokio::spawn({
            let first = election("first");
            async move {
                let lost = first.hold(since, CancellationToken::new()).await;
                (lost.is_err(), Instant::now())
            }
        });
        tokio::time::sleep(Duration::from_millis(silent_after)).await;
        let renewed = Instant::now();
        api.hold_leases();
        let ended = tokio::time::timeout(Duration::from_secs(60), holder).await;
        let (is_lost, at) = ended.unwrap().unwrap();
        assert!(is_lost);
        // Another controller acts at the earliest 15 s after it saw the last renewal, which may be the renewal that got
        // no answer.
        let acts = at.duration_since(renewed);
        assert!(acts <= Duration::from_secs(10), "silent after {silent_after} ms: it acted for {acts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_answered_goes_on() {
    let api = new_api();
    let first = Election::new(client(&api), "larder-system", "larder-controller", "first");
    let since = first.win().await;
    let held = tokio::time::timeout(Duration::from_secs(3600), first.hold(since, CancellationToken::new())).await;
    assert!(held.is_err(), "it holds it still");
}
