//! `larder verify` of a mount: reads every file as a user would, and compares its length and checksum with the
//! manifest.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::Context;
use larder_dataset::Chain;
use larder_epochs::epochs::walk;
use serde_json::json;

use crate::{mount_stats, output};
use larder_dataset::size::show_bytes;

const READERS: usize = 16;
/// The most problems that are printed; the count includes all.
const NAMES_MAX: usize = 100;

pub(crate) fn run(dir: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let before = mount_stats::read(dir)?;
    let targets = walk(dir)?;
    let bar =
        output::bar(targets.len() as u64, "checking {bar:30} {pos}/{len} files {per_sec} [{elapsed}, {eta} left]");
    let (next, bytes, summed) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let problems: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match check(&target.path) {
                        Ok(Checked { size, has_checksum }) => {
                            bytes.fetch_add(size, Ordering::Relaxed);
                            summed.fetch_add(u64::from(has_checksum), Ordering::Relaxed);
                        }
                        Err(error) => {
                            problems
                                .lock()
                                .unwrap_or_else(std::sync::PoisonError::into_inner)
                                .push(Chain(&*error).to_string());
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut problems = problems.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    problems.sort();
    if targets.len() as u64 != u64::from(before.dataset.files) {
        problems.push(format!("the mount has {} files, the manifest has {}", targets.len(), before.dataset.files));
    }
    let (bytes, summed) = (bytes.into_inner(), summed.into_inner());
    if as_json {
        output::json(&json!({
            "files": before.dataset.files,
            "with_checksum": summed,
            "bytes_read": bytes,
            "problems": {"count": problems.len(), "first": problems.iter().take(NAMES_MAX).collect::<Vec<_>>()},
        }))?;
    } else {
        for problem in problems.iter().take(NAMES_MAX) {
            output::line(format_args!("{problem}"))?;
        }
        output::line(format_args!(
            "{} files read ({}), {summed} verified against a checksum of the manifest; {} problems",
            targets.len(),
            show_bytes(bytes),
            problems.len()
        ))?;
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Checked {
    size: u64,
    has_checksum: bool,
}

fn check(path: &Path) -> anyhow::Result<Checked> {
    let context = || path.display().to_string();
    let mut file = File::open(path).with_context(context)?;
    let expected_size = file.metadata().with_context(context)?.len();
    let mut value = [0; 8];
    let expected_crc = match rustix::fs::fgetxattr(&file, "user.larder.crc32c", &mut value[..]) {
        Ok(8) => std::str::from_utf8(&value).ok().and_then(|hex| u32::from_str_radix(hex, 16).ok()),
        Ok(_) | Err(_) => None,
    };
    let (mut size, mut crc) = (0, 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).with_context(context)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        crc = larder_dataset::crc32c_append(crc, &buffer[..read]);
    }
    if size != expected_size {
        anyhow::bail!("{}: {size} bytes instead of {expected_size}", path.display());
    }
    match expected_crc {
        Some(expected) if expected != crc => {
            anyhow::bail!("{}: CRC32C {crc:08x} instead of {expected:08x}", path.display())
        }
        _ => Ok(Checked { size, has_checksum: expected_crc.is_some() }),
    }
}
