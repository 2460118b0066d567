//! `larder import`

mod order;
mod report;
mod target;

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use larder_cachenode::manifest_file::{check_order_size, verify_file};
use larder_cachenode::source::{WantedListing, is_url, manifest_url};
use larder_cachenode::{Home, open_manifest};
use larder_dataset::{SnapshotId, Totals};
use larder_epochs::process::Usage;
use larder_import::{DiskLimit, DraftManifest, PublishError, fetch_manifest};
use larder_origin::{OriginError, OriginUrl};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::args::ImportArgs;
use crate::output::{ProgressView, count};
use crate::{output, source};
use larder_dataset::size::show_bytes;
use order::OrderLines;
use report::{NoCredentials, Report, is_denied};
use target::{Changes, Stored, Target};

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    let done = import(args, &mut report);
    if let Some(file) = &args.report {
        if let Err(error) = &done {
            report.fail(error);
        }
        report.write(file)?;
    }
    done.map(|()| ExitCode::SUCCESS)
}

fn import(args: &ImportArgs, report: &mut Report) -> anyhow::Result<()> {
    if let Some(list) = &args.order {
        // The list is read twice, so it must not be a pipe.
        let about = std::fs::metadata(list).with_context(|| format!("--order {}", list.display()))?;
        ensure!(about.is_file(), "--order {}: not a regular file: write the list to a file first", list.display());
        check_order_size(&list.display(), about.len()).map_err(anyhow::Error::msg).context("--order")?;
    }
    if let Some(dir) = args.origin.origin_credentials_dir.as_ref().filter(|_| args.require_credentials)
        && !args.origin.env()?.has_files()
    {
        return Err(NoCredentials { dir: dir.clone() }.into());
    }
    let runtime = source::runtime()?;
    let _in_runtime = runtime.enter();
    let home = Home::of_process()?;
    if let Some((from, fetched)) = published(args, &home, &runtime)? {
        return store_fetched(args, report, &from, fetched, &home, &runtime);
    }
    let url: OriginUrl = args.src.parse()?;
    let origin = args.origin.open(&url)?;
    let wanted =
        WantedListing { name: args.name.as_deref(), restart: args.restart, link_objects: args.links, since_ns: None };
    let imported = source::import(&url, &origin, wanted, &args.origin, &runtime)?;
    // Measured before the manifest is mapped, because mapped pages count as resident.
    let peak_memory_bytes = Usage::of(&[std::process::id()]).peak_rss_bytes;
    let (snapshot, totals) = (imported.manifest.snapshot(), imported.manifest.totals());
    let manifest_bytes = imported.manifest.len_bytes();
    report.of(snapshot, totals);

    let targets = Target::all(args, snapshot, &home)?;
    // Storing moves the file away. Its bytes stay readable while they are mapped.
    let listed =
        args.order.as_ref().map(|list| anyhow::Ok((list, open_manifest(imported.manifest.path())?))).transpose()?;
    let mut draft = Some(imported.manifest);
    let mut outcomes = Vec::new();
    for to in targets {
        if let Some(order) = &args.order {
            to.store_order(order, &runtime)?;
        }
        match to.store(&mut draft, &url.to_string(), &home, &runtime) {
            Err(error) if args.report.is_some() && is_denied(&error) => {
                output::note(format_args!("the credentials do not permit writing {to}"));
                report.published = false;
            }
            stored => outcomes.push((to, stored?)),
        }
    }
    let order = listed.map(|(list, manifest)| OrderLines::of(list, &manifest)).transpose()?;
    let stored = outcomes.pop();
    let to = stored.as_ref().map(|(to, _)| to.to_string()).unwrap_or_default();
    let Stored { changes, published } = stored.map(|(_, stored)| stored).unwrap_or_default();
    if args.json {
        let skipped: Vec<_> = imported
            .skipped
            .iter()
            .map(|skipped| json!({"key": skipped.key.escape_ascii().to_string(), "reason": skipped.reason}))
            .collect();
        output::json(&json!({
            "origin": url.to_string(),
            "manifest": to,
            "published": published,
            "changes": changes,
            "snapshot": snapshot.to_string(),
            "files": totals.files,
            "dirs": totals.dirs,
            "links": totals.links,
            "bytes": totals.bytes,
            "manifest_bytes": manifest_bytes,
            "resumed_files": imported.resumed_files,
            "list_requests": imported.list_requests,
            "peak_memory_bytes": peak_memory_bytes,
            "spilled_bytes": imported.spilled_bytes,
            "order": order,
            "reserved": imported.reserved,
            "skipped": skipped,
            "skipped_counts": imported.skipped_counts,
        }))?;
        return Ok(());
    }
    source::report_skipped(&imported.skipped_counts, &imported.skipped);
    print_totals(snapshot, totals)?;
    if let Some(Changes { added, changed, removed, unchanged }) = changes {
        let what = format!("{added} added, {changed} changed, {removed} removed, {unchanged} unchanged");
        output::line(format_args!("files      {what} since the last import"))?;
    }
    if let Some(OrderLines { found, not_found, first_not_found }) = order {
        let lines = count(found + not_found, "line");
        output::line(format_args!("order      {lines}: {found} found, {not_found} not found"))?;
        if not_found > 0 {
            let more = if not_found > first_not_found.len() as u64 { ", ..." } else { "" };
            let named = first_not_found.join(", ");
            output::note(format_args!("no file of the dataset matches {named}{more} (--order)"));
        }
    }
    for to in outcomes.iter().map(|(to, _)| to.to_string()).chain([to]).filter(|to| !to.is_empty()) {
        let (size, each) = (show_bytes(manifest_bytes), per_file(manifest_bytes, totals.files));
        let there = if published { "" } else { "; unchanged" };
        output::line(format_args!("manifest   {to} ({size}, {each:.1} bytes per file{there})"))?;
    }
    Ok(())
}

fn print_totals(snapshot: SnapshotId, totals: Totals) -> anyhow::Result<()> {
    output::line(format_args!("files      {} in {} directories", totals.files, totals.dirs))?;
    if totals.links > 0 {
        output::line(format_args!("links      {}", totals.links))?;
    }
    output::line(format_args!("bytes      {}", show_bytes(totals.bytes)))?;
    output::line(format_args!("snapshot   {snapshot}"))
}

/// The manifest to use instead of a listing, with its URL: SRC itself, or the manifest of --unless-published.
fn published(args: &ImportArgs, home: &Home, runtime: &Runtime) -> anyhow::Result<Option<(String, DraftManifest)>> {
    let is_source = is_url(&args.src) && manifest_url(&args.src).is_some();
    let Some(url) = (if is_source { Some(&args.src) } else { args.unless_published.as_ref() }) else { return Ok(None) };
    let (folder, key) = manifest_url(url)
        .with_context(|| format!("--unless-published {url}: the URL must end in .manifest or /.larder/manifest"))?;
    let folder = args.origin.open(&folder.parse()?)?;
    let scratch = home.sub_folder("imports")?.join(format!("fetched-{}.manifest", std::process::id()));
    let limit = DiskLimit::default();
    let fetching = fetch_manifest(&*folder, key.as_bytes(), &scratch, &limit, verify_file);
    let progress = ProgressView::new(0, "fetching");
    let fetched = runtime.block_on(source::with_waiting_note(url, &args.origin, &progress, fetching));
    progress.finish();
    match fetched? {
        Ok(_) => {}
        // For a missing object, S3 answers "denied" to credentials that may not list. If they may not, the listing
        // fails with that error.
        Err(PublishError::Origin { source: OriginError::NotFound { .. } | OriginError::Denied { .. }, .. })
            if !is_source =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("fetch the manifest {url}")),
    }
    let manifest = open_manifest(&scratch)?;
    let draft = DraftManifest::of_fetched(&scratch, manifest.snapshot(), manifest.totals())?;
    Ok(Some((url.clone(), draft)))
}

/// Stores a fetched manifest at every other target.
fn store_fetched(
    args: &ImportArgs,
    report: &mut Report,
    from: &str,
    fetched: DraftManifest,
    home: &Home,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    let (snapshot, totals) = (fetched.snapshot(), fetched.totals());
    report.of(snapshot, totals);
    report.found = true;
    let origin = open_manifest(fetched.path())?.name_and_origin()?.1.to_owned();
    if args.to.is_empty() {
        bail!("{from} is a manifest already: use --to to copy it elsewhere");
    }
    let mut draft = Some(fetched);
    for to in Target::all(args, snapshot, home)? {
        if to.to_string() == from {
            continue;
        }
        match to.store(&mut draft, &origin, home, runtime) {
            Err(error) if args.report.is_some() && is_denied(&error) => {
                output::note(format_args!("the credentials do not permit writing {to}"));
                report.published = false;
            }
            stored => drop(stored?),
        }
    }
    if args.json {
        let (files, bytes) = (totals.files, totals.bytes);
        return output::json(
            &json!({"manifest": from, "snapshot": snapshot.to_string(), "files": files, "bytes": bytes}),
        );
    }
    print_totals(snapshot, totals)?;
    output::line(format_args!("manifest   {from} (already existed)"))
}

fn per_file(bytes: u64, files: u32) -> f64 {
    bytes as f64 / f64::from(files.max(1))
}
