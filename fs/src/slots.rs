//! The memory into which threads read the requests of a connection.
//!
//! A [`Slot`] has room for one request. A thread takes a slot before it takes a request from the kernel, and gives it
//! back when the request is answered or kept (`requests`). The slots of a handed-over connection are the buffers in the
//! memory that its keeper holds, so the request that a thread is working on outlives the process.
//!
//! The kernel copies a request out in the middle of a system call. If it must first allocate a page and the process is
//! killed during that, the request ends with EIO. A slot is therefore touched before its first use. Most slots of most
//! mounts are never used and take no memory.
//!
//! The kernel requires room for the largest write, which is 16 MiB, although nothing writes to a read-only mount. The
//! room behind all slots of the process is therefore one mapping, whose content nobody reads. The kernel writes there
//! only when it has thousands of inodes to forget.
//!
//! Invariants: a slot belongs to one thread at a time. A connection has one mapping, however many slots it has.
#![expect(unsafe_code, reason = "maps memory, into which the kernel reads")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::requests::{BUFFER_BYTES, BUFFERS, Requests};

const PAGE_BYTES: usize = 4096;

/// The largest write that an earlier larderd has negotiated with the kernel, and one page for the request's fields.
const OVERFLOW_BYTES: usize = (16 << 20) + PAGE_BYTES;

/// The room behind the slots, which exists once a connection was served. It is never unmapped.
static OVERFLOW: Mutex<Option<Memory>> = Mutex::new(None);

/// The address of mapped memory.
#[derive(Clone, Copy, Debug)]
struct Memory(NonNull<u8>);

// SAFETY: an address may be used by any thread. Each use states why it is valid and exclusive.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// The slots of a connection.
#[derive(Debug)]
pub(crate) struct Slots {
    memory: Memory,
    overflow: Memory,
    count: usize,
    unused: Mutex<Unused>,
    /// The number of slots that threads have.
    taken: AtomicUsize,
}

/// The slots that no thread has.
#[derive(Debug, Default)]
struct Unused {
    /// The number of slots that have been used so far.
    used: usize,
    /// Those of them that are free again. The last one is taken first, so that few slots take memory.
    returned: Vec<usize>,
}

/// A slot that a thread has.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    slots: &'a Slots,
    number: usize,
}

impl Slots {
    /// Maps the slots of a connection: in `requests`, if its requests outlive the process. Errors: there is no memory
    /// or no mapping left.
    pub(crate) fn open(requests: Option<&Requests>, count: usize) -> io::Result<Self> {
        let count = count.clamp(1, BUFFERS);
        let overflow = overflow()?;
        let file = requests.map(|requests| (requests.as_fd(), Requests::buffer_at(0).cast_signed()));
        let memory = map(count * BUFFER_BYTES, file)?;
        Ok(Self { memory, overflow, count, unused: Mutex::default(), taken: AtomicUsize::new(0) })
    }

    /// Takes a slot. `None` if all are in use.
    pub(crate) fn take(&self) -> Option<Slot<'_>> {
        let mut unused = self.unused();
        let number = match unused.returned.pop() {
            Some(number) => number,
            None if unused.used < self.count => {
                let number = unused.used;
                unused.used += 1;
                self.touch(number);
                number
            }
            None => return None,
        };
        self.taken.fetch_add(1, Ordering::SeqCst);
        Some(Slot { slots: self, number })
    }

    /// Gives a slot back.
    pub(crate) fn give_back(&self, Slot { number, .. }: Slot<'_>) {
        let mut unused = self.unused();
        unused.returned.push(number);
        self.taken.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether no slot is left.
    pub(crate) fn are_all_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst) == self.count
    }

    fn unused(&self) -> MutexGuard<'_, Unused> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, number: usize) -> *mut u8 {
        // SAFETY: the mapping has `count` slots, and `number` is less than that.
        unsafe { self.memory.0.as_ptr().add(number * BUFFER_BYTES) }
    }

    fn touch(&self, number: usize) {
        for page in (0..BUFFER_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: the page is in the slot, which no thread has yet. A file that is mapped is large enough:
            // `Requests::open` set its size, and it never shrinks while it is in use.
            unsafe { self.at(number).add(page).write_volatile(0) };
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, and slots borrow this value.
        unsafe { libc::munmap(self.memory.0.as_ptr().cast(), self.count * BUFFER_BYTES) };
    }
}

impl Slot<'_> {
    /// Reads the next request of a connection into the slot, and returns the part that has room there.
    pub(crate) fn receive(&mut self, fuse: BorrowedFd<'_>) -> Result<&[u8], Errno> {
        let at = self.slots.at(self.number);
        let room = [
            libc::iovec { iov_base: at.cast(), iov_len: BUFFER_BYTES },
            libc::iovec { iov_base: self.slots.overflow.0.as_ptr().cast(), iov_len: OVERFLOW_BYTES },
        ];
        // SAFETY: both ranges are mapped and writable. This thread has the slot, and no reference to its bytes exists,
        // because this value is borrowed exclusively. No reference to the overflow's bytes ever exists.
        let len = unsafe { libc::readv(fuse.as_raw_fd(), room.as_ptr(), room.len() as libc::c_int) };
        let Ok(len) = usize::try_from(len) else {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        };
        // SAFETY: the bytes are in the slot, and nothing writes to it before the next call.
        Ok(unsafe { std::slice::from_raw_parts(at, len.min(BUFFER_BYTES)) })
    }
}

fn overflow() -> io::Result<Memory> {
    let mut overflow = OVERFLOW.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(memory) = *overflow {
        return Ok(memory);
    }
    let memory = map(OVERFLOW_BYTES, None)?;
    *overflow = Some(memory);
    Ok(memory)
}

/// Maps memory, or a part of a file.
fn map(bytes: usize, file: Option<(BorrowedFd<'_>, i64)>) -> io::Result<Memory> {
    let (kind, fd, at) = match file {
        Some((fd, at)) => (libc::MAP_SHARED, fd.as_raw_fd(), at),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0),
    };
    // SAFETY: a new mapping, at an address of the kernel's choice, overlaps nothing.
    let at = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, kind, fd, at) };
    match NonNull::new(at.cast()) {
        Some(memory) if at != libc::MAP_FAILED => Ok(Memory(memory)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_taken_once() {
        let slots = Slots::open(None, 2).unwrap();
        let first = slots.take().unwrap();
        assert!(!slots.are_all_taken());
        let second = slots.take().unwrap();
        assert_ne!(first.number, second.number);
        assert!(slots.are_all_taken() && slots.take().is_none());
        slots.give_back(first);
        slots.give_back(second);
        assert_eq!(slots.take().unwrap().number, 1, "the one that was returned last");
        assert!(!slots.are_all_taken());
        assert!(slots.take().is_some() && slots.take().is_none());
    }

    #[test]
    fn a_request_is_received_and_a_longer_one_than_a_slot_does_no_harm() {
        let (kernel, ours) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let slots = Slots::open(None, 1).unwrap();
        let mut slot = slots.take().unwrap();
        kernel.send(b"request").unwrap();
        assert_eq!(slot.receive(ours.as_fd()), Ok(&b"request"[..]));
        kernel.send(&[7; BUFFER_BYTES + 100]).unwrap();
        assert_eq!(slot.receive(ours.as_fd()), Ok(&[7; BUFFER_BYTES][..]));
        ours.set_nonblocking(true).unwrap();
        assert_eq!(slot.receive(ours.as_fd()), Err(Errno::AGAIN));
    }
}
