//! The names of the admission policies. The store implements the policies.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Determines what happens when the reservation of a cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// No replacement: the first blocks admitted stay.
    #[default]
    Nr,
    /// No replacement: the smallest blocks are admitted, and stay.
    Smallest,
    /// The least recently used block is evicted.
    Lru,
    /// The block admitted first is evicted.
    Fifo,
    /// A random block is evicted.
    Random,
}

impl PolicyKind {
    /// All policies, in the order in which they are displayed.
    pub const ALL: [Self; 5] = [Self::Nr, Self::Smallest, Self::Lru, Self::Fifo, Self::Random];

    /// The name, as [`FromStr`] parses it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nr => "nr",
            Self::Smallest => "smallest",
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Random => "random",
        }
    }

    /// True if the policy evicts blocks to make room for new ones.
    pub const fn evicts(self) -> bool {
        !matches!(self, Self::Nr | Self::Smallest)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that belongs to no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such policy: {name:?} (one of nr, smallest, lru, fifo, random)")]
pub struct UnknownPolicy {
    /// The unknown name.
    pub name: String,
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}
