//! Chooses the nodes that hold a dataset before any pod requests it.
//!
//! A [`Candidate`] is a node that matches, together with the space that it has promised to other datasets. [`choose`]
//! prefers nodes that have already promised this dataset space, then nodes that have its bytes, then nodes with more
//! free space. It spreads equal candidates over zones. Bytes and space are compared in tenths, so that a few bytes do
//! not outweigh a zone.
//!
//! Invariants: no node is chosen beyond its capacity. The order of the candidates does not matter. A chosen node stays
//! chosen while it matches, has space, and the wanted number of nodes does not shrink.
//!
//! This module does not know whether a node can serve at the moment. The caller must leave out nodes that cannot.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use crate::BLOCK_BYTES;
use crate::score::tenths;

/// The most nodes, and the most promises, that a message lists.
const LISTED: usize = 5;

/// A node that may hold the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The node's name.
    pub name: String,
    /// The node's failure domain; empty if it has none. All nodes without one count as one zone.
    pub zone: String,
    /// The cache space of the node for all datasets, in bytes.
    pub capacity_bytes: u64,
    /// Why the node lacks space, in its own words; empty if it does not say so.
    pub full_because: String,
    /// The space of the node that is not available: each promise to another dataset, and to datasets that its pods have
    /// open.
    pub promised: Vec<Promise>,
    /// The space that the dataset wants on this node, in bytes: all of it, or the node's share.
    pub wanted_bytes: u64,
    /// The bytes of the dataset that the node has cached.
    pub cached_bytes: u64,
    /// True if the node has already promised this dataset space.
    pub is_chosen: bool,
}

/// Space on a node that is promised to another dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The other dataset, as messages name it.
    pub to: String,
    /// The size of the promise in bytes.
    pub bytes: u64,
}

impl Candidate {
    fn promised_bytes(&self) -> u64 {
        self.promised.iter().fold(0, |sum, promise| sum.saturating_add(promise.bytes))
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.promised_bytes())
    }

    fn has_room(&self) -> bool {
        self.promised_bytes().saturating_add(self.wanted_bytes) <= self.capacity_bytes
    }

    /// The candidate's rank without its zone.
    fn rank(&self) -> Reverse<(bool, u8, u8)> {
        Reverse((
            self.is_chosen,
            tenths(self.cached_bytes, self.wanted_bytes),
            tenths(self.free_bytes(), self.capacity_bytes),
        ))
    }
}

/// The share of `total` bytes that belongs to a node with `weight` of `weights` in total, if each block has `copies`
/// owners.
pub fn share_bytes(total: u64, copies: u8, weight: u64, weights: u64) -> u64 {
    let all = (u128::from(total) * u128::from(copies)).saturating_mul(u128::from(weight));
    let share =
        all.checked_div(u128::from(weights)).map_or(0, |share| share + u128::from(share * u128::from(weights) < all));
    u64::try_from(share).unwrap_or(u64::MAX).min(total)
}

/// The most disk space that `bytes` of a dataset take on a node. The whole dataset has `files` files with `total`
/// bytes. Each block has checksums and a header, and is rounded up to 4 KiB.
pub fn most_on_disk(bytes: u64, total: u64, files: u64) -> u64 {
    const RECORD_BYTES: u64 = 64 + 4 + 4095;
    let blocks = u128::from(files) + u128::from(total / BLOCK_BYTES);
    let all = u128::from(total) + u128::from(total / (64 << 10) * 4) + blocks * u128::from(RECORD_BYTES);
    let part = (all * u128::from(bytes)).checked_div(u128::from(total)).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The nodes that were chosen to hold a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The names of the nodes, sorted.
    pub nodes: Vec<String>,
    /// Why there are fewer nodes than wanted; `None` if there are enough.
    pub shortage: Option<Shortage>,
}

/// Too few nodes match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Too few nodes match the dataset's selector.
    Nodes {
        /// The wanted number of nodes. `None` if all matching nodes are wanted, and none matches.
        wanted: Option<usize>,
        /// The number of nodes that match.
        matching: usize,
    },
    /// The dataset wants more space than any of the nodes has in total.
    Larger {
        /// The node with the largest cache.
        node: String,
        /// The space that the dataset wants on that node, in bytes.
        wanted_bytes: u64,
        /// The capacity of that node in bytes.
        capacity_bytes: u64,
        /// Why that node lacks space; empty if it does not say so.
        full_because: String,
    },
    /// The space is promised to other datasets.
    Room {
        /// The wanted number of nodes.
        wanted: usize,
        /// The number of nodes that have space.
        found: usize,
        /// The nodes without space, those that lack least first.
        without: Vec<Candidate>,
    },
}

/// Chooses `count` of the candidates, or all of them if it is `None`. If too few have space, chooses those that have.
///
/// ```
/// use larder_dataset::nodes::{Candidate, choose};
///
/// let node = |name: &str, cached_bytes| Candidate {
///     name: name.into(),
///     capacity_bytes: 100,
///     wanted_bytes: 60,
///     cached_bytes,
///     ..Candidate::default()
/// };
/// let choice = choose(Some(1), vec![node("a", 0), node("b", 30)]);
/// assert_eq!((choice.nodes, choice.shortage), (vec!["b".to_owned()], None));
/// ```
pub fn choose(count: Option<usize>, mut candidates: Vec<Candidate>) -> Choice {
    candidates.sort_by(|a, b| a.name.cmp(&b.name));
    candidates.dedup_by(|later, earlier| later.name == earlier.name);
    let matching = candidates.len();
    let (mut fitting, without): (Vec<Candidate>, Vec<Candidate>) =
        candidates.into_iter().partition(Candidate::has_room);
    let wanted = count.unwrap_or(matching);
    // The sort is stable, so equal candidates stay sorted by name.
    fitting.sort_by_cached_key(Candidate::rank);
    let mut nodes = Vec::new();
    let mut in_zone: BTreeMap<String, usize> = BTreeMap::new();
    for equals in fitting.chunk_by(|a, b| a.rank() == b.rank()) {
        spread(equals, wanted, &mut in_zone, &mut nodes);
    }
    nodes.sort();
    let shortage = (nodes.len() < wanted || matching == 0 && count != Some(0))
        .then(|| shortage(count, matching, nodes.len(), without));
    Choice { nodes, shortage }
}

/// Adds equal candidates, each from the zone with the fewest chosen nodes, until `nodes` has the wanted number.
fn spread(equals: &[Candidate], wanted: usize, in_zone: &mut BTreeMap<String, usize>, nodes: &mut Vec<String>) {
    let mut by_zone: BTreeMap<&str, std::vec::IntoIter<&Candidate>> = BTreeMap::new();
    for candidate in equals {
        by_zone.entry(&candidate.zone).or_default();
    }
    for (zone, members) in &mut by_zone {
        *members = equals.iter().filter(|candidate| candidate.zone == **zone).collect::<Vec<_>>().into_iter();
    }
    while nodes.len() < wanted {
        let fewest = by_zone
            .iter()
            .filter(|(_, members)| members.len() > 0)
            .min_by_key(|(zone, _)| in_zone.get(**zone).copied().unwrap_or(0))
            .map(|(zone, _)| *zone);
        let Some(zone) = fewest else { return };
        nodes.extend(by_zone.get_mut(zone).and_then(Iterator::next).map(|candidate| candidate.name.clone()));
        *in_zone.entry(zone.to_owned()).or_default() += 1;
    }
}

fn shortage(count: Option<usize>, matching: usize, found: usize, mut without: Vec<Candidate>) -> Shortage {
    let too_small = |node: &Candidate| node.wanted_bytes > node.capacity_bytes;
    let largest = without.iter().max_by_key(|node| node.capacity_bytes);
    match largest {
        None => Shortage::Nodes { wanted: count, matching },
        Some(largest) if found == 0 && without.iter().all(too_small) => Shortage::Larger {
            node: largest.name.clone(),
            wanted_bytes: largest.wanted_bytes,
            capacity_bytes: largest.capacity_bytes,
            full_because: largest.full_because.clone(),
        },
        Some(_) => {
            without.sort_by_key(|node| node.wanted_bytes.saturating_sub(node.free_bytes()));
            Shortage::Room { wanted: count.unwrap_or(matching), found, without }
        }
    }
}

impl fmt::Display for Shortage {
    /// One sentence for each node that lacks room, such as `n3: wants 400 GiB; 500 GiB, of which coco 200, laion 100
    /// are promised`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes { wanted: None, .. } | Self::Nodes { matching: 0, .. } => f.write_str("no node matches"),
            Self::Nodes { wanted: Some(wanted), matching } => {
                write!(
                    f,
                    "{wanted} nodes are wanted, and {matching} {}",
                    if *matching == 1 { "matches" } else { "match" }
                )
            }
            Self::Larger { node, wanted_bytes, capacity_bytes, full_because } => {
                let unit = Unit::of(*wanted_bytes);
                write!(f, "wants {} {}; the largest cache, of {node}, has ", unit.up(*wanted_bytes), unit.name)?;
                write!(f, "{} {}", unit.down(*capacity_bytes), unit.name)?;
                if full_because.is_empty() { Ok(()) } else { write!(f, ": {full_because}") }
            }
            Self::Room { wanted, found, without } => {
                write!(f, "{found} of {wanted} nodes have room")?;
                for node in without.iter().take(LISTED) {
                    write!(f, "; {}", Arithmetic(node))?;
                }
                match without.len().saturating_sub(LISTED) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more nodes without room"),
                }
            }
        }
    }
}

/// Formats why a candidate has no space, in numbers.
struct Arithmetic<'a>(&'a Candidate);

impl fmt::Display for Arithmetic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.0;
        let unit = Unit::of(node.wanted_bytes);
        let name = unit.name;
        write!(
            f,
            "{}: wants {} {name}; {} {name}",
            node.name,
            unit.up(node.wanted_bytes),
            unit.down(node.capacity_bytes)
        )?;
        let mut promised: Vec<&Promise> = node.promised.iter().collect();
        promised.sort_by(|a, b| (b.bytes, &a.to).cmp(&(a.bytes, &b.to)));
        let rest = promised.split_off(promised.len().min(LISTED));
        for (nth, promise) in promised.iter().enumerate() {
            let lead = if nth == 0 { ", of which " } else { ", " };
            write!(f, "{lead}{} {}", promise.to, unit.up(promise.bytes))?;
        }
        if !rest.is_empty() {
            let bytes = rest.iter().fold(0u64, |sum, promise| sum.saturating_add(promise.bytes));
            write!(f, ", {} others {}", rest.len(), unit.up(bytes))?;
        }
        match node.promised.len() {
            0 => f.write_str(" in total"),
            1 => f.write_str(" is promised"),
            _ => f.write_str(" are promised"),
        }
    }
}

/// The unit of all numbers in one sentence, so that readers can add them up.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    bytes: u64,
}

impl Unit {
    fn of(bytes: u64) -> Self {
        let all = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let fits = all.into_iter().find(|(_, unit)| bytes >= *unit);
        let (name, bytes) = fits.unwrap_or(("bytes", 1));
        Self { name, bytes }
    }

    /// Formats available space, rounded down to a tenth.
    fn down(self, bytes: u64) -> String {
        Self::show(u128::from(bytes) * 10 / u128::from(self.bytes))
    }

    /// Formats wanted or promised space, rounded up to a tenth. The sum in a sentence therefore never suggests that
    /// there is enough space.
    fn up(self, bytes: u64) -> String {
        Self::show((u128::from(bytes) * 10).div_ceil(u128::from(self.bytes)))
    }

    fn show(tenths: u128) -> String {
        if tenths.is_multiple_of(10) { (tenths / 10).to_string() } else { format!("{}.{}", tenths / 10, tenths % 10) }
    }
}

#[cfg(test)]
mod tests;
