//! The settings of the C library's allocator.
#![expect(unsafe_code, reason = "calls the C library")]

/// Blocks of this size are mapped, and unmapped when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 1 << 20;

/// Fixes the size from which blocks are mapped. By default, glibc raises it to that of the largest block that was freed,
/// up to 32 MiB; fuser frees one of 16 MiB for each mount. Smaller blocks would then stay in the heaps of the threads
/// that allocated them.
pub(crate) fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes a parameter of the allocator, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES)
    };
}
