//! `larder doctor`: checks this machine and suggests fixes.

mod cache_folder;
mod cpu;
mod devices;
mod finding;
mod host;
mod mountinfo;
mod node;
mod release;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use larder_cachenode::process::KEEP_FREE_DEFAULT;

use crate::args::DoctorArgs;
use crate::commands::mount::default_cache_dir;
use crate::output;
use finding::{Finding, Verdict};

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let cache_dir = match &args.cache_dir {
        Some(dir) => std::path::absolute(dir).with_context(|| format!("--cache-dir {}", dir.display()))?,
        None if args.node => PathBuf::from("/var/lib/larder/cache"),
        None => default_cache_dir()?,
    };
    let keep_free = args.keep_free.unwrap_or(if args.node { KEEP_FREE_DEFAULT } else { 0 });
    let findings = if args.node {
        let mut findings = node::findings(&args.kubelet_dir, &cache_dir, keep_free);
        findings.extend(devices::findings(Path::new("/")));
        findings
    } else {
        vec![
            host::kernel(&host::release()),
            host::fuse_device(),
            host::fusermount(),
            host::allow_other(),
            host::read_size(),
            host::open_files(),
            host::service(Path::new("/")),
            cache_folder::direct_io(&cache_dir),
            cache_folder::disk(&cache_dir, keep_free),
        ]
    };
    let findings: Vec<Finding> = findings.into_iter().map(Finding::settled).collect();
    if args.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            let verdict = match finding.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            output::line(format_args!("{verdict:<5}{:<19}{}", finding.what, finding.found))?;
            if finding.verdict != Verdict::Ok {
                output::line(format_args!("     {:<19}{}", "", finding.remedy))?;
            }
        }
    }
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
