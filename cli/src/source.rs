//! Finds the dataset of a command and shows the progress of its listing.

use std::sync::Arc;

use larder_cachenode::Home;
use larder_cachenode::source::{self, ResolvedSource};
use larder_import::{Imported, SkippedKey};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl};
use tokio::runtime::Runtime;

use crate::args::OriginArgs;
use crate::output::ProgressView;

impl OriginArgs {
    /// The flags combined with the environment.
    pub(crate) fn config(&self) -> OriginConfig {
        OriginConfig {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            anonymous: self.anonymous,
            attempt_timeout: self.attempt_timeout,
            deadline: self.read_deadline,
            concurrency: self.origin_concurrency as usize,
            env: Env::of_process(),
            ..OriginConfig::default()
        }
    }

    /// Opens an origin, without sending a request yet.
    pub(crate) fn open(&self, url: &OriginUrl) -> anyhow::Result<Arc<dyn Origin>> {
        Ok(larder_origin::open(url, &self.config())?)
    }
}

/// A runtime for a command that mostly waits for the network.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    use anyhow::Context;
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")
}

/// Finds the dataset that `text` names, and imports it if necessary.
pub(crate) fn resolve(text: &str, origin: &OriginArgs, runtime: &Runtime) -> anyhow::Result<ResolvedSource> {
    let _in_runtime = runtime.enter();
    let progress = ProgressView::new(0, "listing");
    let found = runtime.block_on(source::resolve(text, &origin.config(), &Home::of_process()?, &progress));
    progress.finish();
    let found = found?;
    report_skipped(&found.skipped);
    Ok(found)
}

/// Lists an origin, with a progress bar.
pub(crate) fn import(
    url: &OriginUrl,
    origin: &Arc<dyn Origin>,
    name: Option<&str>,
    restart: bool,
    args: &OriginArgs,
    runtime: &Runtime,
) -> anyhow::Result<Imported> {
    let progress = ProgressView::new(0, "listing");
    let (config, home) = (args.config(), Home::of_process()?);
    let listing = source::import_url(url, Arc::clone(origin), name, restart, &config, &home, &progress);
    let imported = runtime.block_on(listing);
    progress.finish();
    let imported = imported?;
    if imported.resumed_files > 0 {
        eprintln!("resumed an unfinished import: {} files were already listed", imported.resumed_files);
    }
    Ok(imported)
}

/// Prints the keys that cannot be files: each reason with its count and its first keys.
pub(crate) fn report_skipped(skipped: &[SkippedKey]) {
    let mut reasons: std::collections::BTreeMap<&str, Vec<&[u8]>> = std::collections::BTreeMap::new();
    for skipped in skipped {
        reasons.entry(&skipped.reason).or_default().push(&skipped.key);
    }
    for (reason, keys) in reasons {
        eprintln!("skipped {} keys: {reason}", keys.len());
        for key in keys.iter().take(5) {
            eprintln!("    {}", key.escape_ascii());
        }
        if keys.len() > 5 {
            eprintln!("    ... (--json lists all)");
        }
    }
}
