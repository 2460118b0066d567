//! Places the buffers of FUSE threads in the memory of their connection.
//!
//! fuser allocates the buffer into which a thread reads its requests, and offers no way to choose its address. The
//! program's allocator, [`RequestBuffers`], therefore recognizes these allocations by their size and maps each of them
//! separately. While [`spawn`] starts the threads of a session, the allocator maps the beginning of each buffer over a
//! piece of the session's [`Requests`]. All other allocations go to the system's allocator.
//!
//! The kernel copies a request out in the middle of a system call. If it must first allocate a page and the process is
//! killed during that, the request ends with EIO. The pieces are therefore touched before their use. A read-only mount
//! never uses the part of a buffer behind its piece.
//!
//! Invariants: a buffer belongs to the session whose threads are starting. All sessions of a process start through
//! [`spawn`], one at a time, and each holds the lock until its last thread has its buffer. An allocation of this size
//! is always a mapping of its own, so the layout alone determines how to free it.
#![expect(unsafe_code, reason = "an allocator, which maps memory")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{BackgroundSession, Filesystem, Session};
use tracing::error;

use crate::requests::{BUFFER_BYTES, Requests};

/// The size that fuser allocates for a thread: the largest write and one page.
const ALLOCATION_BYTES: usize = (16 << 20) + 4096;

const PAGE_BYTES: usize = 4096;

/// How often a start checks whether it has failed.
const POLL: Duration = Duration::from_millis(10);

/// The allocator of a program that serves handed-over connections.
#[derive(Debug)]
pub struct RequestBuffers;

/// The session whose threads are starting.
#[derive(Debug)]
struct Starting {
    /// `None` if its requests need not outlive the process.
    requests: Option<Arc<Requests>>,
    threads: usize,
    placed: usize,
}

static STARTING: Mutex<Option<Starting>> = Mutex::new(None);

/// Notified when a thread has received its buffer.
static PLACED: Condvar = Condvar::new();

/// Held while a session starts, since a buffer is assigned to the session that is starting.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// True once a buffer was allocated. It proves that the program uses this allocator and that fuser's buffers have the
/// expected size.
static RECOGNIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True while this thread opens a session: the buffer that it allocates is for the session's first request, before
    /// the session has threads.
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Opens a session. Its first request is read on this thread, into a buffer that belongs to no thread of a session.
pub(crate) fn open<T>(open: impl FnOnce() -> T) -> T {
    OPENING.set(true);
    let opened = open();
    OPENING.set(false);
    opened
}

/// Starts the threads of a session that [`open`] opened and places their buffers in `requests`, if given. Waits until
/// each thread has its buffer. Errors: the session cannot be started, or the program uses another allocator. Ends the
/// process if only some of the threads can be started: they would serve the connection indefinitely, and no other
/// process could take it. The next process takes over all connections.
pub(crate) fn spawn<F: Filesystem>(
    session: Session<F>,
    threads: usize,
    requests: Option<Arc<Requests>>,
) -> io::Result<BackgroundSession> {
    if !RECOGNIZED.load(Ordering::Acquire) {
        return match requests {
            None => session.spawn(),
            Some(_) => Err(io::Error::other("this program cannot keep requests for the next one; use larderd")),
        };
    }
    let _starting = lock(&ONE_AT_A_TIME);
    *lock(&STARTING) = Some(Starting { requests, threads, placed: 0 });
    let session = match session.spawn() {
        Ok(session) => session,
        Err(error) => {
            *lock(&STARTING) = None;
            return Err(error);
        }
    };
    let mut starting = lock(&STARTING);
    while starting.as_ref().is_some_and(|starting| starting.placed < starting.threads) {
        // The session ends after its threads. If one of them has no buffer yet, that thread was never started, and
        // others that were started may still lack theirs. No other session may start in this state.
        if session.guard.is_finished() {
            error!(
                "some threads of a FUSE session cannot be started: ending, so that the next larderd serves its \
                 connection"
            );
            std::process::abort();
        }
        starting = PLACED.wait_timeout(starting, POLL).unwrap_or_else(PoisonError::into_inner).0;
    }
    *starting = None;
    Ok(session)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn is_buffer(layout: Layout) -> bool {
    layout.size() == ALLOCATION_BYTES && layout.align() <= PAGE_BYTES
}

/// Maps a new, zeroed buffer. Null if there is no memory.
fn map() -> *mut u8 {
    RECOGNIZED.store(true, Ordering::Release);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at an address of the kernel's choice, overlaps nothing.
    let at = unsafe { libc::mmap(null_mut(), ALLOCATION_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED { null_mut() } else { at.cast() }
}

/// Like [`map`], but places the beginning of the buffer in the memory of the session that is starting, if there is one.
fn map_for_a_thread() -> *mut u8 {
    let buffer = map();
    if buffer.is_null() || OPENING.get() {
        return buffer;
    }
    let mut starting = lock(&STARTING);
    let Some(Starting { requests, placed, threads }) = starting.as_mut().filter(|it| it.placed < it.threads) else {
        return buffer;
    };
    let in_place = requests.as_ref().is_none_or(|requests| put_in_place(buffer, requests, *placed));
    *placed += 1;
    if placed == threads {
        PLACED.notify_one();
    }
    drop(starting);
    if in_place {
        return buffer;
    }
    // SAFETY: the mapping was made above, and nothing else refers to its address.
    unsafe { libc::munmap(buffer.cast(), ALLOCATION_BYTES) };
    null_mut()
}

/// Maps a thread's piece of `requests` over the beginning of a new buffer. False if there is no memory.
fn put_in_place(buffer: *mut u8, requests: &Requests, thread: usize) -> bool {
    let (fd, at) = (requests.as_fd().as_raw_fd(), Requests::buffer_at(thread).cast_signed());
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: it replaces the beginning of a mapping that `map` made. That mapping is larger and not in use yet.
    let mapped = unsafe { libc::mmap(buffer.cast(), BUFFER_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, fd, at) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    for page in (0..BUFFER_BYTES).step_by(PAGE_BYTES) {
        // SAFETY: the page is in the mapping, and the file is large enough: `Requests::open` set its size, and it never
        // shrinks.
        unsafe { buffer.add(page).write_volatile(0) };
    }
    true
}

// SAFETY: a buffer is a mapping of its own, of the layout's size, zeroed, aligned to a page, and unmapped the way it
// was mapped. Every other layout goes to the system allocator on every path. `is_buffer` depends only on the layout,
// which is the same when the memory is freed. Nothing unwinds: locks are taken without panicking.
unsafe impl GlobalAlloc for RequestBuffers {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_buffer(layout) {
            return map();
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_buffer(layout) {
            return map_for_a_thread();
        }
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, allocated: *mut u8, layout: Layout) {
        if is_buffer(layout) {
            // SAFETY: the caller got the pointer from `map` and no longer uses it.
            unsafe { libc::munmap(allocated.cast(), ALLOCATION_BYTES) };
            return;
        }
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(allocated, layout) }
    }

    unsafe fn realloc(&self, allocated: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_buffer(layout) && !is_buffer(wanted) {
            // SAFETY: the caller upholds the contract of `realloc`.
            return unsafe { System.realloc(allocated, layout, size) };
        }
        // SAFETY: the caller promises that `size` is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least the smaller number of bytes and do not overlap. The caller gives up the
            // old block.
            unsafe {
                std::ptr::copy_nonoverlapping(allocated, moved, layout.size().min(size));
                self.dealloc(allocated, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_of_the_size_of_a_buffer_is_a_mapping_and_others_are_the_systems() {
        let buffer = Layout::from_size_align(ALLOCATION_BYTES, 1).unwrap();
        let other = Layout::from_size_align(ALLOCATION_BYTES - 1, 1).unwrap();
        // SAFETY: each block is used within its layout and freed once, with its layout at that time.
        unsafe {
            let first = RequestBuffers.alloc_zeroed(buffer);
            assert!(!first.is_null() && first.addr().is_multiple_of(PAGE_BYTES));
            assert_eq!((first.read(), first.add(ALLOCATION_BYTES - 1).read()), (0, 0));
            first.write(7);
            // The block shrinks into the system's memory and grows out of it.
            let smaller = RequestBuffers.realloc(first, buffer, other.size());
            assert_eq!(smaller.read(), 7);
            let again = RequestBuffers.realloc(smaller, other, buffer.size());
            assert_eq!(again.read(), 7);
            RequestBuffers.dealloc(again, buffer);
        }
    }

    #[test]
    fn a_program_with_another_allocator_says_so() {
        // This test's allocator is the system's, so a session's buffers are not recognized unless the test above ran.
        assert!(!is_buffer(Layout::from_size_align(ALLOCATION_BYTES, 2 * PAGE_BYTES).unwrap()));
        assert!(is_buffer(Layout::from_size_align(ALLOCATION_BYTES, PAGE_BYTES).unwrap()));
    }
}
