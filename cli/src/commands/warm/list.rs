//! Sends a list of files to warm to a mount in parts, so that neither side holds a long list in memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use larder_cachenode::WarmListPart;
use larder_cachenode::warm::list_part::LINES_MOST;
use rustix::io::Errno;

use crate::{ioctl, mount_stats};

/// The pause before a part that the mount could not accept is sent again.
const RETRY: Duration = Duration::from_millis(20);

/// The longest line that is sent whole. No path is longer.
const LINE_MOST: usize = 8_000;

/// Sends the list in the file `from` (`-` for standard input) to the mount at `dir`, whose stats are open as `stats`.
/// Returns when the mount has the whole list, or when its cache is full.
pub(super) fn send(from: &Path, dir: &Path, stats: &File) -> anyhow::Result<()> {
    let mut lines: Box<dyn BufRead> = match from.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(from).with_context(|| format!("open {} (--from)", from.display()))?)),
    };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let number = since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    // With one slash at its end, whether or not `dir` has one.
    let root = std::path::absolute(dir.join(""))?;
    let mut part = WarmListPart { list: number, first: true, last: false, lines: Vec::new() };
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line).with_context(|| format!("read {} (--from)", from.display()))?;
        part.last = read == 0;
        let path = line.strip_suffix(b"\n").unwrap_or(&line);
        // Absolute paths of the mounted files are accepted too.
        let path = path.strip_prefix(root.as_os_str().as_bytes()).unwrap_or(path);
        let path = &path[..path.len().min(LINE_MOST)];
        if part.last || part.lines.len() + path.len() + 1 > LINES_MOST {
            if !hand_over(stats, &part, dir)? || part.last {
                return Ok(());
            }
            part.first = false;
            part.lines.clear();
        }
        part.lines.extend_from_slice(path);
        part.lines.push(b'\n');
    }
}

/// Sends a part. Returns false if the cache is full, so that the rest of the list is useless.
fn hand_over(stats: &File, part: &WarmListPart, dir: &Path) -> anyhow::Result<bool> {
    loop {
        let error = match ioctl::warm_list(stats, part) {
            Ok(()) => return Ok(true),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::AGAIN) => std::thread::sleep(RETRY),
            Some(Errno::NOSPC) => return Ok(false),
            Some(Errno::BUSY) => {
                bail!("another warming of {} is running: see `{}`", dir.display(), mount_stats::command("stats", dir))
            }
            Some(Errno::NOENT) => bail!("the mount at {} was restarted: run this command again", dir.display()),
            Some(Errno::NOTTY) => {
                bail!("the process that serves {} is of an earlier version: mount it again", dir.display())
            }
            _ => return Err(error).with_context(|| format!("warm the mount at {}", dir.display())),
        }
    }
}
