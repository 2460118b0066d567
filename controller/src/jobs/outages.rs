//! Outages: so many nodes of a zone are not ready at once that the kubelets cannot reach the API server, rather than
//! that all these nodes have failed. Programs go on during an outage, so none of its nodes is lost.

use std::collections::BTreeMap;

use crate::objects::Node;
use crate::time::Seconds;
use larder_kube::store::Store;

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// An outage leaves at least this many nodes of a zone not ready, unless it leaves all nodes of the cluster not ready.
/// Two nodes may fail at once.
const FEWEST: usize = 3;

/// An outage leaves more than one of this many nodes of a zone not ready.
const SHARE: usize = 3;

/// How long kubelets may take to report again after an outage, or after this process has seen the zone for the first
/// time: it does not know about earlier outages.
const SETTLE_SECONDS: i64 = 60;

#[derive(Debug, Default)]
pub struct Outages {
    zones: BTreeMap<String, Zone>,
}

#[derive(Debug)]
struct Zone {
    is_out: bool,
    /// When it was last seen to have an outage, or the end of one. Until then, when it was first seen.
    last: Seconds,
}

impl Outages {
    /// Counts the nodes that are not ready. Returns the zones in which an outage has begun (true) or ended (false).
    pub fn refresh(&mut self, nodes: &Store<Node>, now: Seconds) -> Vec<(String, bool)> {
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for node in nodes.iter() {
            let (unready, all) = counts.entry(zone(node)).or_default();
            *unready += usize::from(!node.ready);
            *all += 1;
        }
        let is_total = counts.values().all(|(unready, all)| unready == all);
        self.zones.retain(|zone, _| counts.contains_key(zone.as_str()));
        let mut changed = Vec::new();
        for (zone, (unready, all)) in counts {
            let is_out = is_total || unready >= FEWEST && unready * SHARE > all;
            let known = self.zones.entry(zone.to_owned()).or_insert(Zone { is_out: false, last: now });
            if is_out != known.is_out {
                changed.push((zone.to_owned(), is_out));
            }
            // Nothing may have happened between the beginning of an outage and its end.
            if is_out || known.is_out {
                known.last = now;
            }
            known.is_out = is_out;
        }
        changed
    }

    /// When a node is lost that may be not ready for `after` seconds; `None` while it is ready or has an outage.
    pub fn lost_at(&self, node: &Node, after: i64) -> Option<Seconds> {
        let lost_at = Seconds(node.unready_since?) + after;
        match self.zones.get(zone(node)) {
            Some(Zone { is_out: true, .. }) => None,
            Some(Zone { last, .. }) => Some(lost_at.max(*last + SETTLE_SECONDS)),
            None => Some(lost_at),
        }
    }
}

/// The zone of a node; empty if it has none.
fn zone(node: &Node) -> &str {
    node.labels.get(ZONE_LABEL).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_kube::key::{Key, Meta};

    const NOW: Seconds = Seconds(1_000_000);

    /// The nodes of two zones. The first `unready` of each are not ready since `NOW`.
    fn cluster(sizes: [usize; 2], unready: [usize; 2]) -> Store<Node> {
        let mut nodes = Store::default();
        for (at, zone) in ["a", "b"].into_iter().enumerate() {
            for nth in 0..sizes[at] {
                let is_unready = nth < unready[at];
                nodes.put(Node {
                    meta: Meta { key: Key::cluster(&format!("{zone}{nth}")), ..Meta::default() },
                    labels: [(ZONE_LABEL.to_owned(), zone.to_owned())].into(),
                    ready: !is_unready,
                    unready_since: is_unready.then_some(NOW.0),
                    ..Node::default()
                });
            }
        }
        nodes
    }

    /// When the first node of each zone is lost that is not ready since `NOW`, in a cluster that was seen long before.
    fn lost_at(sizes: [usize; 2], unready: [usize; 2]) -> [Option<i64>; 2] {
        let mut outages = Outages::default();
        outages.refresh(&cluster(sizes, [0, 0]), NOW - 1_000);
        let nodes = cluster(sizes, unready);
        outages.refresh(&nodes, NOW);
        ["a0", "b0"].map(|name| {
            let node = nodes.get(&Key::cluster(name)).expect("a node");
            outages.lost_at(node, 60).map(|at| at - NOW)
        })
    }

    // SEMANTICS: J5
    #[test]
    fn no_node_is_lost_while_more_than_a_third_of_its_zone_is_not_ready() {
        assert_eq!(lost_at([9, 9], [0, 0]), [None, None], "they are ready");
        assert_eq!(lost_at([9, 9], [3, 0]), [Some(60), None]);
        assert_eq!(lost_at([9, 9], [4, 0]), [None, None]);
        assert_eq!(lost_at([9, 9], [4, 3]), [None, Some(60)], "zones count apart");
        assert_eq!(lost_at([9, 9], [9, 0]), [None, None], "a whole zone");
        // Two nodes fail, also where a zone has only two.
        assert_eq!(lost_at([2, 9], [2, 0]), [Some(60), None]);
        assert_eq!(lost_at([1, 1], [1, 0]), [Some(60), None]);
        // If no node is ready, no other node could run the pods.
        assert_eq!(lost_at([1, 1], [1, 1]), [None, None]);
    }

    // SEMANTICS: J5
    #[test]
    fn nodes_that_return_last_from_an_outage_have_a_minute() {
        let mut outages = Outages::default();
        outages.refresh(&cluster([9, 9], [0, 0]), NOW - 1_000);
        let both = |is_out: bool| vec![("a".to_owned(), is_out), ("b".to_owned(), is_out)];
        assert_eq!(outages.refresh(&cluster([9, 9], [9, 9]), NOW), both(true));
        assert_eq!(outages.refresh(&cluster([9, 9], [9, 9]), NOW + 1), []);
        let late = cluster([9, 9], [1, 0]);
        assert_eq!(outages.refresh(&late, NOW + 300), both(false));
        let node = late.get(&Key::cluster("a0")).expect("a node");
        assert_eq!(outages.lost_at(node, 60), Some(NOW + 360));
        assert_eq!(outages.lost_at(node, 3_600), Some(NOW + 3_600), "a job may wait longer");
        outages.refresh(&late, NOW + 330);
        assert_eq!(outages.lost_at(node, 60), Some(NOW + 360), "it does not start again");
    }

    #[test]
    fn a_new_controller_does_not_know_of_an_outage_that_has_ended() {
        let mut outages = Outages::default();
        let late = cluster([9, 9], [1, 0]);
        outages.refresh(&late, NOW + 400);
        let node = late.get(&Key::cluster("a0")).expect("a node");
        assert_eq!(outages.lost_at(node, 60), Some(NOW + 460));
    }
}
