//! `larder explain DIR`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use larder_cachenode::Stats;
use larder_daemon_api::mountinfo::larder_mounts;
use larder_dataset::Chain;
use serde_json::{Value, json};

use crate::args::ExplainMountArgs;
use crate::mount_stats::{PATIENCE, is_foreign, read_all, without};
use crate::output;
use crate::why::{self, Batches};

/// Explains one mount, or each of this machine in one sentence.
pub(super) fn run(args: &ExplainMountArgs) -> anyhow::Result<ExitCode> {
    let batches = args.batch_files.zip(args.batch_compute).map(|(files, compute)| Batches { files, compute });
    if let Some(dir) = &args.dir {
        let stats = read_all(std::slice::from_ref(dir), PATIENCE).remove(0)?;
        if args.json {
            output::json(&document(dir, &stats, batches))?;
        } else {
            output::text(&view(dir, &stats, batches))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let dirs: Vec<PathBuf> = larder_mounts().into_iter().map(|mount| mount.path).collect();
    let mut code = ExitCode::SUCCESS;
    let mut documents = Vec::new();
    for (dir, stats) in dirs.iter().zip(&read_all(&dirs, PATIENCE)) {
        match stats {
            Ok(stats) if args.json => documents.push(document(dir, stats, batches)),
            Ok(stats) => output::line(format_args!("{}", output::one_line(&why::judge(dir, stats).sentence(dir))))?,
            Err(error) if is_foreign(error) => {}
            Err(error) => {
                code = ExitCode::FAILURE;
                output::error(error);
                let sentence = without(dir, &Chain(&**error).to_string());
                documents.push(json!({"mount": dir.display().to_string(), "sentence": sentence}));
            }
        }
    }
    if args.json {
        output::json(&documents)?;
    } else if dirs.is_empty() {
        output::note(format_args!("no dataset is mounted: mount one with `larder mount SRC DIR`"));
    }
    Ok(code)
}

/// The sentence, and the facts that it follows from.
fn view(dir: &Path, stats: &Stats, batches: Option<Batches>) -> String {
    let mut text = format!("{}\n", why::judge(dir, stats).sentence(dir));
    for (name, fact) in why::facts(stats, batches) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<8} {fact}");
    }
    text
}

fn document(dir: &Path, stats: &Stats, batches: Option<Batches>) -> Value {
    let verdict = why::judge(dir, stats);
    let complete = stats.passes.iter().rev().find(|pass| pass.complete);
    json!({
        "mount": dir.display().to_string(),
        "sentence": verdict.sentence(dir),
        "explanation": verdict,
        "passes": stats.passes,
        "utilisation": batches.zip(complete).map(|(batches, pass)| why::utilisation(stats, pass, batches)),
    })
}
