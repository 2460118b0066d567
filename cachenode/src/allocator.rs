//! The settings of the C library's allocator.
#![expect(unsafe_code, reason = "calls the C library")]

/// Blocks of this size are mapped, and unmapped when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 1 << 20;

/// The most heaps that threads share. Each keeps some of what was freed.
#[cfg(target_env = "gnu")]
const HEAPS_MOST: libc::c_int = 4;

/// Keeps what the allocator holds of freed memory independent of the number of cores and threads. By default, glibc has
/// up to eight heaps for each core, and raises the size from which blocks are mapped to that of the largest block that
/// was freed, up to 32 MiB: smaller blocks then stay in the heaps of the threads that allocated them. To be called
/// before other threads start: they would have heaps of their own.
pub fn bound_kept_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes parameters of the allocator, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS_MOST);
    };
}
