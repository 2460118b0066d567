//! The job files of `bench/fio`.

/// Mean size of the small files in bytes, as in the talk that introduced NR (README.md).
pub(super) const SMALL_MEAN: u64 = 111_000;

/// A job file, and the sections to run.
pub(super) struct Jobs {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) patterns: &'static [&'static str],
}

/// One large file.
pub(super) const LARGE: Jobs = Jobs {
    name: "large-file.fio",
    text: include_str!("../../fio/large-file.fio"),
    patterns: &["read-1m", "stream", "mmap", "sparse", "randread-4k", "randread-128k", "randread-128k-4-jobs"],
};

/// Many small files.
pub(super) const SMALL: Jobs =
    Jobs { name: "small-files.fio", text: include_str!("../../fio/small-files.fio"), patterns: &["small-files"] };

/// The number of bytes to read of a file of this size in 4 KiB reads (at most 32 MiB), in 128 KiB reads (at most 256
/// MiB), and in 128 KiB reads by each of four jobs.
pub(super) fn bytes_to_read(size: u64) -> [u64; 3] {
    const PIECE: u64 = 128 << 10;
    let large = (size / (4 * PIECE) * (4 * PIECE)).clamp(4 * PIECE, 256 << 20);
    [large.min(32 << 20), large, large / 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_offset_of_a_file_is_read_twice() {
        for size in [4 << 20, 5_000_000, 100 << 20, 1 << 30, 10 << 30] {
            let [small, large, a_job] = bytes_to_read(size);
            assert!(small <= large && large <= size && a_job * 4 <= large && a_job <= size / 4, "{size}");
            assert!(small % 4096 == 0 && large % (128 << 10) == 0 && a_job % (128 << 10) == 0, "{size}");
        }
        assert_eq!(bytes_to_read(1 << 30), [32 << 20, 256 << 20, 64 << 20]);
    }

    #[test]
    fn every_pattern_is_a_section_of_its_job_file() {
        for jobs in [LARGE, SMALL] {
            for pattern in jobs.patterns {
                assert!(jobs.text.contains(&format!("\n[{pattern}]\n")), "{pattern}");
            }
        }
    }
}
