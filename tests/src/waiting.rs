//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// Waits until `done`.
///
/// # Panics
/// After 60 s.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
