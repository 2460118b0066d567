//! The files of an epoch: found by walking a folder, or named by a list with sizes and checksums.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::tree::MadeFile;

/// A file to read.
#[derive(Clone, Debug)]
pub struct Target {
    /// The path to open.
    pub path: PathBuf,
    /// The expected size; `None` if unknown.
    pub size: Option<u64>,
    /// The expected CRC32C; `None` if unknown.
    pub crc32c: Option<u32>,
}

/// Reads a list of files below `root`, as [`write_expected`] writes it: size, CRC32C in hexadecimal and path in each
/// line. Errors name the line.
pub fn read_expected(root: &Path, list: &Path) -> anyhow::Result<Vec<Target>> {
    let text = std::fs::read_to_string(list).with_context(|| format!("read {}", list.display()))?;
    let target = |line: &str| {
        let (size, rest) = line.split_once(' ')?;
        let (crc32c, path) = rest.split_once(' ')?;
        let crc32c = u32::from_str_radix(crc32c, 16).ok()?;
        Some(Target { path: root.join(path), size: Some(size.parse().ok()?), crc32c: Some(crc32c) })
    };
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let parsed = target(line);
        targets.push(parsed.with_context(|| format!("{} line {number}: not SIZE CRC32C PATH", list.display()))?);
    }
    Ok(targets)
}

/// Writes the list that [`read_expected`] reads.
pub fn write_expected(list: &Path, files: &[MadeFile]) -> anyhow::Result<()> {
    let mut text = String::new();
    for file in files {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {:08x} {}", file.size, file.crc32c, file.path.display());
    }
    std::fs::write(list, text).with_context(|| format!("write {}", list.display()))
}

/// Every regular file below `root`, sorted by path. A folder that cannot be listed is an error.
pub fn walk(root: &Path) -> anyhow::Result<Vec<Target>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", folder.display()))?;
            let kind = entry.file_type().with_context(|| format!("look at {}", entry.path().display()))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(Target { path: entry.path(), size: None, crc32c: None });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}
