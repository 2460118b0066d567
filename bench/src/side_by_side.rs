//! What the benchmarks that go through all [`systems`](crate::systems) have in common: a folder that leaves nothing
//! behind, the choice of systems, whose turn it is, and tables.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::peers::{LeftOut, SystemInfo};
use crate::systems::{Found, System, mounts};

/// A folder that is removed with all that is mounted in it.
pub(crate) struct Scratch(Option<tempfile::TempDir>);

impl Scratch {
    /// One in `parent`, and its path.
    pub(crate) fn new(parent: &Path, prefix: &str) -> anyhow::Result<(Self, PathBuf)> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
        let folder = folder.with_context(|| format!("make a folder in {}", parent.display()))?;
        let path = folder.path().canonicalize().context("find the scratch folder")?;
        Ok((Self(Some(folder)), path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = self.0.take() {
            match mounts::detach_below(folder.path()) {
                Ok(()) => drop(folder),
                // What is mounted there is not ours to remove.
                Err(_) => drop(folder.keep()),
            }
        }
    }
}

/// Systems that can be measured.
pub(crate) type Systems = Vec<Box<dyn System>>;

/// Those systems that were asked for, and those of them that are missing. Fails on a name that there is not.
pub(crate) fn chosen(binary: &Path, only: &[String]) -> anyhow::Result<(Systems, Vec<LeftOut>)> {
    let Found { mut systems, missing } = crate::systems::all(binary);
    let names = systems.iter().map(|system| system.name()).chain(missing.iter().map(|(name, _)| name.as_str()));
    let names: Vec<String> = names.map(str::to_owned).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
        bail!("--only {unknown}: there is no such system; there are {}", names.join(", "));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    systems.retain(|system| wanted(system.name()));
    let missing = missing.into_iter().filter(|(name, _)| wanted(name));
    Ok((systems, missing.map(|(name, why)| LeftOut { name, why }).collect()))
}

/// What a system is, for the record.
pub(crate) fn info(system: &dyn System) -> SystemInfo {
    SystemInfo {
        name: system.name().to_owned(),
        kind: system.kind(),
        version: system.version(),
        options: system.options().to_owned(),
    }
}

/// The order of `count` things in a round: each starts with another one, so that none always comes first.
pub(crate) fn turns(count: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |nth| (nth + round as usize) % count)
}

/// The middle of some values; the mean of the middle two of an even number; none of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = upper.checked_sub(1 - values.len() % 2)?;
    Some(f64::midpoint(*values.get(lower)?, *values.get(upper)?))
}

/// The value below which this share of the sorted values lies; 0 of none.
pub(crate) fn percentile(sorted: &[u32], share: f64) -> u32 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

/// Aligned columns: the first to the left, the others to the right.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |nth: usize| rows.iter().filter_map(|row| row.get(nth)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|nth| width(nth).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(nth, (cell, &width))| {
            if nth == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
        });
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

/// Lines that say which systems were measured how, and which not.
pub(crate) fn footer(systems: &[SystemInfo], left_out: &[LeftOut]) -> String {
    let measured = systems.iter().map(|system| match system.version.as_str() {
        "" => format!("{}: {}\n", system.name, system.options),
        version => format!("{} ({version}): {}\n", system.name, system.options),
    });
    measured.chain(left_out.iter().map(|one| format!("{}: left out: {}\n", one.name, one.why))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_those_of_sorted_values() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), Some(3.0));
        let sorted: Vec<u32> = (0..100).collect();
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99), percentile(&[], 0.5)), (50, 99, 0));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let text = columns(&[row(&["system", "a"]), row(&["x", "123"]), row(&["y"])]);
        assert_eq!(text, "system    a\nx       123\ny\n");
    }

    #[test]
    fn a_scratch_folder_goes_with_all_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let (scratch, folder) = Scratch::new(parent.path(), "test-").unwrap();
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        drop(scratch);
        assert!(!folder.exists());
    }

    #[test]
    fn every_system_is_first_once() {
        let first: Vec<usize> = (0..3).filter_map(|round| turns(3, round).next()).collect();
        assert_eq!(first, [0, 1, 2]);
        assert_eq!(turns(3, 1).collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn a_name_that_there_is_not_is_refused_with_those_that_there_are() {
        let Err(error) = chosen(Path::new("/nonexistent/larder"), &["ext5".to_owned()]) else { panic!("accepted") };
        let error = error.to_string();
        assert!(error.contains("--only ext5") && error.contains("ext4"), "{error}");
        let (systems, _) = chosen(Path::new("/nonexistent/larder"), &["ext4".to_owned()]).unwrap();
        assert_eq!(systems.len(), 1);
    }
}
