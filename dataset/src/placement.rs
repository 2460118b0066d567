//! Placement: which nodes own which blocks of a dataset, by weighted rendezvous hashing.
//!
//! [`Members`] are the nodes, a [`PlaceKey`] is a unit of placement (a block of a file, or an extent of a pack), and
//! [`Placement`] determines how many nodes own each. For each key, every member draws a waiting time from an
//! exponential distribution whose rate is the member's weight. The draw depends only on a hash of the member's name and
//! the key. The members with the shortest times own the key. A member's chance to be first is its share of all weights.
//! No draw depends on another member: a member that leaves gives away only the keys that it owned, and a member that
//! joins takes only the keys that it will own.
//!
//! Invariant: the same members and key give the same owners on every node and machine, in any order of the list of
//! members. Members' names are therefore hashed with SHA-256. The rest uses integers and only those operations on f64
//! (`+ - * /`, comparison) whose results IEEE 754 defines to the last bit. It does not define `f64::ln`, which is not
//! used. A change of the function would move every dataset of every cluster, so a table in the tests fixes it.
//!
//! This module does not know which nodes are alive or what they have cached. Two nodes that see different members may
//! compute different owners. That causes an extra GET, since the requested owner may have to fetch a block that the
//! other one has. It never causes a wrong byte, since a block is checked against its snapshot, whichever node it comes
//! from.

use std::fmt;
use std::num::NonZeroU8;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Up to this many owners are found without an allocation.
const FEW: usize = 8;

/// How a dataset's blocks are distributed over the nodes that cache it.
///
/// ```
/// use larder_dataset::{Member, Members, PlaceKey, Placement};
///
/// let placement: Placement = "replicated:2".parse()?;
/// let member = |name: &str, zone: &str| Member { name: name.into(), weight: 1, zone: zone.into() };
/// let members = Members::new([member("a", "west"), member("b", "west"), member("c", "east")]);
///
/// let owners = members.owners(placement, PlaceKey::of_origin("s3://bucket/pets").name(b"cat.jpg").number(0));
/// assert_eq!(owners.len(), 2);
/// assert_ne!(members.get(owners[0]).zone, members.get(owners[1]).zone);
/// # Ok::<(), larder_dataset::PlacementError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// Each node caches the blocks that it reads; no block has an owner.
    #[default]
    Local,
    /// Each block has one owner, so that the nodes' caches add up.
    Partitioned,
    /// Each block has this many owners, in different zones if there are enough zones. One is equivalent to
    /// `Partitioned`.
    Replicated(NonZeroU8),
}

/// A text that is not a placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placement {given:?} is invalid: use local, partitioned or replicated:N (N copies, 1 to 255)")]
pub struct PlacementError {
    /// The invalid text.
    pub given: String,
}

impl Placement {
    /// The number of nodes that own each block, if there are that many nodes.
    pub const fn copies(self) -> u8 {
        match self {
            Self::Local => 0,
            Self::Partitioned => 1,
            Self::Replicated(copies) => copies.get(),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Partitioned => f.write_str("partitioned"),
            Self::Replicated(copies) => write!(f, "replicated:{copies}"),
        }
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

impl TryFrom<String> for Placement {
    type Error = PlacementError;

    fn try_from(text: String) -> Result<Self, PlacementError> {
        text.parse()
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    /// Accepts exactly the texts that `Display` writes.
    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let placement = match text.strip_prefix("replicated:") {
            Some(copies) => copies.parse().ok().map(Self::Replicated),
            None if text == "local" => Some(Self::Local),
            None if text == "partitioned" => Some(Self::Partitioned),
            None => None,
        };
        // Rust also parses `+2` and `02` as integers, so compare with the canonical text.
        placement
            .filter(|placement| placement.to_string() == text)
            .ok_or_else(|| PlacementError { given: text.to_owned() })
    }
}

/// A unit of placement: a hash of a block's source. It is computed from the origin's URL, the names from the file up to
/// the folder in the root (or the key of the pack), and the number of the block in the file (or of the extent in the
/// pack). It excludes the snapshot: a file has the same owners in every snapshot of its origin.
///
/// ```
/// use larder_dataset::PlaceKey;
///
/// // The second block of `train/cat.jpg`.
/// let origin = PlaceKey::of_origin("s3://bucket/pets");
/// let key = origin.name(b"cat.jpg").name(b"train").number(1);
/// assert_ne!(key, origin.name(b"train").name(b"cat.jpg").number(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlaceKey(u64);

impl PlaceKey {
    /// The key from which all keys of an origin are derived.
    pub fn of_origin(url: &str) -> Self {
        Self(0).name(url.as_bytes())
    }

    /// The key of the entry with this name below the entry that `self` is the key of.
    #[must_use]
    pub fn name(self, name: &[u8]) -> Self {
        let (words, rest) = name.as_chunks::<8>();
        let state = words.iter().fold(absorb(self.0, name.len() as u64), |state, word| absorb(state, le_word(word)));
        Self(absorb(state, le_word(rest)))
    }

    /// The key of part `number` of the entry that `self` is the key of.
    #[must_use]
    pub fn number(self, number: u64) -> Self {
        Self(absorb(self.0, number))
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The node's name, which must be the same everywhere in the cluster.
    pub name: String,
    /// The node's share relative to the weights of the others, for example the size of its cache. A node with 0 owns no
    /// block.
    pub weight: u32,
    /// The node's failure domain: a rack, or a zone of a cloud. All members without a zone count as one zone, since
    /// they may fail together.
    pub zone: String,
}

/// All nodes of a cluster, sorted by name. Immutable; any number of threads may share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Members {
    members: Vec<Member>,
    /// The members with a weight above 0, in the same order.
    entrants: Vec<Entrant>,
    /// The number of zones that have an entrant.
    zone_count: usize,
}

/// A member's data for a draw, kept compact for the one pass over all members.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entrant {
    /// The hash of the member's name.
    seed: u64,
    /// The mean of the member's waiting times: 1 / weight.
    mean_wait: f64,
    /// The member's position in the list of members.
    at: u32,
    /// The number of the member's zone.
    zone: u32,
}

/// An entrant that may turn out to be an owner.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    wait: f64,
    at: u32,
    zone: u32,
}

impl Candidate {
    /// A placeholder that every real candidate beats.
    const NOBODY: Self = Self { wait: f64::INFINITY, at: u32::MAX, zone: u32::MAX };
}

impl Members {
    /// Creates the list. The order of `members` does not matter, not even if several have the same name (a node may
    /// appear in more than one EndpointSlice). Among members with the same name, the one with the largest weight
    /// counts; among equal weights, the one whose zone sorts last.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut members: Vec<Member> = members.into_iter().collect();
        members.sort_by(|a, b| (&a.name, b.weight, &b.zone).cmp(&(&b.name, a.weight, &a.zone)));
        members.dedup_by(|later, earlier| later.name == earlier.name);

        let weighted = || members.iter().filter(|member| member.weight > 0);
        let mut zones: Vec<&str> = weighted().map(|member| member.zone.as_str()).collect();
        zones.sort_unstable();
        zones.dedup();
        let entrants = members.iter().zip(0..).filter(|(member, _)| member.weight > 0).map(|(member, at)| Entrant {
            seed: first_word(&Sha256::digest(&member.name).into()),
            mean_wait: 1.0 / f64::from(member.weight),
            at,
            zone: zones.partition_point(|zone| *zone < member.zone.as_str()) as u32,
        });
        let (entrants, zone_count) = (entrants.collect(), zones.len());
        Self { members, entrants, zone_count }
    }

    /// All members, sorted by name.
    pub fn iter(&self) -> std::slice::Iter<'_, Member> {
        self.members.iter()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True if there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The member at a position. Panics if the position is out of range; every position that [`Members::owners`]
    /// returns is valid.
    pub fn get(&self, at: u32) -> &Member {
        &self.members[at as usize]
    }

    /// The position of the member with this name. None if there is no such member.
    pub fn position(&self, name: &str) -> Option<u32> {
        self.members.binary_search_by(|member| member.name.as_str().cmp(name)).ok().map(|at| at as u32)
    }

    /// The positions of the owners of `key`, best first. There are as many as `placement` requires, or all members with
    /// a weight if those are fewer. Under `Partitioned`, the first one is the only owner. The others are in different
    /// zones, in the order of each zone's best member. Once every zone has an owner, the best of the remaining members
    /// follow.
    ///
    /// Makes one pass over the members. Does not allocate for up to eight owners.
    pub fn owners(&self, placement: Placement, key: PlaceKey) -> Owners {
        let copies = usize::from(placement.copies()).min(self.entrants.len());
        let mut owners = Owners::default();
        if copies == 0 {
            return owners;
        }
        let (mut few, mut many) = ([Candidate::NOBODY; 2 * FEW], Vec::new());
        let candidates = if copies <= FEW {
            &mut few[..]
        } else {
            many.resize(2 * copies, Candidate::NOBODY);
            &mut many[..]
        };
        // The best member of each zone, and the best of all members for when every zone has an owner.
        let (zone_best, best) = candidates.split_at_mut(copies.min(self.zone_count));
        let best = &mut best[..if zone_best.len() < copies { copies } else { 0 }];

        let mut slowest = f64::INFINITY;
        for entrant in &self.entrants {
            let chance = chance(entrant.seed, key);
            // -ln(1 - x) >= x, so this cheap lower bound excludes most entrants without the logarithm.
            if chance * entrant.mean_wait >= slowest {
                continue;
            }
            let wait = exponential(chance) * entrant.mean_wait;
            let candidate = Candidate { wait, at: entrant.at, zone: entrant.zone };
            let same_zone = zone_best.iter().position(|held| held.zone == candidate.zone);
            insert(zone_best, same_zone, candidate);
            insert(best, None, candidate);
            slowest = last_wait(zone_best).max(last_wait(best));
        }

        for candidate in zone_best {
            owners.push(candidate.at);
        }
        for candidate in best {
            if owners.len() < copies && !owners.contains(&candidate.at) {
                owners.push(candidate.at);
            }
        }
        owners
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = std::slice::Iter<'a, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The positions of owners, best first. Dereferences to a slice.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    few: [u32; FEW],
    len: usize,
    /// All positions, if there are more than `few` can hold.
    many: Vec<u32>,
}

impl Owners {
    fn push(&mut self, at: u32) {
        if self.len < FEW {
            self.few[self.len] = at;
        } else {
            if self.len == FEW {
                self.many.extend(self.few);
            }
            self.many.push(at);
        }
        self.len += 1;
    }
}

impl Deref for Owners {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        if self.len <= FEW { &self.few[..self.len] } else { &self.many }
    }
}

/// Inserts a candidate into a sorted list. It replaces the candidate at `replaced`, or else the last one, unless it
/// waits longer than that one. Among candidates with equal times, the earlier member stays ahead.
fn insert(list: &mut [Candidate], replaced: Option<usize>, candidate: Candidate) {
    let Some(out) = replaced.or(list.len().checked_sub(1)) else { return };
    let place = list.partition_point(|held| held.wait <= candidate.wait);
    if place <= out {
        list.copy_within(place..out, place + 1);
        list[place] = candidate;
    }
}

/// The waiting time of a list's last candidate. For an empty list 0, which is less than any other.
fn last_wait(list: &[Candidate]) -> f64 {
    list.last().map_or(0.0, |held| held.wait)
}

/// A member's draw for a key: one of 2^52 equally likely numbers between 0 and 1, both excluded.
fn chance(seed: u64, key: PlaceKey) -> f64 {
    let bits = mix(seed ^ key.0) >> 12;
    // An f64 holds a 52-bit integer plus 0.5 exactly, so neither this number nor 1 minus it is rounded.
    (bits as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64)
}

/// -ln(1 - chance), and never less than `chance`: a waiting time from the exponential distribution with mean 1, at the
/// quantile `chance`.
///
/// `f64::ln` may differ in the last bit between machines. This function cannot; see the module's documentation.
fn exponential(chance: f64) -> f64 {
    /// 1 / (2n + 1). Since t is at most 1/3, the truncated terms are less than 1e-8 of the result.
    const TERMS: [f64; 8] = [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0];
    let (mut rest, mut wait) = (1.0 - chance, 0.0);
    while rest < 0.5 {
        rest *= 2.0;
        wait += std::f64::consts::LN_2;
    }
    // -ln(rest) = 2 atanh(t) = 2 (t + t^3/3 + t^5/5 + ...)
    let t = (1.0 - rest) / (1.0 + rest);
    let series = TERMS.iter().rev().fold(0.0, |sum, term| sum * (t * t) + term);
    wait + 2.0 * t * series
}

/// Mixes a word into the state of a hash. The result is number `word` of the SplitMix64 generator that starts from this
/// state.
fn absorb(state: u64, word: u64) -> u64 {
    mix(state.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// SplitMix64's mixing function. Each bit of the input flips each bit of the output with probability one half.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The first eight bytes of a SHA-256. Any other eight would serve as well.
fn first_word(hash: &[u8; 32]) -> u64 {
    le_word(&hash[..8])
}

/// Converts up to eight bytes to a little-endian number.
fn le_word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests;
