//! Nodes that come and go.

use std::process::Command;

use larder_e2e::Mount;
use larder_e2e::certificates::replace;
use larder_e2e::nodes::{Node, Nodes};
use larder_testkit::built;

use super::dataset::Files;
use super::flags::{PARTITIONED, as_file, peering, plaintext};
use super::readers::{Readers, from_peers, wait_until, wait_until_served};

// SEMANTICS: S3
#[test]
fn membership_comes_from_a_watched_file_and_nodes_flap() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 300]);
    files.put(&nodes.lab);
    let file = nodes.lab.folder().join("peers");
    replace(&file, &as_file(1..=2));
    let watched = format!("@{}", file.display());
    // The third one runs as well, but is no member yet.
    let mut running: Vec<Node> = (1..=3).map(|n| nodes.start(n, &peering(n, &watched, &plaintext()))).collect();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mut third = mounts.pop().unwrap();
    let others: Vec<&Mount> = mounts.iter().collect();
    let readers = Readers::start(&files, &others, 4);
    readers.go_on_for(300);
    assert_eq!(third.metric("store_blocks"), 0, "a node that is no member is asked for nothing");
    others.iter().for_each(|mount| assert!(from_peers(mount) > 0));

    for turn in 0..4 {
        let text = as_file(1..=3);
        // Both by renaming and in place, where a reader may find half of the file.
        if turn % 2 == 0 {
            replace(&file, &text)
        } else {
            std::fs::write(&file, text).unwrap()
        }
        wait_until_served("as a member", &running[2], &others);
        if turn == 1 {
            running[2].kill();
            drop(third);
            readers.go_on_for(300);
            running[2].restart();
            third = running[2].mount(&nodes.lab.url(), &PARTITIONED);
            wait_until_served("as a member that came back", &running[2], &others);
        }
        replace(&file, &as_file(1..=2));
        wait_until("a node that is no member any more is asked for nothing", || {
            let sent = running[2].link.sent_bytes();
            readers.go_on_for(300);
            running[2].link.sent_bytes() < sent + 100_000
        });
        readers.assert_well("while nodes came and went");
    }

    // An invalid file changes nothing.
    let seen = running[0].log().len();
    replace(&file, "n1 nowhere\n");
    wait_until("the error in the file is logged", || running[0].log()[seen..].contains(file.to_str().unwrap()));
    wait_until_served("in spite of the file", &running[1], &others[..1]);

    replace(&file, &as_file(1..=3));
    wait_until_served("as a member for good", &running[2], &others);
    readers.finish();
    let all = [others[0], others[1], &third];
    files.read_epoch(&all, 1);
    nodes.lab.server.reset_counters();
    files.read_epoch(&all, 2);
    assert_eq!(nodes.lab.server.counters().gets, 0, "every file is kept by its owner");
}

#[test]
fn a_node_that_the_list_does_not_name_says_so_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, flags: &[&str]| {
        let output = Command::new(built(program))
            .arg("--cache-dir")
            .arg(folder.path().join("cache"))
            .args(flags)
            .env_clear()
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let listed = ["--peers=a=127.0.0.1:7401,b=127.0.0.1:7402", "--peer-plaintext", "--peer-listen=127.0.0.1:7403"];
    let said = run("larderd", &[&listed[..], &["--node-name=c"]].concat());
    assert!(said.contains("--node-name: c is not among --peers (a, b)"), "{said}");
    let said = run("cachenode", &["--dataset=s3://bucket/data"]);
    assert!(said.contains("set --peers and --peer-listen"), "{said}");
}
