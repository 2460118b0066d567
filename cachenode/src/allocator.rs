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

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use std::ffi::CString;
    use std::hint::black_box;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::Barrier;

    use super::*;

    const THREADS: usize = 32;

    /// The number of heaps, by the allocator's own report.
    fn heaps(folder: &Path) -> usize {
        let path = folder.join("report");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the names are strings that end with a zero, and the file is open until it is closed here.
        let written = unsafe {
            let file = libc::fopen(name.as_ptr(), c"w".as_ptr());
            assert!(!file.is_null());
            [libc::malloc_info(0, file), libc::fclose(file)]
        };
        assert_eq!(written, [0, 0]);
        std::fs::read_to_string(path).unwrap().matches("<heap nr=").count()
    }

    /// The number of blocks that are mapped.
    fn mapped_blocks() -> usize {
        // SAFETY: it reads numbers of the allocator, which any thread may do at any time.
        unsafe { libc::mallinfo2() }.hblks
    }

    #[test]
    fn many_threads_share_few_heaps_and_a_large_block_is_mapped_though_a_larger_one_was_freed() {
        bound_kept_memory();
        let folder = tempfile::tempdir().unwrap();
        let before = heaps(folder.path());
        let all_hold_one = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let block = black_box(vec![1_u8; 1000]);
                    all_hold_one.wait();
                    drop(block);
                });
            }
        });
        let after = heaps(folder.path());
        assert!(after <= before.max(HEAPS_MOST as usize), "{before} heaps have become {after}");

        drop(black_box(vec![1_u8; 8 << 20]));
        let before = mapped_blocks();
        let block = black_box(vec![1_u8; 4 << 20]);
        assert!(mapped_blocks() > before, "it is in a heap, which keeps its memory");
        drop(block);
    }
}
