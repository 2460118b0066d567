//! Files mapped into memory so that a failing disk costs pages, not the process.
//!
//! The kernel answers an access to a page that the disk cannot read with SIGBUS. The handler replaces the page with
//! zeros, counts the loss, and lets the access continue. The owner of the mapping must check for losses. A SIGBUS
//! anywhere else ends the process, as it does without the handler.
//!
//! Its parts: [`Mapping`] is a mapped file; `TABLE` lists the process's mappings for the handler, which may use only
//! atomics and system calls.
//!
//! Invariant: a loss is counted before its zeros become visible. A reader that finds the count unchanged after reading
//! bytes has therefore read the file's bytes.
#![expect(unsafe_code, reason = "maps files, and handles the signal of their failing disk")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memmap2::{Mmap, MmapOptions};

/// The most mappings that a process can have.
const MAPPINGS: usize = 8192;

/// After this many losses, the next one replaces the whole mapping. Each replaced page uses a kernel mapping of its
/// own, and the kernel allows a process about 65,000.
const PAGES_MOST: u32 = 1024;

/// The shortest interval between two attempts to read lost pages again.
const RETRY: Duration = Duration::from_secs(1);

/// Bits for the number of pages in [`Entry::pages`].
const COUNT_BITS: u32 = 28;

static TABLE: [Entry; MAPPINGS] = [const { Entry { pages: AtomicU64::new(0), losses: AtomicU32::new(0) } }; MAPPINGS];

/// Set once, before the handler is installed, so the handler always finds it.
static HANDLER: OnceLock<Handler> = OnceLock::new();

/// A mapping, as the handler sees it.
#[derive(Debug)]
struct Entry {
    /// The mapping's first page number, and in the lower [`COUNT_BITS`] its number of pages. One atomic holds both, so
    /// the handler never sees one without the other. 0 pages: the entry is free or not complete yet.
    pages: AtomicU64,
    losses: AtomicU32,
}

/// The state that the SIGBUS handler needs.
struct Handler {
    page_bytes: usize,
    /// The action that SIGBUS had before.
    before: libc::sigaction,
}

/// A file mapped read-only. Later changes to the file are visible through it.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    file: File,
    entry: &'static Entry,
    page_bytes: usize,
    retried: Mutex<Option<Instant>>,
}

impl Mapping {
    /// Maps the first `len` bytes of a file, which must be at least that long. No process may shorten the file while it
    /// is mapped; if one does, the bytes cut off read as lost. Errors: a system call fails, or the process has too many
    /// mappings.
    pub fn new(file: File, len: usize) -> io::Result<Self> {
        // SAFETY: the caller keeps the file's length, and readers expect the bytes to change. If pages are lost
        // regardless, the handler replaces them.
        let map = unsafe { MmapOptions::new().len(len).map(&file)? };
        // Look-ups are random, so read-ahead would load useless pages. Only advice: failure is harmless.
        let _ = map.advise(memmap2::Advice::Random);
        let page_bytes = install()?.page_bytes;
        let (first, count) = (map.as_ptr().addr() / page_bytes, len.div_ceil(page_bytes));
        let entry = register(first as u64, count as u64)?;
        Ok(Self { map, file, entry, page_bytes, retried: Mutex::new(None) })
    }

    /// The mapped bytes, with zeros in place of lost pages.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The file that is mapped.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The number of losses so far. Compare it before and after a read to know whether the bytes are the file's.
    pub fn losses(&self) -> u32 {
        self.entry.losses.load(Ordering::Acquire)
    }

    /// Advises the kernel that this range will be read soon.
    pub fn will_read(&self, range: Range<usize>) {
        let end = range.end.min(self.map.len());
        if range.start < end {
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, end - range.start);
        }
    }

    /// Reads these ranges of the file. If that succeeds, maps the whole file again, since other lost pages may be
    /// readable again too. Tries at most once a second.
    pub fn read_again(&self, ranges: &[Range<usize>]) -> bool {
        let mut retried = self.retried.lock().unwrap_or_else(PoisonError::into_inner);
        if retried.is_some_and(|at| at.elapsed() < RETRY) {
            return false;
        }
        *retried = Some(Instant::now());
        let mut bytes = Vec::new();
        let mut can_be_read = |range: &Range<usize>| {
            bytes.resize(range.len(), 0);
            self.file.read_exact_at(&mut bytes, range.start as u64).is_ok()
        };
        ranges.iter().all(&mut can_be_read) && self.map_again(0..self.map.len()).is_ok()
    }

    /// Maps a range of the file again, in place of the zeros.
    pub(crate) fn map_again(&self, range: Range<usize>) -> io::Result<()> {
        let start = range.start / self.page_bytes * self.page_bytes;
        let len = (range.end.min(self.map.len()) - start).next_multiple_of(self.page_bytes);
        // SAFETY: the pages lie within this mapping, which is read-only and shared as before; the address stays valid.
        let mapped = unsafe {
            libc::mmap(
                self.map.as_ptr().add(start).cast_mut().cast(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                libc::off_t::try_from(start).map_err(io::Error::other)?,
            )
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Frees the table entry before unmapping: afterwards, the addresses may belong to another mapping.
        self.entry.pages.store(0, Ordering::SeqCst);
    }
}

fn register(first: u64, count: u64) -> io::Result<&'static Entry> {
    if first >> (64 - COUNT_BITS) != 0 || count >> COUNT_BITS != 0 {
        return Err(io::Error::other("the file is too large to be mapped"));
    }
    let reserved = first << COUNT_BITS;
    let free = |entry: &&Entry| entry.pages.compare_exchange(0, reserved, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    let entry = TABLE.iter().find(free).ok_or_else(|| io::Error::other("too many mapped files"))?;
    entry.losses.store(0, Ordering::SeqCst);
    entry.pages.store(reserved | count, Ordering::SeqCst);
    Ok(entry)
}

/// Installs the handler if it is not installed yet.
fn install() -> io::Result<&'static Handler> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handler) = HANDLER.get() {
        return Ok(handler);
    }
    // SAFETY: all zeros is a valid sigaction; the pointers are to values of this function.
    let before = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        before
    };
    let handler = HANDLER.get_or_init(|| Handler { page_bytes: rustix::param::page_size(), before });
    // SAFETY: as above; the handler uses only async-signal-safe operations.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        // SA_ONSTACK: a thread with an alternate signal stack may have used up its normal stack.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(handler)
}

/// Handles SIGBUS. Runs in the thread that touched the page and may interrupt it anywhere, so it takes no lock and
/// allocates nothing.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(handler) = HANDLER.get() else { return };
    // SAFETY: the kernel passes a valid siginfo.
    let address = unsafe { (*info).si_addr() }.addr();
    if replace(handler.page_bytes, address) {
        return;
    }
    let before = &handler.before;
    match before.sa_sigaction {
        // Restores the default action. The access is then repeated and ends the process.
        // SAFETY: resetting a signal's action is allowed in a handler.
        libc::SIG_DFL | libc::SIG_IGN => drop(unsafe { libc::signal(signal, libc::SIG_DFL) }),
        earlier if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with SA_SIGINFO has this type. Rust's handler for stack overflows is
            // one.
            let earlier: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(earlier) };
            earlier(signal, info, context);
        }
        earlier => {
            // SAFETY: a handler that was installed without SA_SIGINFO has this type.
            let earlier: extern "C" fn(c_int) = unsafe { std::mem::transmute(earlier) };
            earlier(signal);
        }
    }
}

/// Replaces the page at `address` with zeros if it belongs to a mapping. False if it does not or the replacement fails.
fn replace(page_bytes: usize, address: usize) -> bool {
    let page = (address / page_bytes) as u64;
    for entry in &TABLE {
        let pages = entry.pages.load(Ordering::SeqCst);
        let (first, count) = (pages >> COUNT_BITS, pages & ((1 << COUNT_BITS) - 1));
        if page < first || page - first >= count {
            continue;
        }
        let losses = entry.losses.fetch_add(1, Ordering::SeqCst);
        let (from, len) = if losses < PAGES_MOST { (page, 1) } else { (first, count) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the pages belong to a mapping that this thread at least is using, and they stay readable. errno is
        // restored for the interrupted code.
        return unsafe {
            let errno = *libc::__errno_location();
            let at = std::ptr::with_exposed_provenance_mut(from as usize * page_bytes);
            let mapped = libc::mmap(at, len as usize * page_bytes, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = errno;
            mapped != libc::MAP_FAILED
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    fn file_of(byte: u8, pages: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![byte; pages * rustix::param::page_size()], 0).unwrap();
        file
    }

    /// Accesses to pages beyond the end of the file raise SIGBUS, as a bad sector does.
    #[test]
    fn pages_that_the_file_lost_read_as_zeros_and_are_counted_and_other_mappings_are_not_touched() {
        let page = rustix::param::page_size();
        let [hurt, sound] = [7, 9].map(|byte| Mapping::new(file_of(byte, 4), 4 * page).unwrap());
        assert_eq!((hurt.bytes()[3 * page], hurt.losses()), (7, 0));
        hurt.file().set_len(2 * page as u64).unwrap();
        assert_eq!((hurt.bytes()[3 * page], hurt.losses()), (0, 1));
        assert_eq!((hurt.bytes()[3 * page + 1], hurt.losses()), (0, 1), "replaced once");
        assert_eq!((hurt.bytes()[2 * page], hurt.losses()), (0, 2));
        assert_eq!((hurt.bytes()[page], hurt.losses()), (7, 2), "other pages are there");
        assert!(sound.bytes().iter().all(|&byte| byte == 9));
        assert_eq!(sound.losses(), 0);
        // A later mapping starts without losses.
        drop(hurt);
        let next = Mapping::new(file_of(5, 1), page).unwrap();
        assert_eq!((next.bytes()[0], next.losses()), (5, 0));
    }

    #[test]
    fn what_can_be_read_again_is_shown_again() {
        let page = rustix::param::page_size();
        let map = Mapping::new(file_of(7, 4), 4 * page).unwrap();
        map.file().set_len(page as u64).unwrap();
        assert_eq!((map.bytes()[page], map.bytes()[2 * page]), (0, 0));
        assert!(!map.read_again(std::slice::from_ref(&(page..2 * page))), "still cut off");
        map.file().write_all_at(&vec![8; 3 * page], page as u64).unwrap();
        assert!(!map.read_again(std::slice::from_ref(&(page..2 * page))), "tried a moment ago");
        *map.retried.lock().unwrap() = None;
        assert!(map.read_again(std::slice::from_ref(&(page + 10..page + 20))));
        assert_eq!((map.bytes()[page], map.bytes()[2 * page], map.losses()), (8, 8, 2));
    }

    #[test]
    fn a_mapping_that_loses_page_after_page_is_given_up_as_a_whole() {
        let page = rustix::param::page_size();
        let pages = PAGES_MOST as usize + 2;
        let map = Mapping::new(file_of(7, pages), pages * page).unwrap();
        map.file().set_len(page as u64).unwrap();
        for number in 1..pages {
            assert_eq!(map.bytes()[number * page], 0);
        }
        assert_eq!((map.losses(), map.bytes()[0]), (PAGES_MOST + 1, 0));
    }

    #[test]
    #[ignore = "the process that a_bus_error_elsewhere_still_ends_the_process starts"]
    fn child() {
        let page = rustix::param::page_size();
        let _registered = Mapping::new(file_of(7, 1), page).unwrap();
        let foreign = file_of(7, 1);
        // SAFETY: the mapping is read only to raise SIGBUS, which ends this process on purpose.
        let map = unsafe { Mmap::map(&foreign).unwrap() };
        foreign.set_len(0).unwrap();
        std::hint::black_box(map[0]);
    }

    #[test]
    fn a_bus_error_elsewhere_still_ends_the_process() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "mapping::tests::child", "--ignored"]);
        let status = child.output().unwrap().status;
        assert_eq!(status.signal(), Some(libc::SIGBUS));
    }
}
