//! `larder cache`

mod open;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use larder_daemon_api::v1;
use larder_dataset::size::{show_bytes, show_duration};
use serde::Serialize;

use crate::args::{CacheArgs, CacheCommand, CacheNameArgs};
use crate::{output, source};
use open::Cache;

/// The fewest digits of an id that are taken for one.
const DIGITS_LEAST: usize = 4;
/// The digits of an id that a table shows.
const DIGITS_SHOWN: usize = 12;

pub(crate) fn run(args: &CacheArgs) -> anyhow::Result<ExitCode> {
    source::runtime()?.block_on(async {
        match &args.command {
            CacheCommand::Ls(args) => {
                let mut cache = Cache::open(&args.place).await?;
                let rows: Vec<Row> = cache.list().await?.into_iter().map(Row::from).collect();
                cache.close()?;
                if args.json {
                    output::json(&rows)?;
                } else if rows.is_empty() {
                    output::note(format_args!("the cache is empty"));
                } else {
                    output::text(&table(&rows, now()))?;
                }
            }
            CacheCommand::Rm(args) => {
                let (mut cache, row) = chosen(args).await?;
                cache.drop(&row.id).await?;
                cache.close()?;
                output::line(format_args!("dropped {} of {}", show_bytes(row.bytes), row.shown_name()))?;
            }
            CacheCommand::Pin(args) => pin(args, true).await?,
            CacheCommand::Unpin(args) => pin(args, false).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn pin(args: &CacheNameArgs, is_pinned: bool) -> anyhow::Result<()> {
    let (mut cache, row) = chosen(args).await?;
    cache.pin(&row.id, is_pinned).await?;
    let now = cache.list().await?.into_iter().find(|cache| cache.id == row.id).map(Row::from);
    cache.close()?;
    match now {
        Some(now) if is_pinned => {
            let (kept, name) = (show_bytes(now.kept_disk_bytes), now.shown_name());
            output::line(format_args!("{kept} of the disk stay with {name} until `larder cache unpin`"))
        }
        _ => output::line(format_args!("{} is no longer pinned", row.shown_name())),
    }
}

/// The cache, and the one dataset in it that the arguments name.
async fn chosen(args: &CacheNameArgs) -> anyhow::Result<(Cache, Row)> {
    let mut cache = Cache::open(&args.place).await?;
    let rows: Vec<Row> = cache.list().await?.into_iter().map(Row::from).collect();
    let row = named(rows, &args.dataset)?;
    Ok((cache, row))
}

fn named(rows: Vec<Row>, text: &str) -> anyhow::Result<Row> {
    let is_id = text.len() >= DIGITS_LEAST && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut found: Vec<Row> =
        rows.into_iter().filter(|row| row.name == text || is_id && row.id.starts_with(text)).collect();
    match (found.pop(), found.as_slice()) {
        (None, _) => bail!("the cache holds no dataset {text}: `larder cache ls` lists all of them"),
        (Some(row), []) => Ok(row),
        (Some(row), others) => {
            let ids: Vec<&str> = others.iter().chain([&row]).map(|row| short(&row.id)).collect();
            bail!("several datasets match {text}: name one by its id, {}", ids.join(" or "))
        }
    }
}

/// A dataset in the cache.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    id: String,
    name: String,
    snapshot: String,
    owner: String,
    bytes: u64,
    disk_bytes: u64,
    kept_disk_bytes: u64,
    mounted: bool,
    pinned: bool,
    last_use_unix_seconds: u64,
}

impl From<v1::Cache> for Row {
    fn from(cache: v1::Cache) -> Self {
        let v1::Cache { id, name, snapshot, owner, bytes, disk_bytes, kept_disk_bytes, pinned, .. } = cache;
        let mounted = cache.open || cache.mounts > 0;
        let last_use_unix_seconds = cache.last_use_unix_s;
        Self { id, name, snapshot, owner, bytes, disk_bytes, kept_disk_bytes, mounted, pinned, last_use_unix_seconds }
    }
}

impl Row {
    fn shown_name(&self) -> &str {
        if self.name.is_empty() { short(&self.id) } else { &self.name }
    }

    fn state(&self) -> &'static str {
        match (self.mounted, self.pinned) {
            (true, true) => "mounted, pinned",
            (true, false) => "mounted",
            (false, true) => "pinned",
            (false, false) => "unused",
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..DIGITS_SHOWN).unwrap_or(id)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn table(rows: &[Row], now: u64) -> String {
    let cells = |row: &Row| {
        let used = match (row.mounted, row.last_use_unix_seconds) {
            (true, _) => "now".to_owned(),
            (false, 0) => "-".to_owned(),
            (false, at) => format!("{} ago", show_duration(Duration::from_secs(now.saturating_sub(at)))),
        };
        let kept = if row.kept_disk_bytes == 0 { "-".to_owned() } else { show_bytes(row.kept_disk_bytes) };
        [
            output::cell(row.shown_name()),
            short(&row.id).to_owned(),
            show_bytes(row.bytes),
            show_bytes(row.disk_bytes),
            kept,
            row.state().to_owned(),
            used,
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    output::table(["DATASET", "ID", "CACHED", "ON DISK", "KEPT", "STATE", "USED"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, id: &str) -> Row {
        Row { name: name.to_owned(), id: id.repeat(16), bytes: 3 << 30, disk_bytes: 3 << 30, ..Row::default() }
    }

    #[test]
    fn a_dataset_is_named_by_its_name_or_by_the_first_digits_of_its_id() {
        let rows = || vec![row("pets", "aaaa"), row("cars", "bbbb"), row("cars", "bbcc")];
        assert_eq!(named(rows(), "pets").unwrap().name, "pets");
        assert_eq!(named(rows(), "bbcc").unwrap().id, "bbcc".repeat(16));
        for (text, words) in [
            ("cars", "several datasets match cars: name one by its id, bbbbbbbbbbbb or bbccbbccbbcc"),
            ("bb", "holds no dataset bb"),
            ("birds", "`larder cache ls`"),
        ] {
            let error = named(rows(), text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_table_says_what_is_kept_and_since_when_it_is_unused() {
        let unused = Row { last_use_unix_seconds: 1_000, ..row("pets", "aaaa") };
        let pinned = Row { pinned: true, mounted: true, kept_disk_bytes: 4 << 30, ..row("", "bbbb") };
        let text = table(&[unused, pinned], 1_000 + 7_200);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split("  ").collect()).collect();
        let cells = |line: &[&str]| {
            line.iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(cells(&lines[1]), "pets|aaaaaaaaaaaa|3.0 GiB|3.0 GiB|-|unused|2 hours ago");
        assert_eq!(cells(&lines[2]), "bbbbbbbbbbbb|bbbbbbbbbbbb|3.0 GiB|3.0 GiB|4.0 GiB|mounted, pinned|now");
    }
}
