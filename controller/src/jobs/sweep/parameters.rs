//! The parameters of a trial. They depend on the sweep's spec and the trial's number alone.

use std::collections::BTreeMap;

use larder_api::training_job::Scale;
use larder_api::training_job::checked::{Draw, Space};
use sha2::{Digest, Sha256};

/// The parameters of the trial with this number.
pub(super) fn parameters(space: &Space, number: u32) -> BTreeMap<String, String> {
    match space {
        Space::List(sets) => sets.get(number as usize).cloned().unwrap_or_default(),
        Space::Grid(grid) => {
            let mut rest = number as usize;
            // The last parameter changes first.
            let values = grid.iter().rev().map(|(name, values)| {
                let value = values[rest % values.len()].clone();
                rest /= values.len();
                (name.clone(), value)
            });
            values.collect()
        }
        Space::Random { seed, parameters } => {
            let value = |(name, draw): &(String, Draw)| (name.clone(), drawn(draw, random(*seed, number, name)));
            parameters.iter().map(value).collect()
        }
    }
}

/// A random number. It is a hash, so it does not depend on other trials and parameters, nor on a library's version.
fn random(seed: u64, number: u32, name: &str) -> u64 {
    let hash = Sha256::digest(format!("{seed}\n{number}\n{name}"));
    hash.iter().take(8).fold(0, |bits, byte| (bits << 8) | u64::from(*byte))
}

/// The value at a random place of a distribution.
fn drawn(draw: &Draw, random: u64) -> String {
    // The highest 53 bits, which a fraction holds exactly.
    let fraction = (random >> 11) as f64 / (1_u64 << 53) as f64;
    match draw {
        Draw::OneOf(values) => values[below(random, values.len() as u128) as usize].clone(),
        Draw::Whole { min, max, scale: Scale::Linear } => {
            let count = (i128::from(*max) - i128::from(*min)).unsigned_abs() + 1;
            (i128::from(*min) + below(random, count).cast_signed()).to_string()
        }
        Draw::Whole { min, max, scale: Scale::Log } => {
            let value = between((*min as f64).ln(), (*max as f64).ln(), fraction).exp();
            (value.round() as i64).clamp(*min, *max).to_string()
        }
        Draw::Real { min, max, scale: Scale::Linear } => text(between(*min, *max, fraction), *min, *max),
        Draw::Real { min, max, scale: Scale::Log } => text(between(min.ln(), max.ln(), fraction).exp(), *min, *max),
    }
}

/// Scales 64 random bits to a number below `count`.
fn below(random: u64, count: u128) -> u128 {
    u128::from(random).saturating_mul(count) >> 64
}

/// The number at a fraction of the way between two. Their difference may be larger than any number.
fn between(min: f64, max: f64, fraction: f64) -> f64 {
    min * (1.0 - fraction) + max * fraction
}

/// A number with six digits, within its bounds.
fn text(number: f64, min: f64, max: f64) -> String {
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    let number = rounded.clamp(min, max);
    let is_plain = number == 0.0 || (1e-4..1e15).contains(&number.abs());
    if is_plain { format!("{number}") } else { format!("{number:e}") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn grid(counts: &[usize]) -> Space {
        let values = |count: usize| (0..count).map(|value| value.to_string()).collect();
        Space::Grid(counts.iter().enumerate().map(|(at, count)| (format!("P{at}"), values(*count))).collect())
    }

    #[test]
    fn the_last_parameter_of_a_grid_changes_first() {
        let trial = |number| parameters(&grid(&[2, 3]), number).into_values().collect::<Vec<_>>();
        assert_eq!([0, 1, 3, 5].map(trial), [["0", "0"], ["0", "1"], ["1", "0"], ["1", "2"]]);
    }

    /// Trials that have run must not get other parameters in a later version.
    #[test]
    fn a_seed_yields_the_same_trials_for_ever() {
        let space = |seed| Space::Random {
            seed,
            parameters: vec![
                ("LR".into(), Draw::Real { min: 1e-5, max: 0.1, scale: Scale::Log }),
                ("BS".into(), Draw::Whole { min: 16, max: 512, scale: Scale::Linear }),
            ],
        };
        let first = parameters(&space(7), 0);
        assert_eq!(first, parameters(&space(7), 0));
        assert_ne!(first, parameters(&space(8), 0));
        assert_ne!(first, parameters(&space(7), 1));
        let drawn = |number| parameters(&space(7), number).into_values().collect::<Vec<_>>();
        assert_eq!([0, 1, 2].map(drawn), [["63", "0.00132574"], ["65", "0.0316845"], ["411", "5.74607e-5"]]);
        let bits = random(7, 0, "LR");
        // sha256("7\n0\nLR")
        assert_eq!(format!("{bits:016x}"), "87d65ca60a83b9c3");
    }

    fn any_draw() -> impl Strategy<Value = Draw> {
        let scale = prop::sample::select(vec![Scale::Linear, Scale::Log]);
        prop_oneof![
            (1..50_usize).prop_map(|count| Draw::OneOf((0..count).map(|value| value.to_string()).collect())),
            (any::<i64>(), any::<i64>()).prop_map(|(one, other)| Draw::Whole {
                min: one.min(other),
                max: one.max(other),
                scale: Scale::Linear,
            }),
            (1..1_000_000_i64, 0..1_000_000_i64, scale.clone()).prop_map(|(min, more, scale)| Draw::Whole {
                min,
                max: min + more,
                scale
            }),
            (1e-9..1e9_f64, 0.0..1e9_f64, scale).prop_map(|(min, more, scale)| Draw::Real {
                min,
                max: min + more,
                scale,
            }),
            Just(Draw::Real { min: f64::MIN, max: f64::MAX, scale: Scale::Linear }),
        ]
    }

    proptest! {
        #[test]
        fn a_grid_has_every_combination_once(counts in prop::collection::vec(1..5_usize, 1..5)) {
            let all: usize = counts.iter().product();
            let space = grid(&counts);
            let trials: BTreeSet<_> = (0..all as u32).map(|number| parameters(&space, number)).collect();
            prop_assert_eq!(trials.len(), all);
            prop_assert!(trials.iter().all(|trial| trial.len() == counts.len()));
        }

        #[test]
        fn random_values_are_within_their_bounds(draw in any_draw(), random in any::<u64>()) {
            let value = drawn(&draw, random);
            match &draw {
                Draw::OneOf(values) => prop_assert!(values.contains(&value)),
                Draw::Whole { min, max, .. } => {
                    let value: i64 = value.parse().expect("a whole number");
                    prop_assert!((min..=max).contains(&&value), "{value} {draw:?}");
                }
                Draw::Real { min, max, .. } => {
                    let value: f64 = value.parse().expect("a number");
                    prop_assert!((min..=max).contains(&&value), "{value} {draw:?}");
                }
            }
        }
    }
}
