//! The number of repetitions in tests.

/// The number of repetitions: `short` in an ordinary run, multiplied by `LARDER_TEST_SCALE`, which `make soak` sets.
pub fn scaled(short: u32) -> u32 {
    let Some(scale) = std::env::var_os("LARDER_TEST_SCALE") else { return short };
    let scale: Option<u32> = scale.to_str().and_then(|scale| scale.parse().ok()).filter(|scale| *scale > 0);
    short * scale.expect("LARDER_TEST_SCALE is a positive number")
}
