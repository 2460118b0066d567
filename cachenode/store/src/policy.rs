//! Admission policies: which blocks are kept when not all of them fit.
//!
//! Its parts: [`Policy`] is the interface to a dataset's cache; [`build_policy`] builds the five that [`PolicyKind`]
//! names. `nr` keeps the first blocks admitted and never evicts. `smallest` keeps the smallest and never evicts; it
//! needs to know the [`Sizes`] of all blocks. `lru` and `fifo` evict the oldest by use and by admission. `random`
//! evicts any block.
//!
//! Invariant: an admission never leaves more bytes used than the capacity. A policy is pure: no I/O, no clock, and
//! randomness from a seed. A simulator with 100 million blocks therefore runs the same code as a node.
//!
//! Capacity counts the blocks' own bytes, so that NR's hit ratio is exactly cache / dataset. On disk, a block takes up
//! to 4 KiB more, plus 64 bytes, plus 4 bytes for each 64 KiB.
//!
//! Invariants: `nr` and `smallest` evict no block that the node should have. Where nodes share a dataset, a block that
//! another node owns now is dropped only when a block of this node needs its space; this happens before any policy
//! decides (ADR 12, ADR 17). The bytes in the store never exceed the reservation.

mod contract;
mod fifo;
mod lru;
mod nr;
mod queue;
mod random;
mod sizes;
mod smallest;
#[cfg(test)]
mod tests;

use larder_dataset::PolicyKind;

pub use contract::{Policy, Wish};
pub use sizes::Sizes;

use fifo::Fifo;
use lru::Lru;
use nr::Nr;
use random::Random;
use smallest::Smallest;

/// Builds an empty policy for blocks `0..blocks`. `nr` uses no memory per block, and `smallest` a bit. The others use
/// 12 bytes per block, which the system allocates only as blocks are touched. `seed` is for the random policy.
pub fn build_policy(kind: PolicyKind, capacity_bytes: u64, blocks: u32, seed: u64) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Nr => Box::new(Nr::new(capacity_bytes)),
        PolicyKind::Smallest => Box::new(Smallest::new(capacity_bytes, blocks)),
        PolicyKind::Lru => Box::new(Lru::new(capacity_bytes, blocks)),
        PolicyKind::Fifo => Box::new(Fifo::new(capacity_bytes, blocks)),
        PolicyKind::Random => Box::new(Random::new(capacity_bytes, blocks, seed)),
    }
}
