use std::time::Duration;

use futures::poll;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

const ROUND_TRIP: Duration = Duration::from_millis(40);

/// Begins requests of a caller that hold one permit each for a round trip. Returns how long each took.
fn requests(semaphore: &Arc<FairSemaphore>, thread: u32, count: usize) -> JoinSet<Duration> {
    let request = |_| {
        let semaphore = Arc::clone(semaphore);
        Caller::new(1, thread).run(async move {
            let started = Instant::now();
            let _permit = semaphore.acquire(1).await;
            tokio::time::sleep(ROUND_TRIP).await;
            started.elapsed()
        })
    };
    (0..count).map(request).collect()
}

async fn slowest(requests: JoinSet<Duration>) -> Duration {
    requests.join_all().await.into_iter().max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_flood_makes_the_requests_of_another_caller_wait_for_one_round_trip() {
    let semaphore = FairSemaphore::new(64);
    let alone = slowest(requests(&semaphore, 2, 10)).await;
    let flood = requests(&semaphore, 1, 1_000);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let beside = slowest(requests(&semaphore, 2, 10)).await;
    assert!(beside <= 3 * alone, "{beside:?}, and {alone:?} alone");
    let flooded = slowest(flood).await;
    // 16 rounds of 64 requests: the turns leave no permit unused.
    assert!(flooded <= 17 * (ROUND_TRIP + Duration::from_millis(2)), "{flooded:?}");
    assert_eq!(semaphore.available(), 64);
}

#[tokio::test(start_paused = true)]
async fn callers_that_all_want_more_than_there_is_get_as_much_each() {
    let semaphore = FairSemaphore::new(60);
    let started = Instant::now();
    let [first, second, third] =
        [(1, 900), (2, 300), (3, 300)].map(|(thread, count)| requests(&semaphore, thread, count));
    let rounds = |count: u32| count * (ROUND_TRIP + Duration::from_millis(2));
    // The first caller has one round alone; then each has 20 of the 60 permits.
    slowest(third).await;
    slowest(second).await;
    assert!(started.elapsed() <= rounds(17), "{:?}", started.elapsed());
    slowest(first).await;
    assert!(started.elapsed() <= rounds(27), "no permit was unused: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_request_for_many_is_not_passed_by_requests_for_few() {
    let semaphore = FairSemaphore::new(10);
    let first = semaphore.acquire(6).await;
    let mut many = Box::pin(Caller::new(1, 2).run(semaphore.acquire(8)));
    assert!(poll!(&mut many).is_pending());
    let mut few = Box::pin(Caller::new(1, 3).run(semaphore.acquire(1)));
    assert!(poll!(&mut few).is_pending(), "four are free, and another is first");
    assert!(semaphore.try_acquire(1).is_none());
    drop(first);
    let held = (many.await, few.await);
    assert_eq!(semaphore.available(), 1);
    drop(held);
    assert_eq!(semaphore.available(), 10);
}

#[tokio::test]
async fn a_cancelled_request_leaves_its_place_and_its_permits_to_the_others() {
    let semaphore = FairSemaphore::new(4);
    let held = semaphore.acquire(2).await;
    let mut many = Box::pin(semaphore.acquire(4));
    assert!(poll!(&mut many).is_pending());
    drop(many);
    // Nothing is given back meanwhile, so the next request must find that the first has left.
    let few = semaphore.acquire(1).await;
    let mut granted = Box::pin(semaphore.acquire(2));
    assert!(poll!(&mut granted).is_pending());
    drop(held);
    // It was granted and never received.
    drop(granted);
    drop(few);
    assert_eq!(semaphore.available(), 4);
    assert!(semaphore.lock().queue.is_empty());
}
