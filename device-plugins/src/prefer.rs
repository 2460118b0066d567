//! Which of the available IDs a container should get.
//!
//! The cast: `near` chooses among exclusive IDs those whose devices are nearest to each other, and `least_used` spreads shared IDs.
//!
//! Invariant: equal questions have equal answers.

mod least_used;
mod near;
mod pool;

use crate::machine::Machine;
use crate::resource::Resource;
use pool::Pool;

/// Chooses `size` IDs: those of `must_include`, and others of `available`.
///
/// Exclusive IDs are chosen near to each other: by the NVLinks between their GPUs, then by the distance of their devices on PCIe,
/// then by NUMA node; of equally near ones, those that leave the other available ones nearer to each other. Shared IDs are chosen on
/// as many devices as can be, and on those of which the fewest IDs are taken. What is equal after that goes by PCI address.
///
/// An ID that the resource does not have is chosen only if it is in `must_include`. The answer is longer than `size` if
/// `must_include` is, and shorter if there are too few IDs.
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
