//! Chooses shared IDs on as many units as possible, preferring the least used units.

use super::pool::Pool;

/// The units of `more` IDs, or of all free IDs if there are fewer.
pub(super) fn choose(pool: &Pool, more: usize) -> Vec<usize> {
    let mut taken: Vec<usize> = pool.units.iter().map(|_| 0).collect();
    let mut chosen = Vec::new();
    for _ in 0..more {
        let free = (0..pool.units.len()).filter(|nth| taken[*nth] < pool.units[*nth].free());
        let least = free.min_by_key(|nth| {
            let unit = &pool.units[*nth];
            (unit.chosen + taken[*nth], pool.in_use(unit), *nth)
        });
        let Some(least) = least else { break };
        taken[least] += 1;
        chosen.push(least);
    }
    chosen
}
