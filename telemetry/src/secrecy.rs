//! The keys that a program holds: its memory, and comparisons.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Has the kernel write no core dump of this process and of those that it starts, and let nobody but root trace it or
/// read its memory and environment. `main` calls it at its start: an exec undoes the second part.
///
/// From then on the files of `/proc/self` belong to root: this process can read them, and without root's rights it can
/// write to none.
pub fn keep_memory_private() {
    // Neither call fails for a process that only gives up rights. The second one suffices for core dumps; the first is
    // for the processes that this one starts, and for handlers that obey the limit alone.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Compares secrets in a time that does not depend on where they differ.
pub fn is_same_secret(one: &[u8], other: &[u8]) -> bool {
    // Without black_box, the compiler could stop the loop at the first difference.
    let differing = one.iter().zip(other).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    one.len() == other.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    // SEMANTICS: P4
    #[test]
    fn a_program_can_neither_be_dumped_nor_traced_and_still_reads_its_own_proc() {
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::Dumpable);
        keep_memory_private();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(std::fs::metadata("/proc/self/environ").unwrap().uid(), 0);
        let file = std::fs::File::open("/dev/null").unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert_eq!(std::fs::read_link(&path).unwrap(), std::path::Path::new("/dev/null"));
        std::fs::File::open(path).unwrap();
        std::fs::read("/proc/self/statm").unwrap();
    }
}
