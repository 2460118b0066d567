//! Peers that are dead, hung, cut off or slow.

use std::time::Duration;

use larder_e2e::Mount;
use larder_e2e::nodes::Nodes;

use super::dataset::Files;
use super::flags::{PARTITIONED, start_in_the_clear};
use super::readers::{Readers, wait_until_served};

/// The read deadline of the mounts. Within it a peer in trouble is given up and the origin asked.
const READ_DEADLINE: Duration = Duration::from_secs(30);

// SEMANTICS: S4
#[test]
fn readers_outlive_a_peer_that_is_killed_stopped_cut_off_or_slow() {
    let nodes = Nodes::new(4);
    let files = Files::new([20_000; 400]);
    files.put(&nodes.lab);
    let mut running = start_in_the_clear(&nodes, 4);
    let deadline = format!("{}s", READ_DEADLINE.as_secs());
    let flags = [&PARTITIONED[..], &["--read-deadline", &deadline]].concat();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &flags)).collect();
    // The first node is the one in trouble. It has no reader, so all that it sends is for its peers.
    let mut troubled = mounts.remove(0);
    let others: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&others, 1);

    let readers = Readers::start(&files, &others, 16);
    let in_trouble = |what: &str| {
        // Long enough for the first requests to end, and for a retry.
        std::thread::sleep(Duration::from_secs(2));
        readers.go_on_for(1_000);
        readers.assert_well(what);
    };
    wait_until_served("before any trouble", &running[0], &others);

    running[0].kill();
    drop(troubled);
    in_trouble("killed");
    running[0].restart();
    troubled = running[0].mount(&nodes.lab.url(), &flags);
    wait_until_served("after the restart", &running[0], &others);

    running[0].stop();
    in_trouble("stopped");
    running[0].go_on();
    wait_until_served("when it goes on", &running[0], &others);

    running[0].link.cut();
    in_trouble("cut off");
    running[0].link.join();
    wait_until_served("when it is joined again", &running[0], &others);

    running[0].link.slow();
    in_trouble("slow");
    running[0].link.speed_up();
    wait_until_served("when it is fast again", &running[0], &others);

    let longest = readers.finish();
    assert!(longest < READ_DEADLINE, "a read took {longest:?}");
    for mount in &others {
        assert_eq!(mount.metric("fs_errors_total"), 0);
    }
    drop(troubled);
}
