use super::*;
use crate::memory::MemoryBudget;

const LEN: u32 = 30;

fn zeros(len: usize) -> Bytes {
    Bytes::from(vec![0; len])
}

fn part(block: u32, range: Range<u32>) -> BlockPart {
    let (start, len) = (range.start, range.end - range.start);
    BlockPart { block: BlockIndex(block), block_len: LEN, start, len, file_offset: 0 }
}

fn window(capacity_bytes: u64, stale: Duration) -> Arc<Window> {
    let memory = Arc::<MemoryBudget>::default().account(0, u64::MAX);
    Arc::new(Window { stale, ..Window::new(capacity_bytes, true, memory) })
}

#[test]
fn the_oldest_block_makes_room_for_one_without_a_reservation_and_nothing_is_counted_twice() {
    let window = window(100, STALE);
    for block in 0..3 {
        window.insert(BlockIndex(block), zeros(40));
    }
    assert_eq!(window.bytes(), 80);
    assert!(!window.contains(BlockIndex(0)) && window.contains(BlockIndex(2)));
    assert!(window.is_in_pieces(BlockIndex(0)), "what is left of it is read in pieces");
    window.insert(BlockIndex(2), zeros(60));
    assert_eq!(window.bytes(), 100);
    window.insert(BlockIndex(9), zeros(500));
    assert_eq!(window.bytes(), 500, "a single block may exceed the capacity");
}

#[test]
fn a_block_goes_once_each_of_its_bytes_was_read_in_whatever_order_and_however_often() {
    let window = window(100, STALE);
    window.insert(BlockIndex(1), zeros(30));
    window.mark_read(&part(1, 20..30));
    for _ in 0..3 {
        window.mark_read(&part(1, 5..15));
        assert!(window.get(&part(1, 5..15)).is_some(), "a range that is read again leaves the block here");
    }
    window.mark_read(&part(1, 10..25));
    assert!(window.contains(BlockIndex(1)));
    window.mark_read(&part(1, 0..5));
    assert!(!window.contains(BlockIndex(1)) && window.unread(BlockIndex(1)).is_none());
}

#[test]
fn a_block_that_was_read_answers_for_a_lost_page_but_not_a_new_reading_and_not_for_long() {
    let large = window(1000, STALE);
    let window = window(100, STALE);
    for window in [&large, &window] {
        window.insert(BlockIndex(1), zeros(30));
        window.mark_read(&part(1, 0..30));
        assert!(window.get(&part(1, 0..30)).is_none(), "a new reading");
        assert!(window.is_piece(&part(1, 10..11)) && !window.is_piece(&part(1, 0..11)));
    }
    assert_eq!(window.bytes(), 0, "30 of 100 bytes are more than an eighth");
    let window = large;
    assert!(window.get(&part(1, 10..11)).is_some() && window.get(&part(1, 0..29)).is_some());
    let begun = Instant::now();
    while window.bytes() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(window.get(&part(1, 10..11)).is_none());
}

#[test]
fn a_block_without_room_is_read_in_pieces_and_whole_again_once_all_of_it_was_read() {
    let window = window(100, STALE);
    let rooms: Vec<_> = (0..3).map(|block| window.reserve(&part(block, 0..10)).unwrap()).collect();
    assert!(window.reserve(&part(3, 0..10)).is_none() && window.is_in_pieces(BlockIndex(3)));
    window.mark_read(&part(3, 0..10));
    window.mark_read(&part(3, 20..30));
    assert!(window.is_in_pieces(BlockIndex(3)));
    window.mark_read(&part(3, 10..20));
    assert!(!window.is_in_pieces(BlockIndex(3)));

    drop(rooms);
    window.reserve(&part(3, 0..10)).unwrap().fill(zeros(30));
    assert_eq!((window.bytes(), window.lock().reserved_bytes), (30, 0));
}

#[test]
fn a_stale_block_makes_room_and_one_in_use_does_not() {
    let busy = window(100, STALE);
    let stale = window(100, Duration::ZERO);
    for window in [&busy, &stale] {
        for block in 0..3 {
            window.insert(BlockIndex(block), zeros(30));
            window.mark_read(&part(block, 0..10));
        }
    }
    assert!(busy.reserve(&part(7, 0..10)).is_none());
    assert!(stale.reserve(&part(7, 0..10)).is_some());
    assert!(stale.is_in_pieces(BlockIndex(0)));
    // Of the block that left, only the rest is missing.
    stale.mark_read(&part(0, 10..30));
    assert!(!stale.is_in_pieces(BlockIndex(0)));
}

#[test]
fn half_of_the_window_is_for_blocks_that_readers_wait_for() {
    let window = window(100, STALE);
    assert!(!window.is_full_of_ahead(50));
    let _room = window.reserve(&part(0, 0..1)).unwrap();
    assert!(!window.is_full_of_ahead(20) && window.is_full_of_ahead(21));
}

#[test]
fn blocks_of_which_nothing_was_read_before_they_were_dropped_are_known_once() {
    let window = window(100, Duration::ZERO);
    for block in 0..3 {
        window.insert(BlockIndex(block), zeros(30));
    }
    window.mark_read(&part(1, 0..10));
    let _rooms = [window.reserve(&part(7, 0..10)).unwrap(), window.reserve(&part(8, 0..10)).unwrap()];
    assert_eq!(window.take_dropped(), [BlockIndex(0)]);
    assert!(window.take_dropped().is_empty() && !window.contains(BlockIndex(1)));
}

#[test]
fn pieces_leave_before_any_block_does() {
    let window = window(100, STALE);
    let piece = BlockPart { block_len: 80, ..part(1, 10..20) };
    window.hold_piece(piece, zeros(10));
    assert_eq!(window.get(&part(1, 12..14)), Some(zeros(2)));
    assert_eq!(window.get_for_peer(&part(1, 12..14)), Some(zeros(2)));
    assert!(window.get(&part(1, 5..11)).is_none() && window.get(&part(2, 12..14)).is_none());
    window.hold_piece(piece, zeros(10));
    assert_eq!(window.bytes(), 10, "at most an eighth");
    let _rooms: Vec<_> = (4..7).map(|block| window.reserve(&part(block, 0..10)).unwrap()).collect();
    assert_eq!(window.bytes(), 10, "they fit beside it");
    window.insert(BlockIndex(9), zeros(10));
    assert_eq!(window.bytes(), 10, "the block, and no piece");
}

// SEMANTICS: C14
#[test]
fn pieces_and_blocks_that_were_read_elsewhere_stay_only_beside_the_blocks_that_are_held_or_coming() {
    let window = window(95, STALE);
    let _rooms: Vec<_> = (0..3).map(|block| window.reserve(&part(block, 0..10)).unwrap()).collect();
    let piece = |block: u32, len: u32| BlockPart { block_len: 80, ..part(block, 10..10 + len) };
    window.hold_piece(piece(7, 10), zeros(10));
    assert_eq!(window.lock().bytes(), 90, "there is room for 5 bytes");
    window.hold_piece(piece(7, 4), zeros(4));
    window.hold_piece(piece(8, 3), zeros(3));
    assert_eq!(window.lock().bytes(), 93, "the older piece made room");
    let read = |block: u32, len: usize| {
        window.insert_read(BlockIndex(block), zeros(len), window.memory.try_acquire(1).unwrap());
        window.lock().bytes()
    };
    assert_eq!((read(4, 10), read(5, 2), read(6, 1)), (93, 95, 94));
}
