//! Warms a mount, as a user does.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::mount_stats;
use crate::systems::Stop;
use crate::systems::child::Child;

/// The interval at which the progress is polled. The mount's answer may be 50 ms old.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The timeout of a warm-up, and its extension per file. One that needs more time is stuck.
const TIMEOUT: Duration = Duration::from_secs(120);
const TIMEOUT_A_FILE: Duration = Duration::from_millis(50);

/// Starts `larder warm`, waits until the mount has warmed `files` files, and returns the seconds that this took.
pub(super) fn warm(binary: &Path, mount: &Path, work: &Path, files: u32, stop: &Stop) -> anyhow::Result<f64> {
    let mut command = Command::new(binary);
    command.arg("warm").arg(mount).env("RUST_BACKTRACE", "0");
    let (started, limit) = (Instant::now(), TIMEOUT + TIMEOUT_A_FILE * files);
    let mut warm = Child::spawn("larder warm", &mut command, &work.join("warm.log"))?;
    let wait = || -> anyhow::Result<()> {
        stop.check()?;
        if started.elapsed() > limit {
            bail!("the warm-up did not end within {} s", limit.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
        Ok(())
    };
    let status = loop {
        match warm.ended()? {
            Some(status) => break status,
            None => wait()?,
        }
    };
    ensure!(status.success(), "larder warm ended with {status}: {}", warm.last_words());
    loop {
        let state = mount_stats::read(mount)?["warm"].take();
        if !state["running"].as_bool().context("the stats do not say whether the mount is warming")? {
            let seconds = started.elapsed().as_secs_f64();
            ensure!(state["blocks_kept"] == state["blocks_total"], "the warm-up left files out: {state}");
            return Ok(seconds);
        }
        wait()?;
    }
}
