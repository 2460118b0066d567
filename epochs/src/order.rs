//! The order of an epoch. Readers and the simulator share it, so that both read the same files in the same order.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// The seed of an epoch's order, derived from the seed of the run. Epochs count from 0.
pub fn epoch_seed(seed: u64, epoch: u32) -> u64 {
    seed.wrapping_mul(1000).wrapping_add(u64::from(epoch))
}

/// Writes the numbers `0..count` in the order of this seed into a reusable buffer, with 4 bytes per file.
pub fn shuffle_into(order: &mut Vec<u32>, count: u32, seed: u64) {
    order.clear();
    order.extend(0..count);
    order.shuffle(&mut StdRng::seed_from_u64(seed));
}

/// The numbers `0..count` in the order of this seed.
pub fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order = Vec::new();
    shuffle_into(&mut order, count, seed);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_every_number_once_and_another_seed_gives_another() {
        let order = shuffled(1000, 7);
        assert_eq!(order, shuffled(1000, 7));
        assert_ne!(order, shuffled(1000, 8));
        assert_ne!(epoch_seed(7, 0), epoch_seed(7, 1));
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }
}
