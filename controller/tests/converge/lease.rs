//! The leader ends before another controller may act.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use larder_controller::Config;
use larder_controller::admin::{Counters, Status};
use larder_controller::control::act;
use larder_kube::Api;
use larder_kube::api::{ListParams, ObjectMeta, PostParams};
use larder_kube::kinds::Kind;
use larder_kube::lease::Election;
use larder_telemetry::admin::Admin;
use larder_testkit::fake_api::Mode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{client, new_api};
use super::jobs::elsewhere::Others;

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_ends_before_its_lease_does() {
    // At any time the API server may stop answering, also just before or in the middle of a renewal.
    for silent_after in [0, 4999, 5001, 7000, 9999] {
        let api = new_api();
        let election = |name: &str| Election::new(client(&api), "larder-system", "larder-controller", name);
        let since = election("first").win(|| {}).await;
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
    let since = first.win(|| {}).await;
    let held = tokio::time::timeout(Duration::from_secs(3600), first.hold(since, CancellationToken::new())).await;
    assert!(held.is_err(), "it holds it still");
}

/// Whether a client may create a ConfigMap with this name.
async fn creates(maps: &Api<ConfigMap>, name: &str) -> bool {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await.is_ok()
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_paused_for_too_long_writes_nothing_more() {
    let api = new_api();
    let first = Election::new(client(&api), "larder-system", "larder-controller", "first");
    let maps: Api<ConfigMap> = Api::namespaced(first.guard(client(&api)), "larder-system");
    assert!(!creates(&maps, "before").await, "it has not won the lease");
    let since = first.win(|| {}).await;
    assert!(creates(&maps, "won").await);
    let holds = tokio::spawn({
        let first = first.clone();
        async move { first.hold(since, CancellationToken::new()).await }
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(creates(&maps, "renewed").await);

    // Nothing of the process runs meanwhile, so nothing has noticed yet.
    holds.abort();
    tokio::time::advance(Duration::from_secs(20)).await;
    assert!(!creates(&maps, "paused").await);
    let found = maps.list(&ListParams::default()).await.unwrap();
    let found: Vec<String> = found.items.into_iter().filter_map(|map| map.metadata.name).collect();
    assert_eq!(found, ["renewed", "won"]);
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_writes_nothing_more_before_it_releases_the_lease() {
    let api = new_api();
    let first = Election::new(client(&api), "larder-system", "larder-controller", "first");
    let maps: Api<ConfigMap> = Api::namespaced(first.guard(client(&api)), "larder-system");
    let since = first.win(|| {}).await;
    let stop = CancellationToken::new();
    stop.cancel();
    // The release is under way: it may take effect at any time.
    api.hold_leases();
    let mut holds = pin!(first.hold(since, stop));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut holds).await.is_err(), "it waits for an answer");
    assert!(!creates(&maps, "during").await);
    holds.await.unwrap();
    assert!(!creates(&maps, "after").await);
    assert_eq!(api.writes(), [""; 0]);
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_leader_that_finds_its_lease_taken_writes_nothing_more() {
    let api = new_api();
    let first = Election::new(client(&api), "larder-system", "larder-controller", "first");
    let maps: Api<ConfigMap> = Api::namespaced(first.guard(client(&api)), "larder-system");
    let since = first.win(|| {}).await;
    api.change("leases", "larder-system", "larder-controller", |lease| {
        lease["spec"]["holderIdentity"] = "second".into();
    });
    first.hold(since, CancellationToken::new()).await.unwrap_err();
    assert!(!creates(&maps, "after").await);
    assert_eq!(api.writes(), [""; 0]);
}

// SEMANTICS: P7
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_the_lease_beats_whether_the_api_answers_or_not() {
    let api = new_api();
    let election = |name: &str| Election::new(client(&api), "larder-system", "larder-controller", name);
    let since = election("first").win(|| {}).await;
    let first = election("first");
    tokio::spawn(async move { first.hold(since, CancellationToken::new()).await });
    for is_silent in [false, true] {
        if is_silent {
            api.hold_leases();
        }
        let beats = AtomicU64::new(0);
        let second = election("second");
        let win = second.win(|| {
            beats.fetch_add(1, Ordering::Relaxed);
        });
        assert!(tokio::time::timeout(Duration::from_secs(60), win).await.is_err(), "the first one has it");
        let beats = beats.into_inner();
        assert!(beats >= 60 / 5, "silent: {is_silent}: {beats} beats");
    }
}

// SEMANTICS: P7
#[tokio::test(start_paused = true)]
async fn the_loop_that_acts_beats_while_the_api_is_silent_and_not_once_it_hangs() {
    let api = new_api();
    api.turn(&Kind::WATCHED.map(Kind::plural), Mode::Hangs(Duration::from_secs(60)));
    let config = Config {
        image: "larder".to_owned(),
        namespace: "larder-system".to_owned(),
        identity: "first".to_owned(),
        max_warming: 1,
        wait_for_nodes: None,
        keep_ended_jobs: None,
        node_lost_after: Duration::from_secs(60),
        admin_address: None,
    };
    let (others, counters) = (Arc::new(Others::default()), Arc::new(Counters::default()));
    let acts = act(client(&api), others, config, Arc::clone(&counters), CancellationToken::new());
    let acts = tokio::spawn(acts);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let status = Status(counters);
    assert_eq!(status.healthy(), Ok(()));
    acts.abort();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(status.healthy().unwrap_err().starts_with("the loop that waits for the Lease stopped"));
    status.0.leading.store(true, Ordering::Relaxed);
    assert!(status.healthy().unwrap_err().starts_with("the loop that acts stopped"));
}
