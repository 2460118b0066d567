//! `larder pack`

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_cachenode::Home;
use larder_import::PackOptions;
use larder_origin::OriginUrl;
use serde_json::json;

use crate::args::{PackArgs, RefreshFlag};
use crate::output::ProgressView;
use crate::{output, source};
use larder_dataset::size::show_bytes;

pub(crate) fn run(args: &PackArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let _in_runtime = runtime.enter();
    let url: OriginUrl = args.dst.parse().context("DST")?;
    let from = source::resolve(&args.src, &args.origin, RefreshFlag::default(), &runtime)?;
    let (_, origin) = from.manifest.name_and_origin()?;
    if origin == url.to_string() {
        bail!("DST {url} is the prefix of the dataset itself: choose another prefix");
    }
    let to = args.origin.open(&url)?;
    let mut options = PackOptions::new(Home::of_process()?.sub_folder("packings")?);
    options.pack_bytes = args.pack_size;
    options.endpoint.clone_from(&args.origin.endpoint);
    options.restart = args.restart;
    let progress = ProgressView::new(from.manifest.totals().bytes.max(1), "packing");
    let packed = runtime.block_on(larder_import::pack(Arc::clone(&from.manifest), from.origin, to, options, &progress));
    progress.finish();
    let packed = packed.with_context(|| format!("pack {} into {url}", args.src))?;
    let totals = packed.built.totals;
    if args.json {
        output::json(&json!({
            "origin": url.to_string(),
            "snapshot": packed.built.snapshot.to_string(),
            "files": totals.files,
            "bytes": totals.bytes,
            "packs": totals.packs,
            "packs_written": packed.packs_written,
            "packs_resumed": packed.packs_resumed,
        }))?;
    } else {
        output::line(format_args!("files      {} ({})", totals.files, show_bytes(totals.bytes)))?;
        output::line(format_args!("packs      {} ({} from an unfinished run)", totals.packs, packed.packs_resumed))?;
        output::line(format_args!("snapshot   {}", packed.built.snapshot))?;
        output::line(format_args!(
            "mount it   {}",
            args.origin.config()?.command(&["mount", &url.to_string(), "DIR"])
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
