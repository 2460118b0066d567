//! `larder import`

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use larder_cachenode::Home;
use larder_cachenode::source::{is_url, local_manifest, manifest_url};
use larder_import::{put_manifest, write_manifest};
use larder_origin::OriginUrl;
use serde_json::json;

use crate::args::ImportArgs;
use crate::{output, source};
use larder_dataset::size::show_bytes;

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let _in_runtime = runtime.enter();
    let url: OriginUrl = args.src.parse()?;
    let origin = args.origin.open(&url)?;
    let imported = source::import(&url, &origin, args.name.as_deref(), args.restart, &args.origin, &runtime)?;

    let to = match &args.to {
        Some(to) if is_url(to) => {
            let (folder, key) = manifest_url(to).with_context(|| {
                format!(
                    "--to {to}: give a URL that ends in .manifest, or the dataset's URL followed by /.larder/manifest"
                )
            })?;
            let target = args.origin.open(&folder.parse()?)?;
            runtime.block_on(put_manifest(&*target, key.as_bytes(), &imported.built)).context("--to")?;
            to.clone()
        }
        Some(to) => {
            write_manifest(Path::new(to), &imported.built).context("--to")?;
            to.clone()
        }
        None => {
            let path = local_manifest(&args.src, &args.origin.config(), &Home::of_process()?)?;
            write_manifest(&path, &imported.built)?;
            path.display().to_string()
        }
    };
    let totals = imported.built.totals;
    let manifest_bytes = imported.built.len_bytes();
    if args.json {
        let skipped: Vec<_> = imported
            .skipped
            .iter()
            .map(|skipped| json!({"key": skipped.key.escape_ascii().to_string(), "reason": skipped.reason}))
            .collect();
        output::json(&json!({
            "origin": url.to_string(),
            "manifest": to,
            "snapshot": imported.built.snapshot.to_string(),
            "files": totals.files,
            "dirs": totals.dirs,
            "bytes": totals.bytes,
            "manifest_bytes": manifest_bytes,
            "resumed_files": imported.resumed_files,
            "list_requests": imported.list_requests,
            "reserved": imported.reserved,
            "skipped": skipped,
        }))?;
    } else {
        source::report_skipped(&imported.skipped);
        println!("files      {} in {} folders", totals.files, totals.dirs);
        println!("bytes      {}", show_bytes(totals.bytes));
        println!("snapshot   {}", imported.built.snapshot);
        println!(
            "manifest   {to} ({}, {:.1} bytes per file)",
            show_bytes(manifest_bytes),
            per_file(manifest_bytes, totals.files)
        );
    }
    imported.journal.discard()?;
    Ok(ExitCode::SUCCESS)
}

fn per_file(bytes: u64, files: u32) -> f64 {
    bytes as f64 / f64::from(files.max(1))
}
