//! Copies on several nodes, in several zones, and on nodes that mount nothing.

use larder_e2e::Mount;
use larder_e2e::nodes::{Node, Nodes};

use super::dataset::Files;
use super::flags::{PARTITIONED, listed, peering, plaintext, start_in_the_clear};
use super::readers::{from_peers, wait_until};

const REPLICATED: [&str; 2] = ["--placement", "replicated:2"];

fn blocks(mount: &Mount) -> u64 {
    mount.metric("store_blocks")
}

// SEMANTICS: S2
#[test]
fn with_two_copies_each_object_is_fetched_once_and_a_dead_node_costs_nothing() {
    let nodes = Nodes::new(3);
    let files = Files::new((0..150).map(|n| 1_000 + n * 7_919 % 60_000));
    files.put(&nodes.lab);
    let mut running = start_in_the_clear(&nodes, 3);
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &REPLICATED)).collect();
    nodes.lab.server.reset_counters();
    files.read_epoch(&mounts.iter().collect::<Vec<_>>(), 1);
    for n in 0..files.count() {
        assert_eq!(nodes.lab.gets_of(&Files::path(n)), 1, "file {n}");
    }
    let kept: u64 = mounts.iter().map(blocks).sum();
    assert_eq!(kept, 2 * files.count() as u64, "each file is on two nodes");

    running[0].kill();
    drop(mounts.remove(0));
    nodes.lab.server.reset_counters();
    let others: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&others, 2);
    assert_eq!(nodes.lab.server.counters().gets, 0, "the other two have all of it");
    others.iter().for_each(|mount| assert_eq!(mount.metric("fs_errors_total"), 0));
}

// SEMANTICS: S4
#[test]
fn a_stopped_owner_is_answered_for_by_the_other_one() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 150]);
    files.put(&nodes.lab);
    let running = start_in_the_clear(&nodes, 3);
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &REPLICATED)).collect();
    files.read_epoch(&mounts.iter().collect::<Vec<_>>(), 1);
    assert_eq!(mounts.iter().map(blocks).sum::<u64>(), 2 * files.count() as u64);

    nodes.lab.server.reset_counters();
    running[0].stop();
    let others: Vec<&Mount> = mounts[1..].iter().collect();
    files.read_epoch(&others, 2);
    let won = others.iter().map(|mount| mount.metric("fs_peer_hedges_won_total")).sum::<u64>();
    let hedges = others.iter().map(|mount| mount.metric("fs_peer_hedges_total")).sum::<u64>();
    running[0].go_on();
    assert!(won > 0 && won <= hedges, "{won} of {hedges}");
    assert_eq!(nodes.lab.server.counters().gets, 0, "the other two have all of it");
    others.iter().for_each(|mount| assert_eq!(mount.metric("fs_errors_total"), 0));
}

// SEMANTICS: S2
#[test]
fn each_zone_has_a_copy_and_reads_its_own() {
    let nodes = Nodes::new(4);
    let files = Files::new([20_000; 150]);
    files.put(&nodes.lab);
    let zone = |n: usize| if n <= 2 { "east" } else { "west" };
    let peers: Vec<_> =
        (1..=4).map(|n| format!("{}={};zone={}", Nodes::name(n), Nodes::peer_address(n), zone(n))).collect();
    let peers = peers.join(",");
    let running: Vec<Node> = (1..=4).map(|n| nodes.start(n, &peering(n, &peers, &plaintext()))).collect();
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &REPLICATED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    nodes.lab.server.reset_counters();
    files.read_epoch(&mounts, 1);
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes());
    let (east, west) = mounts.split_at(2);
    for zone in [east, west] {
        assert_eq!(zone.iter().map(|mount| blocks(mount)).sum::<u64>(), files.count() as u64, "one copy in each zone");
    }

    // The west sends protocol, but no bytes of files to the east.
    let sent = || running[2].link.sent_bytes() + running[3].link.sent_bytes();
    let (before, from_peers_before) = (sent(), east.iter().map(|mount| from_peers(mount)).sum::<u64>());
    files.read_epoch(east, 2);
    let carried = east.iter().map(|mount| from_peers(mount)).sum::<u64>() - from_peers_before;
    assert_eq!(carried, files.total_bytes(), "each file was read from the other node by one of the two");
    assert!(sent() - before < files.total_bytes() / 10, "{} bytes came from the west", sent() - before);
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes());
}

// SEMANTICS: S2
#[test]
fn a_node_without_mounts_holds_its_share_for_the_others() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 150]);
    files.put(&nodes.lab);
    let flags = |n| peering(n, &listed(1..=3), &plaintext());
    let mut held = nodes.start_cachenode(3, &flags(3));
    let times_held = |node: &Node| node.log().matches("dataset held for other nodes").count();
    wait_until("it holds the dataset", || times_held(&held) == 1);
    let running: Vec<Node> = (1..=2).map(|n| nodes.start(n, &flags(n))).collect();
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    nodes.lab.server.reset_counters();
    files.read_epoch(&mounts, 1);
    assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes(), "each object once");
    let kept: u64 = mounts.iter().map(|mount| blocks(mount)).sum();
    let its = files.count() as u64 - kept;
    assert!(its > 20, "it holds {its} files");

    held.kill();
    nodes.lab.server.reset_counters();
    files.read_epoch(&mounts, 2);
    let gets = nodes.lab.server.counters().gets;
    assert!((its..=2 * its).contains(&gets), "{gets} GETs for the {its} files that it held");
    assert_eq!(mounts.iter().map(|mount| blocks(mount)).sum::<u64>(), kept, "no node keeps what it does not own");

    // Once the others have found it again, everything is as before: it has its cache.
    held.restart();
    wait_until("it holds the dataset again", || times_held(&held) == 2);
    wait_until("nothing is fetched", || {
        nodes.lab.server.reset_counters();
        files.read_epoch(&mounts, 3);
        nodes.lab.server.counters().gets == 0
    });
}
