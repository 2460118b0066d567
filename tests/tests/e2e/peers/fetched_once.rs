//! Each object is fetched once in the cluster, and the nodes' caches add up.

use larder_e2e::Mount;
use larder_e2e::nodes::Nodes;

use super::dataset::Files;
use super::flags::{PARTITIONED, start_in_the_clear};
use super::readers::{Readers, from_peers, wait_until_served};

const BLOCK: u64 = 4 << 20;

// SEMANTICS: S1
#[test]
fn a_cold_epoch_read_by_four_nodes_at_once_gets_each_object_once() {
    let nodes = Nodes::new(4);
    let files = Files::new((0..240).map(|n| 1_000 + n * 7_919 % 60_000).chain([2 * BLOCK + 12_345]));
    files.put(&nodes.lab);
    let running = start_in_the_clear(&nodes, 4);
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    nodes.lab.server.reset_counters();
    files.read_epoch(&mounts, 1);
    for n in 0..files.count() {
        assert_eq!(nodes.lab.gets_of(&Files::path(n)), files.sizes[n].div_ceil(BLOCK), "file {n}");
    }
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes());
    for mount in &mounts {
        assert!(from_peers(mount) > 0, "{:#}", mount.stats());
    }
    files.read_epoch(&mounts, 2);
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes(), "what one node keeps, all nodes have");
}

// SEMANTICS: S1
#[test]
fn a_packed_dataset_is_fetched_once_by_all_nodes_together() {
    let nodes = Nodes::new(4);
    let files = Files::new((0..400).map(|n| 10_000 + n * 7_919 % 40_000));
    files.put(&nodes.lab);
    let packed = "s3://bucket/packed";
    nodes.lab.larder_ok(&["pack", &nodes.lab.url(), packed, "--pack-size", "4MiB"]);
    let running = start_in_the_clear(&nodes, 4);
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(packed, &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    nodes.lab.server.reset_counters();
    for epoch in 1..=2 {
        files.read_epoch(&mounts, epoch);
        let counters = nodes.lab.server.counters();
        assert_eq!(counters.get_bytes, files.total_bytes(), "epoch {epoch}, in {} GETs", counters.gets);
    }
    for mount in &mounts {
        assert!(from_peers(mount) > 0, "{:#}", mount.stats());
    }
}

/// Every node keeps an eighth of the data, out of the quarter or so that it owns, and `nr` keeps it for good: the nodes
/// hold exactly half of the files, each of them once. Only the origin's count is not exact: two nodes that read a file
/// at the same time share a GET.
// SEMANTICS: S2
#[test]
fn four_nodes_with_an_eighth_each_hit_half() {
    const SIZE: u64 = 20_000;
    let nodes = Nodes::new(4);
    let files = Files::new([SIZE; 4_000]);
    files.put(&nodes.lab);
    let eighth = (files.total_bytes() / 8).to_string();
    let flags = [&PARTITIONED[..], &["--policy", "nr", "--cache-size", &eighth]].concat();
    let mut running = start_in_the_clear(&nodes, 4);
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &flags)).collect();
    let all = |mounts: &[Mount], seed| {
        let mounts: Vec<&Mount> = mounts.iter().collect();
        files.hits_of_epoch(&nodes.lab, &mounts, seed)
    };
    let assert_near = |hits: f64, wanted: f64, when: &str| {
        assert!((hits - wanted).abs() <= 0.5, "{when}: {hits:.2} % instead of {wanted} %");
    };
    // After its first read by any node, a file is where it will stay, or nowhere.
    files.read_part(&mounts.iter().collect::<Vec<_>>(), 0, |at, n| n % 4 == at);
    for mount in &mounts {
        assert_eq!(mount.metric("store_blocks"), files.count() as u64 / 8, "{:#}", mount.stats());
    }
    assert_near(all(&mounts, 1), 50.0, "all nodes");
    assert_near(all(&mounts, 2), 50.0, "all nodes once more");

    running[3].kill();
    drop(mounts.pop());
    assert_near(all(&mounts, 3), 37.5, "without the files of a dead node");

    running[3].restart();
    mounts.push(running[3].mount(&nodes.lab.url(), &flags));
    // The others use it again after their next probe.
    let (lost, others): (_, Vec<&Mount>) = (&running[3], mounts[..3].iter().collect());
    let readers = Readers::start(&files, &others, 1);
    wait_until_served("after the restart", lost, &others);
    readers.finish();
    mounts.iter().for_each(Mount::settle);
    assert_near(all(&mounts, 4), 50.0, "with the cache that it had");
}
