use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures::poll;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

const ROUND_TRIP: Duration = Duration::from_millis(40);

/// An account with this limit, in a budget that has no other.
fn alone(kib: u64) -> Arc<Account> {
    Arc::new(Arc::<MemoryBudget>::default().account(0, kib))
}

fn budget(kib: u64) -> Arc<MemoryBudget> {
    Arc::new(MemoryBudget::new(kib << 10))
}

fn used(budget: &MemoryBudget) -> u64 {
    budget.lock().used_kib
}

/// Takes one KiB after another until there is no more.
fn fill(account: &Account) -> Vec<Permit> {
    std::iter::from_fn(|| account.try_acquire(1)).collect()
}

/// Begins requests of a caller that hold one KiB each for a round trip. Returns how long each took.
fn requests(account: &Arc<Account>, thread: u32, count: usize) -> JoinSet<Duration> {
    let request = |_| {
        let account = Arc::clone(account);
        Caller::new(1, thread).run(async move {
            let started = Instant::now();
            let _permit = account.acquire(1).await;
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
    let account = alone(64);
    let alone = slowest(requests(&account, 2, 10)).await;
    let flood = requests(&account, 1, 1_000);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let beside = slowest(requests(&account, 2, 10)).await;
    assert!(beside <= 3 * alone, "{beside:?}, and {alone:?} alone");
    let flooded = slowest(flood).await;
    // 16 rounds of 64 requests: the turns leave no memory unused.
    assert!(flooded <= 17 * (ROUND_TRIP + Duration::from_millis(2)), "{flooded:?}");
    assert_eq!(account.available(), 64);
}

#[tokio::test(start_paused = true)]
async fn callers_that_all_want_more_than_there_is_get_as_much_each() {
    let account = alone(60);
    let started = Instant::now();
    let [first, second, third] =
        [(1, 900), (2, 300), (3, 300)].map(|(thread, count)| requests(&account, thread, count));
    let rounds = |count: u32| count * (ROUND_TRIP + Duration::from_millis(2));
    // The first caller has one round alone; then each has 20 of the 60 KiB.
    slowest(third).await;
    slowest(second).await;
    assert!(started.elapsed() <= rounds(17), "{:?}", started.elapsed());
    slowest(first).await;
    assert!(started.elapsed() <= rounds(27), "no memory was unused: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_request_for_much_is_not_passed_by_requests_for_little() {
    let account = alone(10);
    let first = account.acquire(6).await;
    let mut much = Box::pin(Caller::new(1, 2).run(account.acquire(8)));
    assert!(poll!(&mut much).is_pending());
    let mut little = Box::pin(Caller::new(1, 3).run(account.acquire(1)));
    assert!(poll!(&mut little).is_pending(), "four are free, and another is first");
    assert!(account.try_acquire(1).is_none());
    drop(first);
    let held = (much.await, little.await);
    assert_eq!(account.available(), 1);
    drop(held);
    assert_eq!(account.available(), 10);
}

#[tokio::test]
async fn a_request_does_not_wait_for_one_that_has_left() {
    let account = alone(10);
    let _held = account.acquire(6).await;
    let mut much = Box::pin(account.acquire(8));
    assert!(poll!(&mut much).is_pending());
    let mut little = Box::pin(account.acquire(1));
    assert!(poll!(&mut little).is_pending());
    drop(much);
    assert!(poll!(&mut little).is_ready());
}

#[tokio::test]
async fn a_cancelled_request_leaves_its_place_and_its_memory_to_the_others() {
    let account = alone(4);
    let held = account.acquire(2).await;
    let mut much = Box::pin(account.acquire(4));
    assert!(poll!(&mut much).is_pending());
    drop(much);
    // Nothing is given back meanwhile, so the next request must find that the first has left.
    let little = account.acquire(1).await;
    let mut granted = Box::pin(account.acquire(2));
    assert!(poll!(&mut granted).is_pending());
    drop(held);
    // It was granted and never received.
    drop(granted);
    drop(little);
    assert_eq!(account.available(), 4);
    assert!(!account.budget.lock().books(account.number).waits());
}

// SEMANTICS: C14
#[test]
fn an_account_alone_gets_half_and_of_many_that_flood_each_gets_a_part_and_one_is_left() {
    let budget = budget(1_200);
    let open = || budget.account(8, 2_000);
    let first = open();
    let held = fill(&first);
    assert_eq!(held.len(), 600);
    let second = open();
    let half_of_the_rest = fill(&second);
    assert_eq!(half_of_the_rest.len(), 300);
    // Once the first has given back what it has too much, all are equal.
    drop((held, half_of_the_rest));
    let mut all = vec![first, second, open()];
    let mut held: Vec<Vec<Permit>> = all.iter().map(|_| Vec::new()).collect();
    for _ in 0..1_200 {
        for (account, held) in all.iter().zip(&mut held) {
            held.extend(account.try_acquire(1));
        }
    }
    assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [300, 300, 300]);
    assert_eq!(used(&budget), 900);
    all.clear();
    held.clear();
    assert_eq!(used(&budget), 0);
    assert!(budget.lock().accounts.is_empty(), "datasets that are closed leave nothing");
}

// SEMANTICS: C14
#[tokio::test]
async fn a_dataset_whose_origin_hangs_holds_no_more_than_half_and_others_get_their_least_and_a_part() {
    let budget = budget(1_000);
    let hung = budget.account(10, 2_000);
    let held = fill(&hung);
    assert_eq!(held.len(), 500);
    let mut waits = Box::pin(hung.acquire(1));
    assert!(poll!(&mut waits).is_pending());
    // However many others hang, too, each one that comes gets its least at once.
    let hanging: Vec<_> = (0..200).map(|_| budget.account(10, 2_000)).collect();
    let also_held: Vec<_> = hanging.iter().map(fill).collect();
    assert!(also_held.iter().all(|held| held.len() >= 10));
    assert!(used(&budget) <= 1_000 + 10 * 201, "{}", used(&budget));
    drop(also_held);
    // Nothing of the hung one was given back.
    let other = budget.account(10, 2_000);
    assert_eq!(fill(&other).len(), 250);
    assert!(poll!(&mut waits).is_pending());
    drop(held);
    drop(waits.await);
    assert_eq!(used(&budget), 0);
}

// SEMANTICS: C14
#[tokio::test(start_paused = true)]
async fn datasets_that_are_all_read_cold_hold_no_more_than_the_budget_and_their_least_and_all_end() {
    const DATASETS: u64 = 24;
    const BUDGET_KIB: u64 = 256 << 10;
    /// A block. One that a dataset holds alone is within its least, and two are not.
    const BLOCK_KIB: u32 = (4 << 10) + 1;
    let budget = budget(BUDGET_KIB);
    let mut reads = JoinSet::new();
    let most = Arc::new(AtomicU64::new(0));
    for _ in 0..DATASETS {
        let account = Arc::new(budget.account(8 << 10, BUDGET_KIB));
        for _ in 0..64 {
            let (account, budget, most) = (Arc::clone(&account), Arc::clone(&budget), Arc::clone(&most));
            reads.spawn(async move {
                let _memory = account.acquire(BLOCK_KIB).await;
                most.fetch_max(used(&budget), SeqCst);
                tokio::time::sleep(ROUND_TRIP).await;
            });
        }
    }
    reads.join_all().await;
    let most = most.load(SeqCst);
    assert!(most > BUDGET_KIB / 2, "the budget is used: {most} KiB");
    assert!(most <= BUDGET_KIB + DATASETS * u64::from(BLOCK_KIB), "{most} KiB");
    assert_eq!(used(&budget), 0);
}

#[tokio::test]
async fn a_request_larger_than_what_is_left_goes_when_its_dataset_holds_nothing() {
    let budget = budget(10);
    let [one, other] = [(); 2].map(|()| budget.account(4, 100));
    let held = one.acquire(100).await;
    let beside = other.acquire(50).await;
    assert!(one.try_acquire(1).is_none() && other.try_acquire(1).is_none());
    let mut waits = Box::pin(other.acquire(5));
    assert!(poll!(&mut waits).is_pending());
    drop(beside);
    drop(waits.await);
    drop(held);
    assert_eq!(used(&budget), 0);
}

#[tokio::test]
async fn memory_that_comes_back_goes_to_the_account_that_holds_the_least() {
    let budget = budget(100);
    let [large, small] = [(); 2].map(|()| budget.account(0, 1_000));
    let mut held = fill(&large);
    let few = fill(&small);
    assert_eq!((held.len(), few.len()), (50, 25));
    let mut first = Box::pin(large.acquire(1));
    let mut second = Box::pin(small.acquire(1));
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    held.truncate(48);
    let permit = second.await;
    assert!(poll!(&mut first).is_pending(), "it holds more than is left");
    drop((permit, few));
    drop(first.await);
}

// SEMANTICS: C9
#[test]
fn what_nobody_waits_for_leaves_half_of_what_an_account_may_hold() {
    let budget = budget(120);
    let (account, other) = (budget.account(10, 100), budget.account(0, 100));
    assert!(account.leaves_half(40) && !account.leaves_half(41), "it may hold as much as it leaves: twice 40 of 120");
    let _held = account.take(30);
    assert!(account.leaves_half(10) && !account.leaves_half(11));
    let _others = other.take(90);
    assert!(!account.leaves_half(0), "nothing is left");
    let least = budget.account(10, 100);
    assert!(least.leaves_half(5) && !least.leaves_half(6), "half of what it can always hold");
    assert!(alone(64).leaves_half(32) && !alone(64).leaves_half(33), "its own limit");
}
