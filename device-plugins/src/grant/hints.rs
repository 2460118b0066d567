//! Environment variables that name a container's HCAs: sysfs shows every container all of the node, and libraries would try
//! those that they cannot open.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{Gid, GidType, Hca, LinkLayer, Port};

/// For NCCL and UCX. Of HCAs with several ports those are named that are up, or all if none is; with `link_types` only ports
/// of these.
///
/// NCCL takes one index of a GID for all ports of RoCE, so it is left out if the ports have none in common: NCCL 2.21 and later
/// then looks for a v2 address at each port, by itself.
pub fn hints(hcas: &[&Hca], link_types: &[LinkLayer]) -> BTreeMap<String, String> {
    let ports: Vec<(&Hca, &Port)> = hcas.iter().flat_map(|hca| named(hca, link_types)).collect();
    if ports.is_empty() {
        return BTreeMap::new();
    }
    let names: Vec<String> = ports.iter().map(|(hca, port)| format!("{}:{}", hca.name, port.number)).collect();
    let names = names.join(",");
    // `=`: NCCL compares whole names; mlx5_1 would be mlx5_10, too.
    let mut hints =
        BTreeMap::from([("NCCL_IB_HCA".to_owned(), format!("={names}")), ("UCX_NET_DEVICES".to_owned(), names)]);
    let roce = ports.iter().map(|(_, port)| *port).filter(|port| port.link_layer == LinkLayer::Ethernet);
    if let Some(index) = common_index(&roce.collect::<Vec<_>>()) {
        hints.insert("NCCL_IB_GID_INDEX".to_owned(), index.to_string());
    }
    hints
}

fn named<'a>(hca: &'a Hca, link_types: &[LinkLayer]) -> Vec<(&'a Hca, &'a Port)> {
    let fits = |port: &&Port| link_types.is_empty() || link_types.contains(&port.link_layer);
    let is_one_up = hca.ports.iter().filter(fits).any(Port::is_up);
    hca.ports.iter().filter(fits).filter(|port| !is_one_up || port.is_up()).map(|port| (hca, port)).collect()
}

/// How good an address is for RoCE v2 between nodes; the lowest is the best.
fn rank(gid: &Gid) -> u8 {
    match gid.gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 0,
        [0xfe, second, ..] if second & 0xc0 == 0x80 => 2,
        _ => 1,
    }
}

/// The lowest index at which all ports have a v2 address of the best rank that any of them has.
fn common_index(ports: &[&Port]) -> Option<u32> {
    let v2 = |port: &'_ Port| -> Vec<(u8, u32)> {
        let gids = port.gids.iter().filter(|gid| gid.gid_type == GidType::V2);
        gids.map(|gid| (rank(gid), gid.index)).collect()
    };
    let best = ports.iter().flat_map(|port| v2(port)).min()?.0;
    let of_best = |port: &&Port| -> BTreeSet<u32> {
        v2(port).into_iter().filter(|(rank, _)| *rank == best).map(|(_, index)| index).collect()
    };
    let common = ports.iter().map(of_best).reduce(|all, these| &all & &these)?;
    common.first().copied()
}
