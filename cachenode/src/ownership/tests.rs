use std::num::NonZeroU8;

use larder_dataset::manifest::{PackObject, PackedFile, PlainFile};
use larder_dataset::{BLOCK_BYTES, ManifestBuilder, NameRules, Placement, VersionTag};
use larder_peers::{Membership, Node, Peers, PeersConfig, Security};
use tokio::sync::watch;

use super::*;
use crate::manifest_file::open_manifest;

/// Nodes with these names, weights and zones.
fn list(nodes: &[(&str, u32, &str)]) -> Arc<Vec<Node>> {
    let node = |(&(name, weight, zone), at): (&(&str, u32, &str), u16)| Node {
        name: name.into(),
        address: ([127, 0, 0, 1], 1 + at).into(),
        weight,
        zone: zone.into(),
    };
    Arc::new(nodes.iter().zip(0..).map(node).collect())
}

const FOUR: [(&str, u32, &str); 4] = [("a", 1, ""), ("b", 1, ""), ("c", 1, ""), ("d", 1, "")];

/// A manifest in a file that is mapped.
fn mapped(builder: ManifestBuilder) -> Arc<MappedManifest> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manifest");
    std::fs::write(&path, builder.finish("d", "s3://b/d", 0).unwrap().to_bytes()).unwrap();
    Arc::new(open_manifest(&path).unwrap())
}

fn plain(sizes: impl IntoIterator<Item = u64>) -> Arc<MappedManifest> {
    let mut builder = ManifestBuilder::new();
    for (n, size) in sizes.into_iter().enumerate() {
        let path = format!("{:03}/{n:06}", n % 300);
        let version = VersionTag::MtimeSize { mtime_ns: 0, size };
        builder.push(&PlainFile { path: path.as_bytes(), size, mtime_ns: 0, version }, NameRules::FOLDER).unwrap();
    }
    mapped(builder)
}

/// Files of 100 KB, one after the other in one pack.
fn packed(files: u64) -> Arc<MappedManifest> {
    let mut builder = ManifestBuilder::new();
    for n in 0..files {
        let path = format!("{n:06}");
        let file = PackedFile {
            path: path.as_bytes(),
            size: 100_000,
            mtime_ns: 0,
            pack: 0,
            offset: n * 100_000,
            block_crcs: &[0],
        };
        builder.push_packed(&file).unwrap();
    }
    builder.set_packs(vec![PackObject { key: b"pack".to_vec(), size: files * 100_000, etag: String::new() }]);
    mapped(builder)
}

fn owned_by(own: &str, manifest: &Arc<MappedManifest>, placement: Placement, membership: Membership) -> OwnedBlocks {
    let peers = Peers::new(PeersConfig::default(), own, Security::Plaintext, membership, Arc::default());
    let sharing = Arc::new(Sharing::new(peers, manifest.snapshot().into(), placement, None));
    OwnedBlocks::new(Arc::clone(manifest), sharing)
}

fn blocks(manifest: &MappedManifest) -> Vec<BlockIndex> {
    (0..manifest.totals().blocks).map(BlockIndex).collect()
}

fn len_of(manifest: &MappedManifest, block: BlockIndex) -> u64 {
    let file = manifest.file(manifest.file_of_block(block).unwrap()).unwrap();
    let found = file.parts(0, file.size).find(|part| part.block == block);
    found.unwrap().block_len.into()
}

/// Sizes from none to several blocks.
fn some_sizes() -> Vec<u64> {
    (0..3000)
        .map(|n| if n % 500 == 7 { 3 * BLOCK_BYTES + n } else { n * 7_919 % 60_000 * u64::from(n % 5 > 0) })
        .collect()
}

// SEMANTICS: S2
#[tokio::test]
async fn every_block_is_owned_by_as_many_nodes_as_the_placement_says_and_disowned_by_the_others() {
    let (_sender, membership) = watch::channel(list(&FOUR));
    let replicated = Placement::Replicated(NonZeroU8::new(2).unwrap());
    for manifest in [plain(some_sizes()), packed(200)] {
        for placement in [Placement::Partitioned, replicated] {
            let (mut owners, mut bytes) = (vec![0_u8; manifest.totals().blocks as usize], 0);
            for (own, ..) in FOUR {
                let owned = owned_by(own, &manifest, placement, membership.clone());
                let mut disowned = blocks(&manifest);
                assert!(owned.retain_disowned(owned.version().unwrap(), &mut disowned));
                let its: Vec<_> =
                    blocks(&manifest).into_iter().filter(|block| disowned.binary_search(block).is_err()).collect();
                its.iter().for_each(|block| owners[block.0 as usize] += 1);
                // Of some of the blocks, with gaps, it says the same.
                let mut few: Vec<_> = blocks(&manifest).into_iter().filter(|block| block.0 % 97 < 2).collect();
                let expected: Vec<_> = few.iter().copied().filter(|block| disowned.contains(block)).collect();
                assert!(owned.retain_disowned(owned.version().unwrap(), &mut few));
                assert_eq!(few, expected);
                let share: u64 = its.iter().map(|&block| len_of(&manifest, block)).sum();
                assert_eq!(owned.bytes(), Some(share), "{own} reserves what it owns");
                bytes += share;
            }
            assert!(owners.iter().all(|&owners| owners == placement.copies()), "{placement}");
            assert_eq!(bytes, u64::from(placement.copies()) * manifest.totals().bytes, "{placement}");
        }
    }
}

// SEMANTICS: C1, S2
#[tokio::test]
async fn the_sizes_of_owned_blocks_are_counted_and_those_of_all_while_no_node_is_known() {
    let (sender, membership) = watch::channel(list(&FOUR));
    for manifest in [plain(some_sizes()), packed(200)] {
        let sizes_of = |blocks: &[BlockIndex]| {
            let mut sizes = Sizes::default();
            blocks.iter().for_each(|&block| sizes.add(len_of(&manifest, block) as u32));
            sizes
        };
        let owned = owned_by("b", &manifest, Placement::Partitioned, membership.clone());
        let (mut disowned, mut its) = (blocks(&manifest), blocks(&manifest));
        assert!(owned.retain_disowned(owned.version().unwrap(), &mut disowned));
        its.retain(|block| disowned.binary_search(block).is_err());
        assert_eq!(owned.sizes(), sizes_of(&its));
        sender.send_replace(list(&[]));
        assert_eq!(owned.sizes(), sizes_of(&blocks(&manifest)));
        assert_eq!(owned.sizes(), all_sizes(&manifest));
        sender.send_replace(list(&FOUR));
    }
}

#[test]
fn sampled_sizes_stand_for_all() {
    let manifest = plain([1000; 4 * RUN_FILES as usize]);
    assert_eq!(sizes_of(&manifest, 2 * RUN_FILES, |_, _| true), all_sizes(&manifest));
}

// SEMANTICS: S2
#[tokio::test]
async fn a_share_follows_weights_zones_and_the_list() {
    let (sender, membership) = watch::channel(list(&[]));
    let manifest = plain([10_000; 4000]);
    let all = manifest.totals().bytes;
    let share = |own: &str, placement| owned_by(own, &manifest, placement, membership.clone()).bytes();
    assert_eq!(share("a", Placement::Partitioned), None, "no node is known");
    let near = |own: &str, placement, percent: u64| {
        let share = share(own, placement).unwrap() * 100 / all;
        assert!(share.abs_diff(percent) <= 4, "{own}, {placement}: {share} % instead of {percent} %");
    };
    sender.send_replace(list(&[("a", 3, ""), ("b", 1, "")]));
    near("a", Placement::Partitioned, 75);
    near("b", Placement::Partitioned, 25);
    sender.send_replace(list(&[("a", 1, "east"), ("b", 1, "west"), ("c", 1, "west"), ("d", 1, "west")]));
    let two = Placement::Replicated(NonZeroU8::new(2).unwrap());
    near("a", two, 100);
    near("b", two, 33);
    assert_eq!(share("elsewhere", two), None, "who is not on the list may be soon");
}

// SEMANTICS: S2
#[tokio::test]
async fn a_share_that_is_sampled_holds_all_owned_blocks_and_little_more() {
    let (_sender, membership) = watch::channel(list(&FOUR));
    let manifest = plain((0..60_000).map(|n| n * 7_919 % 60_000));
    for (own, ..) in FOUR {
        let owned = owned_by(own, &manifest, Placement::Partitioned, membership.clone());
        let (exact, sampled) = (owned.bytes().unwrap(), owned.estimate(6_000).unwrap());
        assert!(sampled >= exact && sampled <= exact + exact / 4, "{own}: {sampled} for {exact}");
    }
}

#[tokio::test]
async fn disowned_blocks_of_an_old_list_of_nodes_are_not_reported_for_a_new_one() {
    let (sender, membership) = watch::channel(list(&FOUR));
    let manifest = plain(some_sizes());
    let owned = owned_by("a", &manifest, Placement::Partitioned, membership);
    let before = owned.version().unwrap();
    sender.send_replace(list(&FOUR[..2]));
    assert!(!owned.retain_disowned(before, &mut blocks(&manifest)));
    assert_ne!(owned.version(), Some(before));
}
