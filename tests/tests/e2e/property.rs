//! The whole system against a model: two random trees under one budget, readers, faults, deaths, damage and failing disks.
//! Whatever happens, a read returns the bytes that were put into the bucket, or an errno that the events so far allow. Without
//! an event it never returns an errno, and what happens to one dataset allows none to the other.
//!
//! The cast: [`Setup`] and [`Step`] are drawn, and printed by a failure; [`World`] is the node and its disk; a
//! `dataset::Dataset` is a tree in the bucket, its mount, and the model of both; `model::Allowed` holds the errnos that the
//! present trouble allows; `reading` has the operations of readers.

mod dataset;
mod drawn;
mod model;
mod reading;
mod world;

use drawn::{Setup, Step, setup, steps};
use larder_testkit::scaled;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use world::World;

/// Cases in an ordinary run. PROPTEST_CASES overrides it.
const CASES: u32 = 20;

fn run(setup: &Setup, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(setup);
    // Told at once: to find the smallest case may take longer than a test may run.
    let told = |error: &TestCaseError| eprintln!("{error}");
    steps.iter().try_for_each(|step| world.step(step).inspect_err(told))
}

// SEMANTICS: B1
#[test]
fn every_read_is_the_reference_or_a_clear_errno() {
    let asked = std::env::var("PROPTEST_CASES").is_ok();
    let mut config = Config { failure_persistence: None, max_shrink_iters: 50, ..Config::default() };
    if !asked {
        config.cases = scaled(CASES);
    }
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(rand::random());
    }
    eprintln!(
        "PROPTEST_RNG_SEED={}",
        match config.rng_seed {
            RngSeed::Fixed(seed) => seed,
            RngSeed::Random => 0,
        }
    );
    TestRunner::new(config)
        .run(&(setup(), steps()), |(setup, steps)| run(&setup, &steps))
        .unwrap_or_else(|error| panic!("{error}"));
}
