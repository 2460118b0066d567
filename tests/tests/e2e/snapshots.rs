//! A new snapshot of a dataset on nodes that have cached an earlier one: only what changed is fetched.

use std::path::PathBuf;

use larder_e2e::nodes::{Node, Nodes};
use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::peers::{PARTITIONED, start_in_the_clear};

/// A dataset that changes.
#[derive(Clone)]
struct Tree {
    /// The file's number, and the version of its bytes.
    files: Vec<(u64, u64)>,
    bytes_most: u64,
}

impl Tree {
    fn new(lab: &Lab, files: u64, bytes_most: u64) -> Self {
        let tree = Self { files: (0..files).map(|file| (file, 0)).collect(), bytes_most };
        tree.files.iter().for_each(|file| tree.put(lab, *file));
        tree
    }

    fn path((number, _): (u64, u64)) -> String {
        format!("d{}/f{number:06}", number % 13)
    }

    fn bytes(&self, (number, version): (u64, u64)) -> Vec<u8> {
        seeded_bytes(number << 8 | version, 1 + (number * 7_919 + version * 104_729) % self.bytes_most)
    }

    fn put(&self, lab: &Lab, file: (u64, u64)) {
        lab.put(&Self::path(file), self.bytes(file));
    }

    /// Replaces one file in `part`, adds half as many new ones and removes as many. Returns those that are new or
    /// replaced.
    fn change(&mut self, lab: &Lab, part: usize) -> Vec<(u64, u64)> {
        let mut changed = Vec::new();
        let next = self.files.iter().map(|(number, _)| number + 1).max().unwrap_or_default();
        let (count, few) = (self.files.len(), self.files.len() / part / 2);
        for file in self.files.iter_mut().skip(part / 3).step_by(part) {
            file.1 += 1;
            changed.push(*file);
        }
        for removed in self.files.splice(count / 2..count / 2 + few, []).collect::<Vec<_>>() {
            assert!(lab.server.delete(larder_e2e::BUCKET, &format!("data/{}", Self::path(removed))));
            changed.retain(|file| *file != removed);
        }
        let added: Vec<(u64, u64)> = (next..next + few as u64).map(|number| (number, 0)).collect();
        self.files.extend(&added);
        changed.extend(added);
        changed.iter().for_each(|file| self.put(lab, *file));
        changed
    }

    fn total(&self, files: &[(u64, u64)]) -> u64 {
        files.iter().map(|file| self.bytes(*file).len() as u64).sum()
    }

    /// Reads all files, in an order of its own, each mount in another one.
    fn read(&self, mounts: &[&Mount], seed: u64) {
        std::thread::scope(|scope| {
            for (at, mount) in mounts.iter().enumerate() {
                let mut order = self.files.clone();
                order.shuffle(&mut StdRng::seed_from_u64(seed * 100 + at as u64));
                scope.spawn(move || {
                    for file in order {
                        let read = mount.read_fresh(Self::path(file)).unwrap();
                        assert!(read == self.bytes(file), "{} has wrong bytes", Self::path(file));
                    }
                });
            }
        });
        mounts.iter().for_each(|mount| mount.settle());
    }

    /// Reads all files. Exactly `changed` must come from the origin.
    fn read_and_count(&self, lab: &Lab, mounts: &[&Mount], changed: &[(u64, u64)], what: &str) {
        lab.server.reset_counters();
        for epoch in 0..2 {
            self.read(mounts, epoch);
            let counters = lab.server.counters();
            assert_eq!(counters.gets, changed.len() as u64, "{what}, epoch {epoch}: GETs");
            assert_eq!(counters.get_bytes, self.total(changed), "{what}, epoch {epoch}: bytes");
        }
        for file in changed {
            assert_eq!(lab.gets_of(&Self::path(*file)), 1, "{what}: {}", Self::path(*file));
        }
    }
}

/// Another mount on a cache, beside the one that lab.mount makes.
fn mount_beside(lab: &Lab, name: &str, beside: &str, flags: &[&str]) -> Mount {
    let dir: PathBuf = lab.folder().join(format!("mnt-{name}"));
    std::fs::create_dir_all(&dir).unwrap();
    let (cache, url) = (lab.cache_dir(beside), lab.url());
    let mut args = vec!["mount", &url, dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    args.extend(flags);
    lab.larder_ok(&args);
    Mount::standing(dir)
}

fn import(lab: &Lab) {
    lab.larder_ok(&["import", &lab.url()]);
}

// SEMANTICS: C16
#[test]
fn after_a_change_of_one_percent_of_20_000_files_one_percent_is_fetched() {
    let lab = Lab::new();
    let mut tree = Tree::new(&lab, 20_000, 600);
    let mount = lab.mount("big", &lab.url(), &[]);
    lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
    mount.settle();
    assert_eq!(mount.metric("store_blocks"), 20_000);
    drop(mount);
    let changed = tree.change(&lab, 100);
    import(&lab);
    lab.server.reset_counters();
    let mount = lab.mount("big", &lab.url(), &[]);
    lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
    mount.settle();
    let counters = lab.server.counters();
    assert_eq!((counters.gets, counters.get_bytes), (changed.len() as u64, tree.total(&changed)));
    assert_eq!(mount.metric("store_blocks"), tree.files.len() as u64);
    assert_eq!(mount.metric("store_adopted_total"), (tree.files.len() - changed.len()) as u64);
    // Every twentieth file, and all that changed.
    tree.files = tree.files.iter().copied().filter(|file| file.0 % 20 == 0 || changed.contains(file)).collect();
    tree.read(&[&mount], 1);
    assert_eq!(lab.server.counters().gets, changed.len() as u64);
}

// SEMANTICS: C16
#[test]
fn a_new_snapshot_is_read_at_once_beside_or_after_the_old_one_and_after_kills() {
    let lab = Lab::new();
    let mut tree = Tree::new(&lab, 600, 40_000);
    let mut old = Some((tree.clone(), lab.mount("old", &lab.url(), &[])));
    old.as_ref().unwrap().0.read(&[&old.as_ref().unwrap().1], 7);
    for round in 0..4 {
        if round == 2 {
            // Nothing is mounted: the cache is closed, or its process is killed.
            let (_, mount) = old.take().unwrap();
            mount.kill();
        }
        let changed = tree.change(&lab, 20);
        import(&lab);
        let name = format!("new-{round}");
        let new = match &old {
            Some(_) => mount_beside(&lab, &name, "old", &[]),
            None => lab.mount("old", &lab.url(), &[]),
        };
        tree.read_and_count(&lab, &[&new], &changed, &name);
        if let Some((tree, mount)) = &old {
            lab.server.reset_counters();
            tree.read(&[mount], 8);
            assert_eq!(lab.server.counters().gets, 0, "the old snapshot has what it had");
        } else {
            new.kill();
        }
    }
}

// SEMANTICS: C16
#[test]
fn a_packed_snapshot_with_more_packs_fetches_those_alone() {
    let lab = Lab::new();
    let tree = Tree::new(&lab, 300, 30_000);
    let packed = "s3://bucket/packed";
    let pack = || lab.larder_ok(&["pack", &lab.url(), packed, "--pack-size", "1MiB"]);
    pack();
    let mount = lab.mount("packed", packed, &[]);
    tree.read(&[&mount], 1);
    drop(mount);
    // Files that come last in the order of paths are added: the packs before them stay.
    let mut after = tree.clone();
    after.files.extend((1_000_000..1_000_020).filter(|number| number % 13 == 9).map(|number| (number, 0)));
    after.files.iter().skip(tree.files.len()).for_each(|file| after.put(&lab, *file));
    import(&lab);
    pack();
    let mount = lab.mount("packed", packed, &[]);
    lab.server.reset_counters();
    after.read(&[&mount], 2);
    let fetched = lab.server.counters().get_bytes;
    assert!(fetched < after.total(&after.files) / 2, "{fetched} bytes of {}", after.total(&after.files));
    assert!(mount.metric("store_adopted_bytes_total") > after.total(&after.files) / 2);
}

// SEMANTICS: C16
#[test]
fn nodes_that_share_a_dataset_fetch_what_changed_once_together() {
    let nodes = Nodes::new(3);
    let lab = &nodes.lab;
    let mut tree = Tree::new(lab, 400, 30_000);
    let publish = || {
        let manifest = format!("{}/.larder/manifest", lab.url());
        lab.larder_ok(&["import", &lab.url(), "--to", &manifest])
    };
    publish();
    let mut running: Vec<Node> = start_in_the_clear(&nodes, 3);
    let mount =
        |running: &[Node]| -> Vec<Mount> { running.iter().map(|node| node.mount(&lab.url(), &PARTITIONED)).collect() };
    let old = mount(&running);
    tree.read(&old.iter().collect::<Vec<_>>(), 1);
    for round in 0..2 {
        let changed = tree.change(lab, 20);
        publish();
        let new = mount(&running);
        tree.read_and_count(lab, &new.iter().collect::<Vec<_>>(), &changed, &format!("round {round}"));
        if round == 0 {
            drop(new);
            // Adopted blocks are there after a restart, too.
            for node in &mut running {
                node.kill();
                node.restart();
            }
        }
    }
}

// SEMANTICS: V5
#[test]
fn nodes_that_listed_different_snapshots_say_so_until_they_mount_one_that_is_published() {
    let nodes = Nodes::new(2);
    let lab = &nodes.lab;
    let mut tree = Tree::new(lab, 100, 10_000);
    let running: Vec<Node> = start_in_the_clear(&nodes, 2);
    // Each node lists for itself, and the bucket changes in between.
    let before = tree.clone();
    let first = running[0].mount(&lab.url(), &PARTITIONED);
    tree.change(lab, 20);
    let second = running[1].mount(&lab.url(), &PARTITIONED);
    let ids = [&first, &second].map(|mount| mount.stats()["dataset"]["snapshot"].as_str().unwrap().to_owned());
    assert_ne!(ids[0], ids[1]);
    let is_there = |mount: &Mount| mount.stats()["listing"]["other_snapshots"].as_str().map(str::to_owned);
    for (at, (mount, tree)) in [(&first, &before), (&second, &tree)].into_iter().enumerate() {
        let (node, other) = (&running[at], &running[1 - at]);
        mount.wait_until("the node says that the other has another snapshot", |mount| {
            // The first node's listing is out of date: what was replaced since is ESTALE.
            tree.files.iter().for_each(|file| drop(mount.read_fresh(Tree::path(*file))));
            is_there(mount).is_some()
        });
        let advice = is_there(mount).unwrap();
        assert!(advice.contains(&format!("{} has {}", other.name(), &ids[1 - at][..12])), "{advice}");
        assert!(advice.contains(&format!("larder import {0} --to {0}/.larder/manifest", lab.url())), "{advice}");
        let shown = node.larder(&["stats", mount.dir().to_str().unwrap()], None);
        assert!(String::from_utf8_lossy(&shown.stdout).contains(&advice), "{shown:?}");
        assert!(node.log().contains("another node serves a different snapshot of this origin"), "{}", node.log());
    }
    drop((first, second));
    lab.larder_ok(&["import", &lab.url(), "--to", &format!("{}/.larder/manifest", lab.url())]);
    let mounts: Vec<Mount> = running.iter().map(|node| node.mount(&lab.url(), &PARTITIONED)).collect();
    tree.read(&mounts.iter().collect::<Vec<_>>(), 3);
    for mount in &mounts {
        assert_eq!(is_there(mount), None, "they share one snapshot");
    }
}

// SEMANTICS: C16, C19
#[test]
fn a_dataset_of_another_server_gives_no_block_to_one_of_the_same_url() {
    let lab = Lab::new();
    let mut tree = Tree::new(&lab, 100, 10_000);
    // The same data at two addresses: as good as two tenants whose objects have the same names, sizes and ETags.
    let (one, other) = (lab.proxy.endpoint(), lab.server.endpoint());
    let mount = lab.mount("tenants", &lab.url(), &["--endpoint", &one]);
    tree.read(&[&mount], 1);
    drop(mount);
    // The very same snapshot, once after kill -9 as well.
    lab.larder_ok(&["import", &lab.url(), "--endpoint", &other]);
    let mount = lab.mount("tenants", &lab.url(), &["--endpoint", &other]);
    mount.kill();
    drop(mount);
    let mount = lab.mount("tenants", &lab.url(), &["--endpoint", &other]);
    tree.read_and_count(&lab, &[&mount], &tree.files, "the other tenant");
    drop(mount);
    // A newer one adopts what was cached at the same address alone.
    let changed = tree.change(&lab, 20);
    lab.larder_ok(&["import", &lab.url(), "--endpoint", &one]);
    let mount = lab.mount("tenants", &lab.url(), &["--endpoint", &one]);
    tree.read(&[&mount], 1);
    assert_eq!(mount.metric("store_adopted_total"), (tree.files.len() - changed.len()) as u64);
}
