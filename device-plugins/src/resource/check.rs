//! What is wrong with a configuration on this machine.

use super::device::candidates;
use crate::config::{Config, Kind, Refusal};
use crate::machine::Machine;

/// Refuses a configuration of which two resources select one device. Rails are apart: what they take is in no other resource, and
/// two rails may select one HCA, which is in one pair only.
///
/// This is for the start. When a device comes later that two resources select, [`super::assign`] gives it to the first.
pub fn check(machine: &Machine, config: &Config) -> Result<(), Refusal> {
    let configs = &config.resources;
    for candidate in candidates(machine, configs) {
        let is_rail = |nth: &usize| configs[*nth].kind == Kind::Rail;
        let (rails, others): (Vec<usize>, Vec<usize>) = candidate.resources.iter().copied().partition(is_rail);
        let rails = if matches!(candidate.device, super::device::Device::Gpu(_)) { rails } else { Vec::new() };
        for both in [rails, others] {
            if let [first, second, ..] = both[..] {
                let (first, second) = (&configs[first], &configs[second]);
                return Err(Refusal {
                    line: second.line,
                    why: format!(
                        "{} and {} (line {}) both select {}: narrow the `select` of one of them",
                        second.name, first.name, first.line, candidate.key
                    ),
                });
            }
        }
    }
    Ok(())
}
