//! Readers that join a fetch which began long before them.

use super::*;

const READ_DEADLINE: Duration = FetchConfig::DEFAULT.read_deadline;

/// How long before the end of the first reader's time the second one comes.
const LATE: Duration = Duration::from_secs(2);

/// The outcome of a read of the file, and its time.
async fn read(world: Arc<World>) -> (Result<Bytes, FetchError>, Duration) {
    let begun = Instant::now();
    let read = world.fetcher.fetch(FileIndex(0), world.part(0, 0, 1_000), world.fetcher.deadline()).await;
    (read.map(|fetched| fetched.bytes), begun.elapsed())
}

/// The outcomes of a reader and of one that joins its fetch late. The origin answers nothing before `held`.
async fn an_early_and_a_late_read(world: &Arc<World>, held: Duration) -> [(Result<Bytes, FetchError>, Duration); 2] {
    world.origin.hold_until(Instant::now() + held);
    let early = tokio::spawn(read(Arc::clone(world)));
    tokio::time::sleep(READ_DEADLINE - LATE).await;
    let late = tokio::spawn(read(Arc::clone(world)));
    [early.await.unwrap(), late.await.unwrap()]
}

fn assert_about(took: Duration, expected: Duration) {
    assert!((expected..expected + Duration::from_millis(100)).contains(&took), "{took:?}, not {expected:?}");
}

// SEMANTICS: O1
#[tokio::test(start_paused = true)]
async fn a_reader_that_joins_a_fetch_late_gets_what_the_origin_sends_within_its_own_deadline() {
    let world = Arc::new(world(&[1_000], 64 << 20));
    let a_second = Duration::from_secs(1);
    let [early, late] = an_early_and_a_late_read(&world, READ_DEADLINE + a_second).await;
    assert!(matches!(early.0, Err(FetchError::TimedOut { .. })), "{:?}", early.0);
    assert_about(early.1, READ_DEADLINE);
    assert_eq!(late.0.unwrap().len(), 1_000);
    assert_about(late.1, LATE + a_second);
    assert_eq!(world.origin.take().len(), 2);
}

// SEMANTICS: O1
#[tokio::test(start_paused = true)]
async fn a_reader_that_joins_a_fetch_late_fails_at_its_own_deadline() {
    let world = Arc::new(world(&[1_000], 64 << 20));
    let [early, late] = an_early_and_a_late_read(&world, READ_DEADLINE * 10).await;
    for (outcome, took) in [early, late] {
        assert!(matches!(outcome, Err(FetchError::TimedOut { .. })), "{outcome:?}");
        assert_about(took, READ_DEADLINE);
    }
    assert_eq!(world.origin.take().len(), 2);
}

/// The kernel splits a large read into pieces, which come at about the same time.
// SEMANTICS: O1
#[tokio::test(start_paused = true)]
async fn pieces_of_one_read_fail_with_their_fetch_and_start_no_other() {
    let world = Arc::new(world(&[1_000], 64 << 20));
    world.origin.hold_until(Instant::now() + READ_DEADLINE * 10);
    let first = tokio::spawn(read(Arc::clone(&world)));
    let later = Duration::from_millis(500);
    tokio::time::sleep(later).await;
    let second = tokio::spawn(read(Arc::clone(&world)));
    for (read, expected) in [(first, READ_DEADLINE), (second, READ_DEADLINE - later)] {
        let (outcome, took) = read.await.unwrap();
        assert!(matches!(outcome, Err(FetchError::TimedOut { .. })), "{outcome:?}");
        assert_about(took, expected);
    }
    assert_eq!(world.origin.take().len(), 1);
}
