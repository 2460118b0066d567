//! Counts the lines of an order that name files.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use larder_cachenode::MappedManifest;
use larder_dataset::selection::{Selected, path_of_line};
use serde::Serialize;

/// The number of unknown lines to report.
const NAMED_MOST: usize = 5;

/// The number of lines of an order that name files of a snapshot, and of the other lines.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct OrderLines {
    /// Lines that match at least one file.
    pub(super) found: u64,
    /// Lines that match no file.
    pub(super) not_found: u64,
    /// The first lines that match no file.
    pub(super) first_not_found: Vec<String>,
}

impl OrderLines {
    /// Looks up each line of the file `order`. Errors: the file cannot be read.
    pub(super) fn of(order: &Path, manifest: &MappedManifest) -> anyhow::Result<Self> {
        let context = || format!("read the order {} (--order)", order.display());
        let mut lines = BufReader::new(std::fs::File::open(order).with_context(context)?);
        let (mut counted, mut line) = (Self::default(), Vec::new());
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line).with_context(context)? == 0 {
                return Ok(counted);
            }
            let Some(path) = path_of_line(line.strip_suffix(b"\n").unwrap_or(&line)) else { continue };
            if Selected::new(manifest, path)?.next().transpose()?.is_some() {
                counted.found += 1;
            } else {
                counted.not_found += 1;
                if counted.first_not_found.len() < NAMED_MOST {
                    counted.first_not_found.push(path.escape_ascii().to_string());
                }
            }
        }
    }
}
