//! Imports of very many objects, listed by a server that simulates them: memory, time, and the effects of an
//! inconsistent listing.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_dataset::{FileIndex, Manifest};
use larder_import::{ImportError, ImportOptions, Imported, Silent, count, import};
use larder_origin::{Origin, OriginConfig};
use larder_s3_server::{ListingConfig, ListingFault, ListingServer, MadeUpKeys};

async fn server(count: u64, page_time: Duration, fault: ListingFault) -> (ListingServer, Arc<dyn Origin>) {
    let keys = MadeUpKeys { count, per_folder: 1300 };
    let server = ListingServer::start(ListingConfig { keys, page_time, fault }).await.unwrap();
    let config = OriginConfig { env: server.env().into_iter().collect(), ..OriginConfig::default() };
    let origin = larder_origin::open(&"s3://made-up".parse().unwrap(), &config).unwrap();
    (server, origin)
}

async fn run(origin: &Arc<dyn Origin>, dir: &Path) -> Result<Imported, ImportError> {
    import(Arc::clone(origin), ImportOptions::new("made-up", dir), &Silent).await
}

/// The peak of this process's resident memory, in bytes.
fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

// SEMANTICS: I5
#[tokio::test(flavor = "multi_thread")]
async fn an_import_of_many_keys_lists_in_parallel_and_stays_within_its_memory() {
    const KEYS: u64 = 1_000_000;
    let before = peak_rss();
    let (server, origin) = server(KEYS, Duration::from_millis(20), ListingFault::None).await;
    let dir = tempfile::tempdir().unwrap();
    let options = ImportOptions { sort_bytes: 1 << 20, ..ImportOptions::new("made-up", dir.path()) };
    let imported = import(origin, options, &Silent).await.unwrap();
    assert_eq!(u64::from(imported.manifest.totals().files), KEYS);
    assert_eq!(imported.keys, KEYS);
    assert!(server.most_at_once() >= 12, "{} calls at once", server.most_at_once());
    assert!(server.lists() <= 1300, "{} calls", server.lists());
    assert!(imported.spilled_bytes > 20 << 20, "{} bytes were sorted on the disk", imported.spilled_bytes);
    // Kept in memory, the listing would take 200 MB.
    let grown = (peak_rss() - before) >> 20;
    assert!(grown < 80, "{grown} MiB");
}

// SEMANTICS: I7
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_breaks_the_rules_is_an_error_that_says_so_and_makes_no_manifest() {
    for (fault, says) in [
        (ListingFault::OutOfOrder, "the listing has keys out of order"),
        (ListingFault::Twice, "the listing has a key twice"),
        (ListingFault::LoopingToken, "the listing makes no progress"),
        (ListingFault::Changing, "changed at the origin while it was being listed"),
    ] {
        let (_server, origin) = server(100_000, Duration::ZERO, fault).await;
        let dir = tempfile::tempdir().unwrap();
        let error = run(&origin, dir.path()).await.map(|_| ()).expect_err(says);
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        assert!(text.contains(says), "{fault:?}: {text}");
        let left = std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_none_or(|extension| extension != "journal"));
        assert_eq!(left.count(), 0, "{fault:?}");
    }
}

// SEMANTICS: O8
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_stops_no_import() {
    let (server, origin) = server(10_000, Duration::ZERO, ListingFault::ClockAhead(5 * 3600)).await;
    let dir = tempfile::tempdir().unwrap();
    let imported = run(&origin, dir.path()).await.unwrap();
    assert_eq!(imported.manifest.totals().files, 10_000);
    assert_eq!(server.lists(), imported.list_requests + 1, "one request was refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_is_only_counted_is_as_complete_and_an_import_sees_what_was_replaced_since() {
    let (server, origin) = server(50_000, Duration::ZERO, ListingFault::None).await;
    let counted = count(Arc::clone(&origin), 16).await.unwrap();
    assert_eq!((counted.keys, counted.list_requests), (50_000, server.lists()));
    let dir = tempfile::tempdir().unwrap();
    let versions = |imported: &Imported| {
        let manifest = Manifest::open(imported.manifest.read().unwrap()).unwrap();
        let version = |n| format!("{:?}", manifest.version(&manifest.file(FileIndex(n)).unwrap()).unwrap());
        (0..50_000).map(version).collect::<Vec<_>>()
    };
    let first = versions(&run(&origin, dir.path()).await.unwrap());
    server.replace_one_of(100);
    let second = versions(&run(&origin, dir.path()).await.unwrap());
    assert_eq!(first.iter().zip(&second).filter(|(first, second)| first != second).count(), 500);
    server.replace_one_of(0);
    assert_eq!(versions(&run(&origin, dir.path()).await.unwrap()), first);
}

/// With `KEYS=100000000 DIR=/disk`, prints the time and memory that an import of that many keys takes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: run with --ignored --nocapture"]
async fn what_an_import_takes() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let page_time = Duration::from_millis(number("PAGE_MS", 20));
    let (server, origin) = server(number("KEYS", 2_000_000), page_time, ListingFault::None).await;
    let dir = tempfile::tempdir_in(std::env::var("DIR").unwrap_or_else(|_| "/tmp".into())).unwrap();
    let concurrency = number("CALLS", 16) as usize;
    let options = ImportOptions { concurrency, ..ImportOptions::new("made-up", dir.path()) };
    let start = Instant::now();
    let imported = import(origin, options, &Silent).await.unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} files in {seconds:.1} s, {} LIST calls, at most {} at once, manifest {} bytes, peak {} MiB with the server",
        imported.manifest.totals().files,
        imported.list_requests,
        server.most_at_once(),
        imported.manifest.len_bytes(),
        peak_rss() >> 20
    );
    if let Ok(keep) = std::env::var("KEEP") {
        imported.manifest.write(Path::new(&keep)).unwrap();
    }
}
