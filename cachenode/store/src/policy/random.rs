//! Random: evicts any block, by a seeded draw.

use larder_dataset::BlockIndex;

use super::contract::Policy;

/// The cached blocks in an unordered array, and for each block its position in that array.
///
/// Invariant: `bag[place[b] - 1] == b` for every cached block b; `place` is 0 for the others.
#[derive(Debug)]
pub(super) struct Random {
    bag: Vec<u32>,
    place: Vec<u32>,
    len: Vec<u32>,
    used_bytes: u64,
    capacity_bytes: u64,
    state: u64,
}

impl Random {
    /// An empty cache.
    pub(super) fn new(capacity_bytes: u64, blocks: u32, seed: u64) -> Self {
        let zeros = || vec![0; blocks as usize];
        Self { bag: Vec::new(), place: zeros(), len: zeros(), used_bytes: 0, capacity_bytes, state: seed }
    }

    /// SplitMix64: small, seeded, and good enough to pick a victim.
    fn draw(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The high half of the product maps the draw to 0..below without a division.
        ((u128::from(z) * below as u128) >> 64) as usize
    }

    fn is_new(&self, block: BlockIndex) -> bool {
        self.place.get(block.0 as usize) == Some(&0)
    }

    fn remove(&mut self, block: BlockIndex) {
        let Some(at) = self.place.get(block.0 as usize).and_then(|place| place.checked_sub(1)) else { return };
        self.bag.swap_remove(at as usize);
        if let Some(&moved) = self.bag.get(at as usize) {
            self.place[moved as usize] = at + 1;
        }
        self.place[block.0 as usize] = 0;
        self.used_bytes -= u64::from(std::mem::take(&mut self.len[block.0 as usize]));
    }

    fn evict_to(&mut self, used_bytes: u64, evict: &mut Vec<BlockIndex>) {
        while self.used_bytes > used_bytes && !self.bag.is_empty() {
            let at = self.draw(self.bag.len());
            let victim = BlockIndex(self.bag[at]);
            self.remove(victim);
            evict.push(victim);
        }
    }
}

impl Policy for Random {
    fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool {
        if len == 0 || u64::from(len) > self.capacity_bytes || !self.is_new(block) {
            return false;
        }
        self.evict_to(self.capacity_bytes - u64::from(len), evict);
        self.restore(block, len);
        true
    }

    fn restore(&mut self, block: BlockIndex, len: u32) {
        if len > 0 && self.is_new(block) {
            self.bag.push(block.0);
            // At most u32::MAX blocks exist, so the length fits.
            self.place[block.0 as usize] = self.bag.len() as u32;
            self.len[block.0 as usize] = len;
            self.used_bytes += u64::from(len);
        }
    }

    fn trim(&mut self, evict: &mut Vec<BlockIndex>) {
        self.evict_to(self.capacity_bytes, evict);
    }

    fn touch(&mut self, _: BlockIndex) {}

    fn wants_touch(&self) -> bool {
        false
    }

    fn forget(&mut self, block: BlockIndex, _: u32) {
        self.remove(block);
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
}
