//! `larder sync`

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use larder_cachenode::manifest_file::{ManifestFile, verify_file};
use larder_cachenode::source::ResolvedSource;
use larder_cachenode::{Home, MappedManifest, open_manifest};
use larder_dataset::size::show_bytes;
use larder_import::{
    Before, DiskLimit, MANIFEST_KEY, PackOptions, Progress, PublishError, SyncOptions, Synced, check_mirror,
    fetch_manifest, source_manifest_key,
};
use larder_origin::{Env, Origin, OriginConfig, OriginError, OriginUrl, Scheme};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::args::SyncArgs;
use crate::output::{ProgressView, count};
use crate::report::Failure;
use crate::{output, report, source};

/// The report of a copy.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// The snapshot that is copied.
    mirrors: String,
    /// The bytes of the snapshot, and those of them that the mirror has.
    bytes: u64,
    bytes_there: u64,
    /// True if the mirror has all of the snapshot.
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

pub(crate) fn run(args: &SyncArgs) -> anyhow::Result<ExitCode> {
    let report = Mutex::new(Report::default());
    let done = sync(args, &report);
    if let Some(file) = &args.report {
        let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = &done {
            report.error = Some(Failure::of(error, None));
        }
        report::write(&report, file)?;
    }
    done
}

/// Shows the progress, and notes it in the report.
struct Noted<'a> {
    view: &'a ProgressView,
    report: &'a Mutex<Report>,
}

impl Progress for Noted<'_> {
    fn listed(&self, files: u64, bytes: u64, prefixes_done: u64, prefixes_known: u64) {
        self.view.listed(files, bytes, prefixes_done, prefixes_known);
    }

    fn noted(&self, what: &str) {
        self.view.noted(what);
    }

    fn copied(&self, objects: u64, objects_total: u64, bytes: u64, bytes_total: u64, bytes_before: u64) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).bytes_there = bytes;
        self.view.copied(objects, objects_total, bytes, bytes_total, bytes_before);
    }
}

fn sync(args: &SyncArgs, report: &Mutex<Report>) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let _in_runtime = runtime.enter();
    let url: OriginUrl = args.dst.parse().context("DST")?;
    let from = source::resolve(&args.src, &args.origin, args.refresh, &runtime)?;
    {
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.mirrors = from.manifest.snapshot().to_string();
        report.bytes = from.manifest.totals().bytes;
    }
    let (ours, theirs) = (args.origin.config()?, mirror_config(args, &from, &url)?);
    let is_same_server = is_same_server(&from, &url, &ours, &theirs);
    if is_same_server {
        check_apart(from.origin.url(), &url)?;
    }
    let to = larder_origin::open(&url, &theirs)?;
    let home = Home::of_process()?;
    let before = before(&*to, &home, &runtime).with_context(|| format!("read the manifest of DST {url}"))?;
    let synced = || format!("copy {} to {url}", args.src);
    if args.pack {
        if let Some(before) = &before {
            check_mirror(&before.mirror, &from.manifest).with_context(synced)?;
        }
        return pack(args, from, to, &theirs, &home, &runtime).with_context(synced);
    }
    let mut options = SyncOptions::new(home.sub_folder("syncs")?);
    options.concurrency = options.concurrency.min(args.origin.origin_concurrency as usize);
    options.max_rate = args.max_rate;
    options.same_store = is_same_server && args.to_credentials_dir.is_none() && !args.origin.anonymous;
    options.delete = args.delete;
    options.dry_run = args.dry_run;
    options.place = theirs.listing_place(&url.to_string());
    let progress = ProgressView::new(from.manifest.totals().bytes.max(1), "copying");
    let noted = Noted { view: &progress, report };
    let syncing = larder_import::sync(Arc::clone(&from.manifest), from.origin, to, before, options, &noted);
    let done = runtime.block_on(syncing);
    progress.finish();
    let done = done.with_context(synced)?;
    {
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.complete = !args.dry_run;
        report.bytes_there = done.bytes - if args.dry_run { done.bytes_copied } else { 0 };
    }
    show(args, &from.manifest, &url, &theirs, &done)?;
    Ok(ExitCode::SUCCESS)
}

/// The settings for the mirror. It shares those of the source that its own flags do not replace; the server and the
/// region only if both are of one kind of store, or the source is a folder, which has neither.
fn mirror_config(args: &SyncArgs, from: &ResolvedSource, to: &OriginUrl) -> anyhow::Result<OriginConfig> {
    let ours = args.origin.config()?;
    let source = from.origin.url().scheme();
    let is_shared = source == to.scheme() || source == Scheme::Folder;
    let shared = |value: &Option<String>| value.clone().filter(|_| is_shared);
    let env = match &args.to_credentials_dir {
        Some(dir) => {
            let prefix = args.to_credentials_prefix.as_deref().unwrap_or_default();
            let env = Env::of_process().without_origins().with_files_of(dir, prefix);
            let env = env.context("read the credentials (--to-credentials-dir)")?;
            for file in env.left_out() {
                output::note(format_args!("warning: a file of --to-credentials-dir is not used: {file}"));
            }
            // A mirror without keys of its own is written with those of the source.
            if env.has_files() || prefix.is_empty() { env } else { ours.env.clone() }
        }
        None => ours.env.clone(),
    };
    Ok(OriginConfig {
        endpoint: args.to_endpoint.clone().or_else(|| shared(&ours.endpoint)),
        region: args.to_region.clone().or_else(|| shared(&ours.region)),
        // A mirror is written, which no bucket allows everybody.
        anonymous: false,
        env,
        ..ours
    })
}

/// True if both URLs refer to one server, or to folders of this machine.
fn is_same_server(from: &ResolvedSource, to: &OriginUrl, ours: &OriginConfig, theirs: &OriginConfig) -> bool {
    let url = from.origin.url();
    let is_same_endpoint = (&ours.endpoint, &ours.region) == (&theirs.endpoint, &theirs.region);
    url.scheme() == to.scheme() && (url.scheme() == Scheme::Folder || is_same_endpoint)
}

/// Refuses a mirror within its source, which the next listing of the source would contain, and the other way round.
fn check_apart(src: &OriginUrl, dst: &OriginUrl) -> anyhow::Result<()> {
    let is_within = |inner: &OriginUrl, outer: &OriginUrl| {
        let rest = inner.prefix().strip_prefix(outer.prefix());
        inner.bucket() == outer.bucket()
            && rest.is_some_and(|rest| rest.is_empty() || outer.prefix().is_empty() || rest.starts_with(b"/"))
    };
    if is_within(dst, src) && is_within(src, dst) {
        bail!("DST {dst} is the dataset itself: choose another prefix");
    }
    if is_within(dst, src) {
        bail!("DST {dst} is below SRC {src}, whose next listing would contain the mirror: choose a prefix beside it");
    }
    if is_within(src, dst) {
        bail!("SRC {src} is below DST {dst}, so the mirror would contain it: choose a prefix beside it");
    }
    Ok(())
}

/// The manifests that the mirror has. `None` if it has none yet.
fn before(to: &dyn Origin, home: &Home, runtime: &Runtime) -> anyhow::Result<Option<Before<ManifestFile>>> {
    let scratch = home.sub_folder("syncs")?.join(format!("mirror-{}.manifest", std::process::id()));
    let Some(mirror) = runtime.block_on(fetch(to, MANIFEST_KEY, &scratch))? else { return Ok(None) };
    let mirrored = mirror.mirrored()?.map(|mirrored| mirrored.snapshot);
    let source = match mirrored {
        Some(snapshot) => runtime.block_on(fetch(to, &source_manifest_key(snapshot), &scratch))?,
        None => None,
    };
    Ok(Some(Before { mirror, source }))
}

/// Fetches a manifest. `None` if there is none.
async fn fetch(from: &dyn Origin, key: &[u8], scratch: &Path) -> anyhow::Result<Option<MappedManifest>> {
    match fetch_manifest(from, key, scratch, &DiskLimit::default(), verify_file).await {
        Err(PublishError::Origin { source: OriginError::NotFound { .. }, .. }) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let opened = open_manifest(scratch);
            // Its bytes stay readable while they are mapped.
            std::fs::remove_file(scratch).with_context(|| format!("remove {}", scratch.display()))?;
            Ok(Some(opened?))
        }
    }
}

/// Copies the files into packs.
fn pack(
    args: &SyncArgs,
    from: ResolvedSource,
    to: Arc<dyn Origin>,
    theirs: &OriginConfig,
    home: &Home,
    runtime: &Runtime,
) -> anyhow::Result<ExitCode> {
    let url = to.url().clone();
    let mut options = PackOptions::new(home.sub_folder("packings")?);
    options.endpoint = Some(theirs.listing_place(&url.to_string()));
    options.mirror = true;
    let progress = ProgressView::new(from.manifest.totals().bytes.max(1), "packing");
    let packing = larder_import::pack(Arc::clone(&from.manifest), from.origin, to, options, &progress);
    let packed = runtime.block_on(packing);
    progress.finish();
    let (packed, totals) = (packed?, from.manifest.totals());
    let done = Synced {
        objects: u64::from(packed.built.totals.packs),
        bytes: totals.bytes,
        objects_copied: packed.packs_written,
        bytes_copied: totals.bytes,
        published: true,
        snapshot: Some(packed.built.snapshot),
        ..Synced::default()
    };
    show(args, &from.manifest, &url, theirs, &done)?;
    Ok(ExitCode::SUCCESS)
}

fn show(
    args: &SyncArgs,
    manifest: &MappedManifest,
    url: &OriginUrl,
    theirs: &OriginConfig,
    done: &Synced,
) -> anyhow::Result<()> {
    let mirrored = manifest.snapshot();
    if args.json {
        return output::json(&json!({
            "origin": url.to_string(),
            "mirrors": mirrored.to_string(),
            "snapshot": done.snapshot.map(|snapshot| snapshot.to_string()),
            "files": manifest.totals().files,
            "objects": done.objects,
            "bytes": done.bytes,
            "objects_copied": done.objects_copied,
            "bytes_copied": done.bytes_copied,
            "objects_copied_by_store": done.objects_by_store,
            "objects_copied_twice": done.objects_repeated,
            "objects_other": done.objects_other,
            "objects_deleted": done.objects_deleted,
            "published": done.published,
            "dry_run": args.dry_run,
        }));
    }
    let (copied, deleted) = if args.dry_run { ("to copy", "to remove") } else { ("copied", "removed") };
    output::line(format_args!(
        "objects    {} of {} {copied} ({} of {})",
        done.objects_copied,
        done.objects,
        show_bytes(done.bytes_copied),
        show_bytes(done.bytes)
    ))?;
    if done.objects_by_store > 0 {
        output::line(format_args!("           {} of them by the store itself", done.objects_by_store))?;
    }
    if args.delete {
        output::line(format_args!("others     {} {deleted}", count(done.objects_deleted, "object")))?;
    } else if done.objects_other > 0 {
        let others = count(done.objects_other, "object");
        output::line(format_args!(
            "others     {others} of DST that the snapshot does not have (--delete removes them)"
        ))?;
    }
    output::line(format_args!("mirrors    {mirrored}"))?;
    if args.dry_run {
        return Ok(());
    }
    let there = if done.published { "" } else { " (unchanged)" };
    output::line(format_args!("manifest   {url}/.larder/manifest{there}"))?;
    output::line(format_args!("mount it   {}", theirs.command(&["mount", &url.to_string(), "DIR"])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_within_its_source_is_refused_and_one_beside_it_is_not() {
        let check = |src: &str, dst: &str| {
            check_apart(&src.parse().unwrap(), &dst.parse().unwrap()).map_err(|error| error.to_string())
        };
        for (src, dst, said) in [
            ("s3://b/set", "s3://b/set", "the dataset itself"),
            ("s3://b/set/", "s3://b/set", "the dataset itself"),
            ("s3://b", "s3://b/copy", "is below SRC"),
            ("s3://b/set", "s3://b/set/copy", "is below SRC"),
            ("s3://b/set", "s3://b", "is below DST"),
            ("file:///data/set", "file:///data", "is below DST"),
        ] {
            let error = check(src, dst).unwrap_err();
            assert!(error.contains(said), "{src} to {dst}: {error}");
        }
        for (src, dst) in [("s3://b/set", "s3://b/set-copy"), ("s3://a/set", "s3://b/set"), ("s3://b/a", "s3://b/b")] {
            assert_eq!(check(src, dst), Ok(()), "{src} to {dst}");
        }
    }
}
