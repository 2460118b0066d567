//! Finds the dataset of a command and shows the progress of its listing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use larder_cachenode::Home;
use larder_cachenode::kept_listing::now_ns;
use larder_cachenode::source::{self, Here, ResolvedSource};
use larder_dataset::Refresh;
use larder_dataset::size::show_duration;
use larder_import::{Imported, SkippedKey};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl};
use tokio::runtime::Runtime;

use crate::args::OriginArgs;
use crate::output::{self, ProgressView};

/// How long a command waits for the origin without a word.
const SILENCE: Duration = Duration::from_secs(3);

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

/// Says what the command waits for, if nothing has come from the origin after a while.
async fn telling<T>(text: &str, origin: &OriginArgs, progress: &ProgressView, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(SILENCE, &mut work).await {
        return done;
    }
    if !progress.has_moved() {
        output::note(format_args!(
            "waiting for the origin of {text}, which has not responded yet; giving up after --read-deadline ({})",
            show_duration(origin.read_deadline)
        ));
    }
    work.await
}

/// Finds the dataset that `text` names, and lists its origin if necessary or if `refresh` wants it. Warns if that
/// failed and the old listing is used.
pub(crate) fn resolve(
    text: &str,
    origin: &OriginArgs,
    refresh: Refresh,
    runtime: &Runtime,
) -> anyhow::Result<ResolvedSource> {
    let _in_runtime = runtime.enter();
    if refresh != Refresh::Never && !source::is_url(text) {
        bail!("--refresh does not apply to a manifest file; use the dataset's URL instead of {text}");
    }
    let progress = ProgressView::new(0, "listing");
    let (config, home) = (origin.config(), Home::of_process()?);
    let resolving = source::resolve(text, &config, &home, refresh, &Here, &progress);
    let found = runtime.block_on(telling(text, origin, &progress, resolving));
    progress.finish();
    let found = found?;
    report_skipped(&found.skipped, &[]);
    if let Some(why) = found.refresh_failed.as_ref().filter(|_| refresh != Refresh::Never) {
        output::note(format_args!("warning: {why}"));
    }
    if refresh.is_due(found.manifest.created_ns(), now_ns()) && found.is_published() {
        output::note(format_args!(
            "--refresh does not apply to a published manifest: renew {text} with `larder import --to` or `larder pack`"
        ));
    }
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
    let imported = runtime.block_on(telling(&url.to_string(), args, &progress, listing));
    progress.finish();
    let imported = imported?;
    if imported.resumed_files > 0 {
        output::note(format_args!(
            "resumed an unfinished import: {} files were already listed",
            imported.resumed_files
        ));
    }
    Ok(imported)
}

/// Prints how many keys cannot be files, by reason, and the first of them.
pub(crate) fn report_skipped(counts: &BTreeMap<String, u64>, first: &[SkippedKey]) {
    for (reason, count) in counts {
        output::note(format_args!("skipped {}: {reason}", output::count(*count, "key")));
        let keys = first.iter().filter(|skipped| skipped.reason == *reason);
        for skipped in keys.take(5) {
            output::note(format_args!("    {}", skipped.key.escape_ascii()));
        }
        if *count > 5 && !first.is_empty() {
            output::note(format_args!("    ... (--json lists more)"));
        }
    }
}
