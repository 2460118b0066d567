use bytes::Bytes;
use larder_dataset::BlockIndex;
use tokio::sync::mpsc;

use super::super::outcome::Tier;
use super::super::subscribers::PIECE_BYTES;
use super::*;

const LEN: usize = 1_000_000;

fn start() -> (InFlight, PendingBlock, Bytes) {
    let block = BlockIndex(1);
    let part = BlockPart { block, block_len: LEN as u32, start: 0, len: LEN as u32, file_offset: 0 };
    let end = End::by(Instant::now());
    let (in_flight, pending) = InFlight::start(FileIndex(0), part, false, end, watch::channel(()).1);
    (in_flight, pending, (0..LEN).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect())
}

fn next(pieces: &mut Pieces) -> Bytes {
    pieces.try_recv().unwrap().unwrap()
}

#[test]
fn a_subscriber_gets_its_part_piece_by_piece_whenever_it_joined() {
    let (in_flight, pending, block) = start();
    let mut whole = in_flight.subscribe(0..LEN);
    let mut part = in_flight.subscribe(100..400_000);
    pending.arrived(&block[..PIECE_BYTES - 1]);
    assert!(whole.try_recv().is_err(), "less than a piece is not sent");
    pending.arrived(&block[..300_000]);
    assert_eq!((next(&mut whole), next(&mut part)), (block.slice(..300_000), block.slice(100..300_000)));
    let mut late = in_flight.subscribe(0..LEN);
    pending.arrived(&block[..600_000]);
    assert_eq!((next(&mut whole), next(&mut late)), (block.slice(300_000..600_000), block.slice(..600_000)));
    assert!(part.try_recv().is_err(), "its end is not sent before the block was checked");
    assert_eq!(pending.waiters(), 3);
    pending.complete(Outcome::Fetched(block.clone(), Tier::Origin));
    assert_eq!((next(&mut whole), next(&mut late)), (block.slice(600_000..), block.slice(600_000..)));
    assert_eq!(next(&mut part), block.slice(300_000..400_000));
    assert_eq!(next(&mut in_flight.subscribe(5..LEN)), block.slice(5..), "the block is complete");
    for mut pieces in [whole, part, late] {
        assert_eq!(pieces.try_recv().err(), Some(mpsc::error::TryRecvError::Disconnected));
    }
}

// SEMANTICS: S1
#[test]
fn a_subscriber_with_wrong_bytes_does_not_get_the_rest_of_a_retry() {
    let (in_flight, pending, block) = start();
    let (mut some, mut none) = (in_flight.subscribe(0..LEN), in_flight.subscribe(900_000..LEN));
    let wrong = vec![0; LEN];
    pending.arrived(&wrong[..600_000]);
    pending.restart();
    assert!(some.try_recv().unwrap().is_ok());
    assert!(matches!(some.try_recv().unwrap(), Err(FetchError::Corrupt { .. })));
    assert!(some.try_recv().is_err());
    pending.arrived(&block[..300_000]);
    pending.complete(Outcome::Fetched(block.clone(), Tier::Origin));
    assert_eq!(next(&mut none), block.slice(900_000..));
}

#[test]
fn every_waiter_learns_of_the_end_however_it_comes() {
    let (in_flight, pending, _) = start();
    let mut pieces = in_flight.subscribe(0..LEN);
    drop(pending);
    assert!(matches!(pieces.try_recv().unwrap(), Err(FetchError::Stopped)));
    assert!(matches!(in_flight.subscribe(0..LEN).try_recv().unwrap(), Err(FetchError::Stopped)));
    assert!(matches!(*in_flight.outcome.borrow(), Some(Outcome::Failed(FetchError::Stopped))));

    let (in_flight, pending, _) = start();
    let mut pieces = in_flight.subscribe(0..LEN);
    pending.complete(Outcome::Skipped);
    assert_eq!(pieces.try_recv().err(), Some(mpsc::error::TryRecvError::Disconnected), "closed without an error");
}

#[test]
fn subscribers_that_left_are_forgotten() {
    let (in_flight, pending, block) = start();
    drop(in_flight.subscribe(0..LEN));
    assert_eq!(pending.waiters(), 1);
    pending.arrived(&block[..600_000]);
    assert_eq!(pending.waiters(), 0);
}
