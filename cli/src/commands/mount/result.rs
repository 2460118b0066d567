//! What `larder mount` prints once a dataset is mounted.

use std::path::Path;

use larder_cachenode::CacheStats;
use larder_cachenode::kept_listing::age_of;
use larder_cachenode::source::ResolvedSource;
use larder_dataset::size::{show_bytes, show_duration};
use serde_json::json;

use crate::args::MountArgs;
use crate::{mount_stats, output};

/// Prints the result: the snapshot, the age of its listing, and the part that cannot be cached.
pub(super) fn tell(args: &MountArgs, dataset: &ResolvedSource) -> anyhow::Result<()> {
    // A user who may mount may not always read the mount.
    let cache = mount_stats::read(&args.dir).ok().map(|stats| stats.cache);
    if let Some(warning) = cache.as_ref().and_then(|cache| doubt_cache(cache, &args.dir)) {
        output::note(format_args!("warning: {warning}"));
    }
    let (name, origin) = dataset.manifest.name_and_origin()?;
    let (snapshot, listed_ns) = (dataset.manifest.snapshot().to_string(), dataset.manifest.created_ns());
    if args.json {
        return output::json(&json!({
            "mount": args.dir,
            "name": name,
            "origin": origin,
            "snapshot": snapshot,
            "files": dataset.manifest.totals().files,
            "bytes": dataset.manifest.totals().bytes,
            "listed_unix_seconds": listed_ns / 1_000_000_000,
            "age_seconds": age_of(listed_ns).as_secs(),
            "refresh_failed": dataset.refresh_failed,
            "cache": cache,
        }));
    }
    let made = if dataset.manifest.is_packed() { "packed" } else { "listed" };
    output::line(format_args!("{name} is mounted at {}", args.dir.display()))?;
    let age = show_duration(age_of(listed_ns));
    output::line(format_args!("snapshot {}, {made} {age} ago", &snapshot[..12]))
}

/// A warning about the dataset's share of the cache; `None` if all is well.
fn doubt_cache(cache: &CacheStats, dir: &Path) -> Option<String> {
    if let Some(why) = &cache.degraded {
        return Some(format!("caching is suspended: {why} (see `{}`)", mount_stats::command("stats", dir)));
    }
    let shortage = cache.shortage.as_deref()?;
    Some(match cache.capacity_bytes {
        0 => format!("nothing is cached, and every read goes to the origin: {shortage}"),
        bytes => {
            let (bytes, wanted) = (show_bytes(bytes), show_bytes(cache.wanted_bytes));
            format!("at most {bytes} of {wanted} are cached: {shortage}")
        }
    })
}
