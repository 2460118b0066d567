//! The text of a screen. It fits its size: long cells and lines are cut, and mounts beyond the last line are counted.

use crate::machine::view::MountView;
use crate::output::{cell, count, one_line, table};
use crate::why::{percent, seconds};

/// The size of a screen, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Size {
    /// For output that is not a terminal.
    pub(super) const ENDLESS: Self = Self { rows: usize::MAX, columns: usize::MAX };
}

/// The order of mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// Those whose readers wait most come first.
    #[default]
    Waited,
    /// Those that are read most.
    Read,
    Name,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Waited => Self::Read,
            Self::Read => Self::Name,
            Self::Name => Self::Waited,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waited => "waited",
            Self::Read => "read",
            Self::Name => "name",
        }
    }
}

/// The characters of a path that are shown, and those on a screen of fewer columns than [`WIDE`], which would have no
/// room for the figures otherwise.
const PATH: usize = 24;
const PATH_NARROW: usize = 14;
const WIDE: usize = 100;

/// The lines beside the rows of mounts: the head of the screen, that of the table, the sentence, and space.
const OTHER_LINES: usize = 5;

/// All mounts, and the sentence about the first of them.
pub(super) fn screen(mounts: &[MountView], order: Order, size: Size) -> String {
    let mut sorted: Vec<&MountView> = mounts.iter().collect();
    match order {
        // A mount that does not answer has the longest wait of all.
        Order::Waited => sorted.sort_by(|one, other| {
            let is_dead = |mount: &MountView| mount.error.is_some();
            is_dead(other).cmp(&is_dead(one)).then(other.waited_ratio.total_cmp(&one.waited_ratio))
        }),
        Order::Read => {
            sorted.sort_by(|one, other| other.all_bytes_per_second().total_cmp(&one.all_bytes_per_second()));
        }
        Order::Name => sorted.sort_by(|one, other| one.dir.cmp(&other.dir)),
    }
    let head = format!("larder: {}, by {} (s: order, q: quit)", count(mounts.len() as u64, "mount"), order.name());
    let Some(first) = sorted.first() else {
        return format!("{head}\n\nno dataset is mounted: mount one with `larder mount SRC DIR`\n");
    };
    let sentence = wrapped(&one_line(&first.sentence), size.columns);
    let room = size.rows.saturating_sub(OTHER_LINES + sentence.len()).max(1);
    let shown = if sorted.len() > room { &sorted[..room - 1] } else { &sorted[..] };
    let path = if size.columns < WIDE { PATH_NARROW } else { PATH };
    let rows: Vec<_> = shown.iter().map(|mount| row(mount, path)).collect();
    let titles = ["MOUNT", "WAITED", "HIT", "PASS", "PROMISE", "MB/S", "ORIGIN", "P99", "WAITING", "READS/S"];
    let mut lines = vec![head, String::new()];
    lines.extend(table(titles, &rows).lines().map(str::to_owned));
    if shown.len() < sorted.len() {
        lines.push(format!("and {} more", sorted.len() - shown.len()));
    }
    lines.push(String::new());
    lines.extend(sentence);
    let lines: Vec<String> = lines.iter().map(|line| line.chars().take(size.columns).collect()).collect();
    lines.join("\n") + "\n"
}

fn row(mount: &MountView, path: usize) -> [String; 10] {
    // The end of a path says more than its beginning.
    let dir = cell(&mount.dir);
    let dir = match dir.char_indices().rev().nth(path - 1) {
        Some((at, _)) if at > 0 => format!("…{}", &dir[at..]),
        _ => dir,
    };
    if mount.error.is_some() {
        let mut row: [String; 10] = std::array::from_fn(|_| String::new());
        (row[0], row[1]) = (dir, "no answer".to_owned());
        return row;
    }
    let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
    let (pass, promise) =
        mount.pass_hits().map_or(("-".to_owned(), "-".to_owned()), |(hit, promised)| (percent(hit), percent(promised)));
    let p99 = mount.p99_seconds.get("origin").or_else(|| mount.p99_seconds.get("store"));
    [
        dir,
        percent(mount.waited_ratio),
        mount.hit_ratio.map_or("-".to_owned(), percent),
        pass,
        promise,
        megabytes(mount.all_bytes_per_second()),
        megabytes(mount.bytes_per_second.get("origin").copied().unwrap_or(0.0)),
        p99.map_or("-".to_owned(), |p99| p99.map_or("> 60 s".to_owned(), crate::why::milliseconds)),
        match mount.reads_waiting {
            0 => "-".to_owned(),
            waiting => format!("{waiting}, {}", seconds(mount.oldest_wait_seconds)),
        },
        format!("{:.0}", mount.reads_per_second),
    ]
}

/// A text in lines of at most `columns` characters, broken between words.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn mount(dir: &str, waited_ratio: f64, bytes: f64) -> MountView {
        MountView {
            dir: dir.to_owned(),
            sentence: format!("{dir} waits for a slow origin; look at its server."),
            waited_ratio,
            hit_ratio: Some(0.5),
            bytes_per_second: BTreeMap::from([("store", bytes), ("origin", 1e6)]),
            p99_seconds: BTreeMap::from([("origin", Some(0.9))]),
            reads_waiting: 3,
            oldest_wait_seconds: 31.0,
            ..MountView::default()
        }
    }

    #[test]
    fn a_screen_has_the_order_that_was_chosen_and_the_sentence_about_its_first_mount() {
        let dead = MountView { error: Some("gone".to_owned()), ..mount("/c", 0.0, 0.0) };
        let mounts = [mount("/a", 0.1, 9e6), mount("/b\u{1b}[2J", 0.9, 1e6), dead];
        let at = |order| {
            let text = screen(&mounts, order, Size::ENDLESS);
            text.lines().nth(3).unwrap().split_whitespace().next().unwrap().to_owned()
        };
        let order = Order::default();
        assert_eq!([at(order), at(order.next()), at(order.next().next())], ["/c", "/a", "/a"]);
        let text = screen(&mounts, order, Size::ENDLESS);
        assert!(text.contains("10.0  1.0") && text.contains("900 ms") && text.contains("3, 31 s"), "{text}");
        assert!(text.ends_with("/c waits for a slow origin; look at its server.\n"), "{text}");
        assert!(text.contains("/c  ") && text.contains("no answer"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let text = screen(&mounts[..2], order, Size::ENDLESS);
        assert!(text.starts_with("larder: 2 mounts, by waited"), "{text}");
        assert!(text.ends_with("/b [2J waits for a slow origin; look at its server.\n"), "{text}");
    }

    #[test]
    fn a_screen_fits_a_small_terminal() {
        let mounts: Vec<_> = (0..100).map(|n| mount(&format!("/data/a/long/path/to/dataset/{n}"), 0.5, 1e6)).collect();
        for size in [Size { rows: 24, columns: 80 }, Size { rows: 50, columns: 200 }, Size { rows: 3, columns: 12 }] {
            let text = screen(&mounts, Order::Name, size);
            assert!(text.lines().all(|line| line.chars().count() <= size.columns), "{text}");
            assert!(text.lines().count() <= size.rows.max(OTHER_LINES + 12), "{size:?}: {text}");
            assert!(text.contains(" more"), "{text}");
        }
        let text = screen(&mounts, Order::Name, Size { rows: 24, columns: 80 });
        let row = text.lines().nth(3).unwrap();
        assert!(row.contains("900 ms  3, 31 s"), "the figures that matter are cut off: {text}");
        assert!(screen(&[], Order::Name, Size::ENDLESS).contains("no dataset is mounted"));
    }
}
