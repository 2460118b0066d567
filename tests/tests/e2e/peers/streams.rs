//! Many sequential readers of what no node keeps.

use std::fs::File;
use std::os::unix::fs::FileExt;

use larder_e2e::Mount;
use larder_e2e::nodes::Nodes;

use super::dataset::Files;
use super::flags::{PARTITIONED, start_in_the_clear};

const MIB: u64 = 1 << 20;

// SEMANTICS: C14
#[test]
fn many_streams_on_nodes_that_keep_nothing_get_each_byte_once() {
    const SIZE: u64 = 6 * MIB;
    let nodes = Nodes::new(2);
    let files = Files::new([SIZE; 96]);
    files.put(&nodes.lab);
    let running = start_in_the_clear(&nodes, 2);
    let flags = [&PARTITIONED[..], &["--cache-size", "1"]].concat();
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &flags)).collect();
    nodes.lab.server.reset_counters();
    std::thread::scope(|readers| {
        for n in 0..files.count() {
            let (files, mount) = (&files, &mounts[n % 2]);
            readers.spawn(move || {
                let (file, expected) = (File::open(mount.path(Files::path(n))).unwrap(), files.bytes(n));
                let mut piece = vec![0; MIB as usize];
                for at in (0..SIZE).step_by(MIB as usize) {
                    file.read_exact_at(&mut piece, at).unwrap();
                    assert!(piece == expected[at as usize..][..MIB as usize], "file {n} at {at}");
                }
            });
        }
    });
    mounts.iter().for_each(Mount::settle);
    let (got, all) = (nodes.lab.server.counters().get_bytes, files.total_bytes());
    // On a machine that is too busy for a peer to answer in time, the reader's own node fetches the block as well.
    let failures: u64 = mounts.iter().map(|mount| mount.metric("fs_peer_errors_total")).sum();
    assert!(got.abs_diff(all) <= all / 50 + failures * 4 * MIB, "{got} of {all} bytes, {failures} failures of peers");
}
