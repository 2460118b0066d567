use std::os::fd::OwnedFd;

use larder_daemon_api::handover::request_memory;

use super::*;

fn read(unique: u64) -> ReadRequest {
    ReadRequest { unique, ino: unique + 1, offset: unique + 2, size: unique as u32 + 3 }
}

/// A request as the kernel sends it, in a buffer.
fn in_buffer(memory: &File, thread: usize, operation: u32, unique: u64, body: &[u8]) {
    let len = 40 + body.len() as u32;
    let words = [&len.to_ne_bytes()[..], &operation.to_ne_bytes(), &unique.to_ne_bytes(), &(unique + 1).to_ne_bytes()];
    let request = [&words.concat(), &[0; 16][..], body].concat();
    memory.write_all_at(&request, Requests::buffer_at(thread)).unwrap();
}

fn read_body(unique: u64) -> Vec<u8> {
    let ReadRequest { offset, size, .. } = read(unique);
    [&[0; 8][..], &offset.to_ne_bytes(), &size.to_ne_bytes(), &[0; 20]].concat()
}

fn memory() -> (OwnedFd, File) {
    let memory = request_memory().unwrap();
    let file = File::from(memory.try_clone().unwrap());
    (memory, file)
}

fn uniques(unanswered: &Unanswered) -> Vec<u64> {
    unanswered.reads.iter().map(|(read, _)| read.unique).collect()
}

#[test]
fn the_next_process_finds_unanswered_requests_and_no_others() {
    let (memory, _) = memory();
    let (requests, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!((unanswered.reads(), unanswered.others.len()), (0, 0));
    let kept: Vec<Kept> = (1..=1000).map(|unique| requests.keep(read(unique)).unwrap()).collect();
    for (unique, kept) in (1..).zip(kept) {
        // A killed process drops nothing.
        if unique % 100 == 0 { std::mem::forget(kept) } else { drop(kept) }
    }
    // The forgotten values still reference the file.
    let file = requests.file.try_clone().unwrap();
    file.unlock().unwrap();
    let (next, unanswered) = Requests::open(memory.as_fd()).unwrap();
    let hundreds: Vec<u64> = (1..=10).map(|n| n * 100).collect();
    assert_eq!(uniques(&unanswered), hundreds);
    let found: Vec<(ReadRequest, Kept)> = unanswered.into_reads(&next).collect();
    assert!(found.iter().all(|(found, _)| *found == read(found.unique)));
    // A new read gets an entry of its own.
    let new = next.keep(read(5)).unwrap();
    assert!(found.iter().all(|(_, kept)| kept.entry != new.entry));
    drop((found, new, next));
    let (_, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!(unanswered.reads(), 0, "all are answered");
}

#[test]
fn requests_in_buffers_are_found_once_each_and_reads_outlive_the_buffers() {
    let (memory, file) = memory();
    let (requests, _) = Requests::open(memory.as_fd()).unwrap();
    std::mem::forget(requests.keep(read(9)).unwrap());
    requests.file.try_clone().unwrap().unlock().unwrap();
    in_buffer(&file, 0, 15, 9, &read_body(9));
    in_buffer(&file, 3, 15, 11, &read_body(11));
    in_buffer(&file, 4, 1, 13, b"name\0");
    in_buffer(&file, 255, 1, 13, b"name\0");
    in_buffer(&file, 5, 2, 15, &[0; 8]);

    let (_, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!(uniques(&unanswered), [9, 11]);
    assert_eq!(unanswered.others.len(), 1, "FORGET wants no answer");
    assert!(unanswered.others[0].ends_with(b"name\0"));
    drop(unanswered);

    // A takeover that fails at any step has lost nothing.
    let (next, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!((uniques(&unanswered), unanswered.others.len()), (vec![9, 11], 1));
    next.clear_buffers().unwrap();
    drop((unanswered, next));
    let (_, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!((uniques(&unanswered), unanswered.others.len()), (vec![9, 11], 0));
}

#[test]
fn a_memory_with_anything_in_it_is_opened_and_nothing_in_it_is_believed_unchecked() {
    let (memory, file) = memory();
    drop(Requests::open(memory.as_fd()).unwrap());
    // Entries: all ones, a wrong checksum, half an entry at the end.
    file.write_all_at(&[0xff; ENTRY_BYTES], entry_at(0)).unwrap();
    let mut wrong = encode(read(7));
    wrong[16] ^= 1;
    file.write_all_at(&wrong, entry_at(1)).unwrap();
    file.write_all_at(&encode(read(8)), entry_at(2)).unwrap();
    file.write_all_at(&encode(read(9))[..20], entry_at(3)).unwrap();
    // Buffers: all ones; a length beyond the buffer; a READ cut short.
    file.write_all_at(&[0xff; BUFFER_BYTES], Requests::buffer_at(0)).unwrap();
    in_buffer(&file, 1, 1, 21, b"");
    file.write_all_at(&(BUFFER_BYTES as u32 + 1).to_ne_bytes(), Requests::buffer_at(1)).unwrap();
    in_buffer(&file, 2, 15, 23, &read_body(23)[..39]);
    let (_, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!((uniques(&unanswered), unanswered.others.len()), (vec![8], 0));
    drop(unanswered);

    file.write_all_at(b"OTHERFMT", 0).unwrap();
    let (requests, unanswered) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!((unanswered.reads(), unanswered.others.len()), (0, 0), "another version wrote it");
    drop((requests.keep(read(1)).unwrap(), requests));
    for len in [1, 8, TABLE_AT - 1, TABLE_AT + 5] {
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
        let (requests, unanswered) = Requests::open(memory.as_fd()).unwrap();
        assert_eq!((unanswered.reads(), unanswered.others.len()), (0, 0), "{len} bytes");
        drop(requests.keep(read(1)).unwrap());
    }
}

#[test]
fn two_sessions_never_use_one_memory() {
    let (memory, _) = memory();
    let (requests, _) = Requests::open(memory.as_fd()).unwrap();
    let other = memory.try_clone().unwrap();
    let second = std::thread::spawn(move || Requests::open(other.as_fd()).map(|_| ()));
    assert!(second.join().unwrap().unwrap_err().to_string().contains("another session"));
    drop(requests);
    Requests::open(memory.as_fd()).unwrap();
}

#[test]
fn entries_are_used_again_so_the_memory_stays_small() {
    let (memory, file) = memory();
    let (requests, _) = Requests::open(memory.as_fd()).unwrap();
    for round in 0..100 {
        let kept: Vec<Kept> = (1..=10).map(|unique| requests.keep(read(round * 10 + unique)).unwrap()).collect();
        drop(kept);
    }
    assert_eq!(file.metadata().unwrap().len(), entry_at(10));
}

#[tokio::test]
async fn waiting_for_answers_waits_for_the_reads_of_that_moment_and_not_for_later_ones() {
    let (memory, _) = memory();
    let (requests, _) = Requests::open(memory.as_fd()).unwrap();
    let first = requests.keep(read(1)).unwrap();
    let mut waiting = std::pin::pin!(requests.answered());
    assert!(tokio::time::timeout(Duration::from_millis(50), waiting.as_mut()).await.is_err());
    let _later = requests.keep(read(2)).unwrap();
    drop(first);
    waiting.await;
}

// SEMANTICS: C22
#[test]
fn the_next_process_finds_the_files_that_the_kernel_reads() {
    let (memory, file) = memory();
    let (requests, _) = Requests::open(memory.as_fd()).unwrap();
    assert_eq!(requests.lent().unwrap(), None);
    requests.answers_opens().unwrap();
    assert_eq!(requests.lent().unwrap(), Some(Vec::new()));
    let all: Vec<(u64, u32)> = (1..=255).map(|n| (u64::from(n) << 40, n)).collect();
    for (nth, &(node, number)) in all.iter().enumerate() {
        requests.keep_lent(nth, node, number).unwrap();
    }
    assert_eq!(all.len(), LENT_MOST);
    assert!(requests.keep_lent(LENT_MOST, 1, 1).is_err(), "it would overwrite a buffer");
    let _kept = requests.keep(read(1)).unwrap();
    requests.clear_buffers().unwrap();
    assert_eq!(requests.lent().unwrap(), Some(all));
    // One that was not written whole.
    file.write_all_at(&[1], (LENT_AT + 2 * LENT_BYTES) as u64).unwrap();
    let lent = requests.lent().unwrap().unwrap();
    assert_eq!((lent.len(), lent[2]), (254, (4 << 40, 4)));
}
