//! Blocks that a node passes on while it still fetches them.

use larder_e2e::Mount;
use larder_e2e::nodes::{Node, Nodes};
use larder_testkit::Fault;

use super::dataset::Files;
use super::flags::{PARTITIONED, listed, peering, plaintext};
use super::readers::wait_until;

// SEMANTICS: S1
#[test]
fn who_waits_for_an_owners_get_has_what_came_of_it_while_the_rest_is_awaited() {
    // So many that each node owns some, and so large that half of one is passed on.
    const FILES: usize = 20;
    let nodes = Nodes::new(2);
    let files = Files::new([1 << 20; FILES]);
    files.put(&nodes.lab);
    let running: Vec<Node> =
        (1..=2).map(|n| nodes.start_behind_proxy(n, &peering(n, &listed(1..=2), &plaintext()))).collect();
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    // Half of each body arrives, and no more.
    nodes.lab.proxy.set_hook(|request| if request.is_get_object() { Fault::Stall } else { Fault::None });
    let sent_before: Vec<u64> = running.iter().map(|node| node.link.sent_bytes()).collect();
    std::thread::scope(|scope| {
        for mount in &mounts {
            for n in 0..FILES {
                let files = &files;
                scope.spawn(move || files.check(mount.dir(), n).unwrap());
            }
        }
        wait_until("each node has passed on what arrived", || {
            // More than its requests to the origin.
            running.iter().zip(&sent_before).all(|(node, before)| node.link.sent_bytes() > before + 400_000)
        });
        assert_eq!(mounts.iter().map(|mount| mount.metric("fs_origin_gets_total")).sum::<u64>(), 0, "no GET is over");
        nodes.lab.proxy.set_hook(|_| Fault::None);
    });
    for mount in &mounts {
        assert_eq!(mount.metric("fs_errors_total"), 0);
    }
}
