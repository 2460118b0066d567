//! `larder verify`

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_import::{Problems, verify_origin};
use serde_json::json;

use crate::args::{RefreshFlag, VerifyArgs};
use crate::commands::mounted_check;
use crate::output::{self, ProgressView};
use crate::source;
use larder_dataset::size::show_bytes;

/// The most checks at a time: with `--deep` each holds megabytes of a file.
const CHECKS_MOST: usize = 64;

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    if !larder_cachenode::source::is_url(&args.target) && Path::new(&args.target).is_dir() {
        if args.deep {
            bail!(
                "--deep reads the origin: name the dataset's URL or its manifest file instead of the mount {}",
                args.target
            );
        }
        return mounted_check::run(Path::new(&args.target), args.json);
    }
    let runtime = source::runtime()?;
    let dataset = source::resolve(&args.target, &args.origin, RefreshFlag::default(), &runtime)?;
    let totals = dataset.manifest.totals();
    let progress = ProgressView::new(u64::from(totals.files).max(1), "checking");
    let concurrency = CHECKS_MOST.min(args.origin.origin_concurrency as usize);
    let verifying = verify_origin(Arc::clone(&dataset.manifest), dataset.origin, args.deep, concurrency, &progress);
    let report = runtime.block_on(source::with_waiting_note(&args.target, &args.origin, &progress, verifying));
    progress.finish();
    let report = report?.with_context(|| format!("verify {}", args.target))?;
    let kinds = [
        ("missing", &report.missing),
        ("changed", &report.changed),
        ("corrupt", &report.corrupt),
        ("unreadable", &report.unreadable),
    ];
    if args.json {
        let problems: serde_json::Map<_, _> =
            kinds.iter().map(|(kind, found)| ((*kind).to_owned(), list(found))).collect();
        output::json(&json!({
            "files": totals.files,
            "files_ok": report.files_ok,
            "without_checksum": report.without_checksum,
            "bytes_read": report.bytes_read,
            "problems": problems,
        }))?;
    } else {
        for (kind, found) in kinds {
            for (path, what) in &found.first {
                output::line(format_args!("{kind:<11}{}: {what}", path.escape_ascii()))?;
            }
            if found.count > found.first.len() as u64 {
                output::line(format_args!("{kind:<11}and {} more", found.count - found.first.len() as u64))?;
            }
        }
        output::line(format_args!(
            "{} of {} files match the manifest; {} read",
            report.files_ok,
            totals.files,
            show_bytes(report.bytes_read)
        ))?;
        if report.without_checksum > 0 {
            output::line(format_args!(
                "{} of them have no checksum; only their size and version were compared",
                report.without_checksum
            ))?;
        }
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(problems: &Problems) -> serde_json::Value {
    let first: Vec<_> = problems
        .first
        .iter()
        .map(|(path, what)| json!({"path": path.escape_ascii().to_string(), "what": what}))
        .collect();
    json!({"count": problems.count, "first": first})
}
