//! Programs of two versions beside each other. (A node's larderd alone: `takeover`.)

use std::path::PathBuf;

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Mount, Plugin, wait_until};
use larder_testkit::{built, earlier, larder_binary};
use serde_json::Value;

use crate::csi::{bytes, publish};

// SEMANTICS: P11
#[test]
fn the_command_works_with_a_daemon_one_minor_version_away() {
    let Some(earlier) = earlier("larder") else { return };
    for (first, second) in [(earlier.clone(), larder_binary()), (larder_binary(), earlier)] {
        let lab = Lab::new();
        lab.put("a", b"1".to_vec());
        lab.put_other("b", b"2".to_vec());
        let cache = lab.cache_dir("m");
        let run = |program: &PathBuf, args: &[&str]| {
            let output = lab.program(program.clone(), args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} {args:?}: {said}", program.display());
            String::from_utf8(output.stdout).unwrap()
        };
        let mount = |program: &PathBuf, url: &str, name: &str| {
            let dir = lab.folder().join(name);
            std::fs::create_dir(&dir).unwrap();
            run(program, &["mount", url, dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()]);
            Mount::of(dir)
        };
        let one = mount(&first, &lab.url(), "one");
        // It joins the daemon of the first.
        let two = mount(&second, &lab.other_url(), "two");
        assert_eq!(one.pid(), two.pid());
        assert_eq!(std::fs::read(one.path("a")).unwrap(), b"1");
        assert_eq!(std::fs::read(two.path("b")).unwrap(), b"2");
        for dir in [one.dir(), two.dir()] {
            let dir = dir.to_str().unwrap();
            let stats: Value = serde_json::from_str(&run(&second, &["stats", dir, "--json"])).unwrap();
            assert_eq!(stats["stats"]["process"]["pid"], one.pid());
            run(&second, &["warm", dir, "--wait"]);
            run(&second, &["verify", dir]);
        }
        run(&second, &["umount", one.dir().to_str().unwrap()]);
        run(&second, &["umount", two.dir().to_str().unwrap()]);
        // Dropping them would unmount them again.
        std::mem::forget((one, two));
    }
}

// SEMANTICS: P11, K1
#[test]
fn readers_outlive_an_upgrade_of_a_node_in_any_order_and_its_way_back() {
    const FILES: u64 = 20;
    let (Some(_), Some(_)) = (earlier("larderd"), earlier("larder-csi")) else { return };
    for order in [["larderd", "larder-csi"], ["larder-csi", "larderd"]] {
        let lab = Lab::new();
        (0..FILES).for_each(|i| lab.put(&format!("f{i}"), bytes(i)));
        let mut larderd = Larderd::start(&lab, "skew", &[]);
        let mut plugin = Plugin::start(&lab, &larderd, &[]);
        let _in_runtime = lab.runtime().enter();
        let mut node = NodeClient::new(plugin.channel());
        // Both are of this version first: the rest goes back, and forth again.
        let mut targets = Vec::new();
        for is_earlier in [false, true, false] {
            for name in order {
                let program = if is_earlier { earlier(name).unwrap() } else { built(name) };
                if name == "larderd" {
                    larderd.terminate();
                    larderd.set_program(program);
                    larderd.restart();
                } else {
                    plugin.kill();
                    plugin.set_program(program);
                    plugin.restart();
                }
                // A pod that comes between two steps.
                let target = plugin.path(&format!("kubelet/pods/{}", targets.len()));
                wait_until("the volume is published", || {
                    lab.runtime().block_on(node.node_publish_volume(publish(&lab, &target))).is_ok()
                });
                targets.push(target);
                wait_until("both hold the connection", || larderd.connections() >= 1 && plugin.connections() >= 1);
                for (target, i) in targets.iter().flat_map(|target| (0..FILES).map(move |i| (target, i))) {
                    let file = std::fs::File::open(target.join(format!("f{i}"))).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut got = Vec::new();
                    std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
                    assert!(got == bytes(i), "{order:?}, {name}: f{i} has wrong bytes");
                }
            }
        }
    }
}
