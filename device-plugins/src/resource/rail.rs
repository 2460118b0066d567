//! Which HCA goes with which GPU.
//!
//! As many GPUs as can be have an HCA of their own below their PCIe root, and of all such ways one is taken with the fewest bridges
//! between the pairs, so an HCA on a GPU's own switch goes before one that is only on its root. Of equally near ways, the GPU with
//! the lowest PCI address takes the HCA with the lowest one, then the next GPU. Whether a port is up does not count: the pairs stay
//! when it changes.

use std::collections::BTreeMap;

use super::matching::least_cost;
use crate::machine::{Gpu, Hca};

/// A GPU without an HCA costs more than any distance, and an HCA out of reach more than any number of these.
const ALONE: i64 = 1 << 20;
const OUT_OF_REACH: i64 = 1 << 40;

/// The HCA of each GPU, by their places in the lists, which are sorted by address. `is_allowed` says which may be paired at all.
pub(super) fn pair(gpus: &[&Gpu], hcas: &[&Hca], is_allowed: impl Fn(usize, usize) -> bool) -> Vec<Option<usize>> {
    let mut roots: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (nth, gpu) in gpus.iter().enumerate() {
        roots.entry(&gpu.place.root).or_default().0.push(nth);
    }
    for (nth, hca) in hcas.iter().enumerate() {
        roots.entry(&hca.place.root).or_default().1.push(nth);
    }
    let mut pairs = vec![None; gpus.len()];
    let cost = |gpu: usize, hca: usize| {
        let distance = gpus[gpu].place.distance(&hcas[hca].place).filter(|_| is_allowed(gpu, hca));
        distance.map_or(OUT_OF_REACH, |distance| distance as i64)
    };
    for (mut left, mut free) in roots.into_values() {
        // The first GPU takes the nearest, then first HCA that leaves the others no worse off than the best way does.
        while let Some((gpu, others)) = left.split_first() {
            let best = least_of(&left, &free, cost);
            let mut nearest = free.clone();
            nearest.sort_by_key(|hca| cost(*gpu, *hca));
            let taken = nearest.into_iter().take_while(|hca| cost(*gpu, *hca) < ALONE).find(|hca| {
                let rest: Vec<usize> = free.iter().copied().filter(|other| other != hca).collect();
                cost(*gpu, *hca) + least_of(others, &rest, cost) == best
            });
            free.retain(|hca| Some(*hca) != taken);
            pairs[*gpu] = taken;
            left.remove(0);
        }
    }
    pairs
}

/// The cost of the best way: beside the HCAs, there is a column for each GPU that stays alone.
fn least_of(gpus: &[usize], hcas: &[usize], cost: impl Fn(usize, usize) -> i64) -> i64 {
    least_cost(gpus.len(), hcas.len() + gpus.len(), |row, column| {
        hcas.get(column).map_or(ALONE, |hca| cost(gpus[row], *hca))
    })
}
