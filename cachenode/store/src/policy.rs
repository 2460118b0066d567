//! Admission policies: which blocks are kept when not all of them fit.
//!
//! The cast: [`Policy`] is what a dataset's cache asks; [`build_policy`] makes the four that [`PolicyKind`] names. `nr`
//! keeps the first blocks admitted and never evicts, `lru` and `fifo` evict the oldest by use and by admission,
//! `random` evicts any.
//!
//! Invariant: an admission never leaves more bytes used than the capacity. A policy is pure: no I/O and no clock, and
//! its randomness comes from a seed, so that a simulator with 100 million blocks runs the same code as a node.
//!
//! Capacity counts the blocks' own bytes, so that the hit ratio of NR is exactly cache / dataset. On disk a block takes
//! up to 4 KiB more, plus 64 bytes and 4 for each 64 KiB.
//!
//! Invariants: NR evicts no block that the node should have. Where nodes share a dataset, a block that another node
//! owns now is dropped when a block of this node needs its room, before any policy decides, and for no other reason
//! (ADR 12, ADR 17). The bytes in the store never exceed the reservation.

mod contract;
mod fifo;
mod lru;
mod nr;
mod queue;
mod random;
#[cfg(test)]
mod tests;

use larder_dataset::PolicyKind;

pub use contract::Policy;

use fifo::Fifo;
use lru::Lru;
use nr::Nr;
use random::Random;

/// An empty policy for blocks `0..blocks`. NR takes no memory for a block; the others take 12 bytes, which the system
/// provides as blocks are touched. `seed` is for random.
pub fn build_policy(kind: PolicyKind, capacity_bytes: u64, blocks: u32, seed: u64) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Nr => Box::new(Nr::new(capacity_bytes)),
        PolicyKind::Lru => Box::new(Lru::new(capacity_bytes, blocks)),
        PolicyKind::Fifo => Box::new(Fifo::new(capacity_bytes, blocks)),
        PolicyKind::Random => Box::new(Random::new(capacity_bytes, blocks, seed)),
    }
}
