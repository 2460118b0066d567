//! Which lines of an order name files.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use larder_cachenode::MappedManifest;
use larder_dataset::selection::{Selected, path_of_line};
use serde::Serialize;

/// Unknown lines that are named.
const NAMED_MOST: usize = 5;

/// How many lines of an order name files of a snapshot.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct OrderLines {
    /// Lines that name files.
    pub(super) found: u64,
    /// Lines that name none.
    pub(super) not_found: u64,
    /// The first of those.
    pub(super) first_not_found: Vec<String>,
}

impl OrderLines {
    /// Looks the lines of the file `order` up. Errors: it cannot be read.
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
