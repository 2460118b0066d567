//! Reads bytes as all that the hook for RDMA limits reads: a container's state, its cgroups, and lines of `rdma.max`.
//!
//! Invariant under test: no panic; a limit is never unlimited and is written as it was read; a cgroup's folder is below the root.
#![no_main]

use std::path::{Component, Path};

use larder_rdma_limit::{Groups, Line, State, UNLIMITED, parse_lines};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(State { pid, id, max }) = State::parse(data) {
        assert!(pid > 0 && !id.is_empty());
        limits(&max.unwrap_or_default());
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    limits(text);
    let folder = Groups::parse(text).ok().and_then(|groups| groups.folder(Path::new("/none")));
    if let Some(folder) = folder {
        assert!(folder.starts_with("/none") && folder.components().all(|part| part != Component::ParentDir));
    }
});

fn limits(text: &str) {
    for line in parse_lines(text).unwrap_or_default() {
        assert!([line.max.handles, line.max.objects].into_iter().flatten().all(|limit| limit < UNLIMITED));
        let again: Line = line.to_string().parse().unwrap();
        assert_eq!(again, line);
        assert!(line.is_in(&line.to_string()));
        assert_eq!(line.max.min(line.max), line.max);
    }
}
