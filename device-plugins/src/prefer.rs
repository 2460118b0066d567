//! Chooses which of the available IDs a container should get.
//!
//! The parts: `near` chooses the exclusive IDs whose devices are nearest to each other, and `least_used` spreads shared
//! IDs.
//!
//! Invariant: equal inputs give equal results.

mod least_used;
mod near;
mod pool;

use crate::machine::Machine;
use crate::resource::Resource;
use pool::Pool;

/// Chooses `size` IDs: all of `must_include`, and the rest from `available`.
///
/// Exclusive IDs are chosen near to each other: by the NVLinks between their GPUs, then by the distance of their
/// devices on PCIe, then by NUMA node. Among equally near sets, the set that leaves the remaining IDs nearer to each
/// other wins. Shared IDs are spread over as many devices as possible, preferring devices with the fewest IDs in use.
/// Remaining ties are broken by PCI address.
///
/// An ID that the resource does not have is chosen only if it is in `must_include`. The result is longer than `size` if
/// `must_include` is, and shorter if too few IDs are available.
pub fn choose(
    machine: &Machine,
    resource: &Resource,
    available: &[String],
    must_include: &[String],
    size: usize,
) -> Vec<String> {
    let mut chosen: Vec<String> = Vec::new();
    for id in must_include {
        if !chosen.contains(id) {
            chosen.push(id.clone());
        }
    }
    let pool = Pool::new(machine, resource, available, &chosen);
    let more = size.saturating_sub(chosen.len());
    let units = if resource.config.share == 1 { near::choose(&pool, more) } else { least_used::choose(&pool, more) };
    chosen.extend(pool.ids(&units));
    chosen
}

#[cfg(test)]
mod tests;
