use std::path::Path;
use std::time::Duration;

use larder_cachenode::{Cause, Stats};
use serde_json::{Value, json};

use super::rules::Reason;
use super::*;

const GB: u64 = 1_000_000_000;

/// Puts the values of a patch into a document.
fn put(document: &mut Value, patch: &Value) {
    match (document, patch) {
        (Value::Object(document), Value::Object(patch)) => {
            for (name, value) in patch {
                put(document.entry(name.as_str()).or_insert(Value::Null), value);
            }
        }
        (document, patch) => *document = patch.clone(),
    }
}

fn with(mut document: Value, patch: Value) -> Value {
    put(&mut document, &patch);
    document
}

/// A complete pass of 240 s that began at `number` thousand seconds, in which readers waited for one cause.
fn pass(number: u64, waited: f64, cause: Cause) -> Value {
    let mut stalls: serde_json::Map<String, Value> =
        Cause::ALL.into_iter().map(|cause| (cause.name().to_owned(), json!(0.0))).collect();
    stalls.insert(cause.name().to_owned(), json!(waited));
    json!({
        "number": number, "started_unix_seconds": 1000 * number, "seconds": 240.0, "complete": true,
        "dataset_bytes": 160 * GB, "capacity_bytes": 100 * GB, "cached_bytes": if number > 1 { 100 * GB } else { 0 },
        "hit_ratio": 0.624, "promised_ratio": 0.625,
        "bytes": {"store": 100 * GB, "window": 0, "peer": 0, "origin": 60 * GB},
        "reads": 1_000_000, "read_errors": 0, "stall_seconds": waited, "stalls": stalls,
        "origin_errors": 0, "origin_retries": {"throttled": 0, "timeout": 0, "error": 0},
        "origin_p50_seconds": 0.02, "origin_p99_seconds": 0.1,
    })
}

fn stats(passes: &[Value], patch: Value) -> Stats {
    let stats = json!({
        "dataset": {
            "name": "imagenet", "origin": "s3://bucket/imagenet", "snapshot": "ab".repeat(32), "files": 1_200_000,
            "dirs": 1000, "blocks": 1_200_000, "bytes": 160 * GB, "packed": false, "manifest_bytes": 1,
        },
        "listing": {"unix_seconds": 1, "age_seconds": 259_200, "refresh_failed": null, "stale": null},
        "cache": {
            "policy": "nr", "capacity_bytes": 100 * GB, "wanted_bytes": 100 * GB, "used_bytes": 100 * GB,
            "blocks": 700_000, "degraded": null,
        },
        "warm": null,
        "process": {"pid": 1, "version": "1", "uptime_seconds": 1, "rss_bytes": 1, "socket": null},
        "metrics": {},
        "passes": passes,
    });
    serde_json::from_value(with(stats, patch)).unwrap()
}

fn dir() -> &'static Path {
    Path::new("/data/my set")
}

#[test]
fn each_cause_has_its_sentence_with_numbers_since_when_and_what_to_do() {
    let first = |waited, cause| pass(1, waited, cause);
    let third = |waited, cause| pass(3, waited, cause);
    let whole = json!({"cache": {"capacity_bytes": 160 * GB, "wanted_bytes": 160 * GB}});
    let cases: Vec<(Reason, Value, Value, &[&str])> = vec![
        (
            Reason::BoundElsewhere,
            third(0.96, Cause::Origin),
            json!({}),
            &["is not what the job waits for: in pass 3 its readers waited 1.0 s of 240 s (0.4 %)", "as promised"],
        ),
        (
            Reason::OriginThrottles,
            with(third(60.0, Cause::Throttled), json!({"origin_retries": {"throttled": 3}})),
            json!({}),
            &["readers waited 60 s of 240 s (25.0 %), for the origin to accept requests", "3 refusals", "request rate"],
        ),
        (
            Reason::OriginFails,
            with(
                third(60.0, Cause::OriginErrors),
                json!({"origin_retries": {"error": 4, "timeout": 1}, "origin_errors": 2}),
            ),
            json!({}),
            &["5 failed attempts, 2 of them final", "the server of s3://bucket/imagenet"],
        ),
        (
            Reason::OriginSlow,
            with(third(200.0, Cause::Origin), json!({"origin_p50_seconds": 0.8, "origin_p99_seconds": 0.9})),
            json!({}),
            &[
                "waits for a slow origin",
                "up to 800 ms in half of the cases and 900 ms in 99 %",
                "nothing is wrong in Larder",
            ],
        ),
        (
            // Slow beyond the histogram's last end.
            Reason::OriginSlow,
            with(third(200.0, Cause::Origin), json!({"origin_p50_seconds": 1.0, "origin_p99_seconds": null})),
            whole.clone(),
            &["more than 60 s in 99 %"],
        ),
        (
            Reason::OriginSlow,
            third(60.0, Cause::Origin),
            whole.clone(),
            &["`larder warm '/data/my set' --wait` fills the cache"],
        ),
        (
            Reason::OwnLimits,
            third(60.0, Cause::Limit),
            json!({}),
            &["a place under the limits of this process", "--memory-target"],
        ),
        (
            Reason::PeersSlow,
            third(60.0, Cause::Peer),
            json!({}),
            &["waits for other nodes", "`larder stats '/data/my set' --cluster`"],
        ),
        (
            Reason::PeersFail,
            with(third(60.0, Cause::Origin), json!({"peer_errors": 70_000})),
            json!({}),
            &["other nodes are bypassed: 70000 reads from them failed"],
        ),
        (
            Reason::DiskSlow,
            third(60.0, Cause::Disk),
            json!({"reads": {"store": {"count": 9, "seconds": 9.0, "p50_seconds": 0.001, "p99_seconds": 2.5}}}),
            &["waits for the disk of its cache", "99 % of its reads took up to 2.5 s", "--cache-dir"],
        ),
        (
            Reason::DiskSlow,
            with(third(60.0, Cause::Origin), json!({"hit_ratio": 0.3})),
            json!({"metrics": {"store_unwritten_total": 300_000}}),
            &[
                "too slow to keep what is fetched: 300000 fetched blocks were not written",
                "30.0 %",
                "instead of 62.5 %",
            ],
        ),
        (Reason::Threads, third(60.0, Cause::Kernel), json!({}), &["all threads of the mount are busy", "--threads"]),
        (Reason::Cpu, third(60.0, Cause::Cpu), json!({}), &["too little CPU", "more CPU"]),
        (
            Reason::CacheDegraded,
            third(60.0, Cause::Origin),
            json!({"cache": {"degraded": "disk full"}}),
            &["its cache admits nothing (disk full)", "make room"],
        ),
        (
            Reason::OldListing,
            third(0.0, Cause::Origin),
            json!({"listing": {"stale": "run `larder mount --refresh`"}, "metrics": {"fs_stale_total": 12}}),
            &["has a listing of 3 days ago, and 12 reads failed", "; run `larder mount --refresh`."],
        ),
        (
            Reason::NoAnswer,
            third(60.0, Cause::Origin),
            json!({"stalls": {
                "seconds": 90.0, "by_cause": {"origin": 90.0}, "reads_waiting": 2, "oldest_wait_seconds": 31.0,
            }}),
            &["2 reads wait now, the oldest for 31 s, mostly for the origin's answers", "the server of s3://bucket"],
        ),
        (
            Reason::ReadsFail,
            with(third(60.0, Cause::Origin), json!({"reads": 97, "read_errors": 3})),
            json!({}),
            &["answers reads with errors: 3 of 100 in pass 3", "the log of the process", "and at s3://bucket"],
        ),
        (
            Reason::OtherListing,
            third(60.0, Cause::Origin),
            json!({"listing": {"other_snapshots": "mount all with one listing"}}),
            &["other nodes share another listing", "; mount all with one listing."],
        ),
        (
            Reason::Evicts,
            with(third(60.0, Cause::Origin), json!({"hit_ratio": 0.01})),
            json!({"cache": {"policy": "lru"}}),
            &["its policy, lru, evicts what the next pass needs", "1.0 %", "instead of 62.5 %", "--policy nr"],
        ),
        (
            Reason::ShortOfRoom,
            third(60.0, Cause::Origin),
            json!({"cache": {"wanted_bytes": 160 * GB, "shortage": "free the disk."}}),
            &["its cache has 93.1 GiB of the 149.0 GiB it wants", "; free the disk."],
        ),
        (
            Reason::SmallReservation,
            third(60.0, Cause::Origin),
            json!({}),
            &[
                "93.1 GiB of its 149.0 GiB fit its cache",
                "62.4 % of the bytes asked for",
                "as promised",
                "--cache-size",
            ],
        ),
        (
            Reason::FirstPass,
            first(60.0, Cause::Origin),
            json!({}),
            &["is being read for the first time", "the next pass will hit about 62.5 %"],
        ),
    ];
    let mut seen = Vec::new();
    for (reason, pass, patch, words) in cases {
        let stats = stats(&[pass], patch);
        let verdict = judge(dir(), &stats);
        let sentence = verdict.sentence(dir());
        assert_eq!(verdict.reason, reason, "{sentence}");
        for word in words {
            assert!(sentence.contains(word), "{reason:?}: no {word} in {sentence}");
        }
        let has_since = !matches!(reason, Reason::OldListing | Reason::NoAnswer);
        assert_eq!(sentence.contains(", since 1970-01-01T00:"), has_since, "{sentence}");
        assert!(sentence.ends_with('.') && !sentence.contains(".."), "{sentence}");
        assert!(!sentence.contains('\n') && sentence.starts_with("/data/my set "), "{sentence}");
        seen.push(format!("{reason:?}"));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 19, "all reasons but NothingRead: {seen:?}");
}

#[test]
fn a_few_failures_explain_nothing() {
    let few = with(pass(3, 60.0, Cause::Origin), json!({"peer_errors": 7, "hit_ratio": 0.3}));
    let metrics = json!({"metrics": {"fs_peer_errors_total": 9_000_000, "store_unwritten_total": 1}});
    assert_eq!(judge(dir(), &stats(&[few], metrics)).reason, Reason::SmallReservation);
}

#[test]
fn reads_without_an_answer_wait_for_the_cause_of_the_running_pass_and_have_its_remedy() {
    let running = |complete: bool| with(pass(2, 60.0, Cause::Disk), json!({"complete": complete}));
    let stalls = json!({"stalls": {
        "seconds": 999.0, "by_cause": {"cpu": 900.0, "disk": 60.0}, "reads_waiting": 1, "oldest_wait_seconds": 31.0,
    }});
    for (complete, words) in [
        (
            false,
            "1 read waits now, the oldest for 31 s, mostly for the cache's disk; look for other programs on that disk",
        ),
        (true, "mostly for CPU; give its container more CPU"),
    ] {
        let verdict = judge(dir(), &stats(&[running(complete)], stalls.clone()));
        let sentence = verdict.sentence(dir());
        assert!(verdict.reason == Reason::NoAnswer && sentence.contains(words), "{sentence}");
    }
}

#[test]
fn a_far_origin_is_not_taken_for_a_slow_one() {
    let far = with(pass(1, 200.0, Cause::Origin), json!({"origin_p50_seconds": 0.25}));
    let slow = with(pass(1, 200.0, Cause::Origin), json!({"origin_p50_seconds": 1.0}));
    let reason = |pass| judge(dir(), &stats(std::slice::from_ref(&pass), json!({}))).reason;
    assert!(reason(far) != Reason::OriginSlow && reason(slow) == Reason::OriginSlow);
}

#[test]
fn a_mount_that_nobody_reads_is_judged_too() {
    let quiet = with(pass(1, 0.0, Cause::Origin), json!({"complete": false, "bytes": {"store": 0, "origin": 0}}));
    for passes in [&[][..], std::slice::from_ref(&quiet)] {
        let verdict = judge(dir(), &stats(passes, json!({})));
        assert_eq!((verdict.reason, verdict.since_unix_seconds), (Reason::NothingRead, None));
        assert!(verdict.sentence(dir()).contains("page cache"), "{verdict:?}");
    }
    // Reads that all fail bring no bytes.
    let failing = with(quiet, json!({"number": 2, "reads": 0, "read_errors": 40}));
    for passes in [&[failing.clone()][..], &[pass(1, 0.0, Cause::Origin), failing]] {
        let verdict = judge(dir(), &stats(passes, json!({})));
        assert_eq!(verdict.reason, Reason::ReadsFail);
        assert!(verdict.sentence(dir()).contains("answers reads with errors: 40 of 40 in pass 2"), "{verdict:?}");
    }
}

#[test]
fn it_is_so_since_the_first_of_the_passes_in_a_row_of_which_it_is_true() {
    let slow = |number| with(pass(number, 200.0, Cause::Origin), json!({"origin_p50_seconds": 0.9}));
    let fast = |number| pass(number, 20.0, Cause::Origin);
    for (passes, since) in [
        (vec![slow(1), fast(2), slow(3), slow(4)], 3000),
        (vec![slow(1), slow(2)], 1000),
        (vec![fast(1), fast(2), slow(3)], 3000),
    ] {
        let verdict = judge(dir(), &stats(&passes, json!({})));
        assert_eq!((verdict.reason, verdict.since_unix_seconds), (Reason::OriginSlow, Some(since)));
    }
    // Earlier passes in which readers waited for something else do not count.
    let passes = [pass(2, 60.0, Cause::Disk), pass(3, 60.0, Cause::Cpu)];
    assert_eq!(judge(dir(), &stats(&passes, json!({}))).since_unix_seconds, Some(3000));
}

#[test]
fn a_running_pass_counts_once_it_has_begun_in_earnest() {
    let begun = |bytes: u64, waited: f64| {
        let running = json!({"complete": false, "bytes": {"store": bytes, "origin": 0}});
        stats(&[pass(1, 0.0, Cause::Origin), with(pass(2, waited, Cause::Disk), running)], json!({}))
    };
    for (bytes, waited, decides) in [(GB, 1.0, 0), (GB, 6.0, 1), (30 * GB, 0.0, 1)] {
        assert_eq!(decisive(&begun(bytes, waited).passes), Some(decides), "{bytes} {waited}");
    }
    assert_eq!(decisive(&[]), None);
    let first = with(pass(1, 0.1, Cause::Origin), json!({"complete": false, "bytes": {"store": 0, "origin": 1}}));
    assert_eq!(decisive(&stats(&[first], json!({})).passes), Some(0), "before there is another one");
}

#[test]
fn the_facts_show_passes_waits_and_the_use_of_accelerators() {
    let stats = stats(
        &[pass(1, 100.0, Cause::Origin), pass(2, 11.0, Cause::Disk)],
        json!({
            "reads": {"origin": {"count": 5, "seconds": 2.0, "p50_seconds": 0.5, "p99_seconds": null}},
            "stalls": {"seconds": 111.0, "by_cause": {}, "reads_waiting": 3, "oldest_wait_seconds": 31.5},
        }),
    );
    // 4,800 batches of 25 ms are 120 of the 240 s.
    let batches = Batches { files: 250, compute: Duration::from_millis(25) };
    assert!((utilisation(&stats, &stats.passes[1], batches) - 0.5).abs() < 1e-9);
    let facts = facts(&stats, Some(batches));
    let lines: Vec<String> = facts.iter().map(|(name, fact)| format!("{name} {fact}")).collect();
    for line in [
        "pass 1: hit 62.4 %, promised 62.5 %; waited 100 s of 240 s; since 1970-01-01T00:16:40Z",
        "waited 11 s for the cache's disk",
        "compute accelerators were used for 50.0 % of pass 2",
        "waiting 3 reads now, the oldest for 32 s",
        "reads 5 from the origin: half within 500 ms, 99 % within > 60 s",
    ] {
        assert!(lines.iter().any(|have| have == line), "no {line} in {lines:#?}");
    }
}

#[test]
fn stats_of_an_older_process_have_a_sentence() {
    let mut old = serde_json::to_value(stats(&[], json!({}))).unwrap();
    for field in ["passes", "stalls", "reads", "origin_answers", "origin_retries"] {
        old.as_object_mut().unwrap().remove(field);
    }
    let old: Stats = serde_json::from_value(old).unwrap();
    assert_eq!(judge(dir(), &old).reason, Reason::NothingRead);
    assert!(!facts(&old, None).is_empty());
}
