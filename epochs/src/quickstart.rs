//! Larder's main use case in one run: files in an embedded S3 are imported, mounted through the kernel, and read for
//! several epochs under every policy at four cache sizes. Hit ratios come from the S3 server's count of GETs.
//!
//! The cast: `lab` has the dataset, its origin and its mounts; `outcome` shows the result.
//!
//! Invariant: an epoch begins only after every block that the previous epoch fetched is in the store.

mod config;
mod lab;
mod outcome;
#[cfg(test)]
mod tests;

use anyhow::Context;
use indicatif::ProgressBar;
use tokio::runtime::Handle;

pub use config::QuickstartConfig;
use lab::{Lab, Speed, restart_bar};
pub use outcome::{Counted, POLICIES, QuickstartCell, QuickstartOutcome, SHARES};

/// Runs everything; `bar` shows the progress. Errors say which step failed; a wrong byte is an error.
pub fn run(config: &QuickstartConfig, bar: &ProgressBar) -> anyhow::Result<QuickstartOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    run_on(config, runtime.handle(), runtime.handle(), bar)
}

/// Runs everything: the S3 server on `runtime`, the fetches of the mounts on `fetches`.
fn run_on(
    config: &QuickstartConfig,
    runtime: &Handle,
    fetches: &Handle,
    bar: &ProgressBar,
) -> anyhow::Result<QuickstartOutcome> {
    let lab = Lab::set_up(config, runtime.clone(), fetches.clone(), bar)?;
    let combinations = (SHARES.len() * POLICIES.len()) as u64;
    let epochs = combinations * u64::from(config.epochs) + 4;
    restart_bar(bar, epochs * u64::from(config.files), "files read");
    let mut cells = Vec::new();
    for share in SHARES {
        for policy in POLICIES {
            cells.push(lab.measure(config, policy, share, bar)?);
        }
    }
    let Speed { cold, warm, hot, warm_requests, hot_requests } = lab.measure_speed(config, bar)?;
    bar.finish_and_clear();
    let manifest_bytes = std::fs::metadata(&lab.manifest).context("look at the manifest")?.len();
    let requests_not_counted = [&warm_requests, &hot_requests].into_iter().find_map(|counted| counted.as_ref().err());
    Ok(QuickstartOutcome {
        files: config.files,
        bytes: lab.bytes,
        manifest_bytes_a_file: manifest_bytes as f64 / f64::from(config.files),
        cells,
        cold,
        warm,
        hot,
        requests_not_counted: requests_not_counted.map(|error| format!("{error:#}")),
        warm_requests: warm_requests.ok(),
        hot_requests: hot_requests.ok(),
    })
}
