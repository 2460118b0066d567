use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::manifest::{ManifestBuilder, PlainFile};
use crate::{NameRules, VersionTag};

const PATHS: [&str; 8] =
    ["a.jpg", "b.png", "odd[1].jpg", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg", "train/w.jpg", "ü.jpg"];

fn manifest_of<'a>(paths: impl IntoIterator<Item = &'a str>) -> Manifest<Vec<u8>> {
    let mut builder = ManifestBuilder::new();
    for path in paths {
        let version = VersionTag::MtimeSize { mtime_ns: 0, size: 1 };
        let file = PlainFile { path: path.as_bytes(), size: 1, mtime_ns: 0, version };
        builder.push(&file, NameRules::FOLDER).unwrap();
    }
    Manifest::open(builder.finish("n", "file:///n", 0).unwrap().to_bytes()).unwrap()
}

fn selected(manifest: &Manifest<Vec<u8>>, path: &str) -> Vec<String> {
    let files = Selected::new(manifest, path.as_bytes()).unwrap().map(|file| {
        let file = manifest.file(file.unwrap()).unwrap();
        String::from_utf8(manifest.file_path(&file).unwrap()).unwrap()
    });
    files.collect()
}

#[test]
fn a_path_through_links_selects_what_they_lead_to_and_a_folder_selects_its_files_once() {
    let mut builder = ManifestBuilder::new();
    for path in ["blobs/1", "snapshots/x/plain"] {
        let version = VersionTag::MtimeSize { mtime_ns: 0, size: 1 };
        let file = PlainFile { path: path.as_bytes(), size: 1, mtime_ns: 0, version };
        builder.push(&file, NameRules::FOLDER).unwrap();
    }
    builder.push_link(b"main", b"snapshots/x", 0).unwrap();
    builder.push_link(b"snapshots/x/model", b"blobs/1", 0).unwrap();
    let manifest = Manifest::open(builder.finish("n", "file:///n", 0).unwrap().to_bytes()).unwrap();
    for (path, files) in [
        ("snapshots/x/model", &["blobs/1"][..]),
        ("main/model", &["blobs/1"]),
        ("main", &["snapshots/x/plain"]),
        (".", &["blobs/1", "snapshots/x/plain"]),
        ("snapshots/x/m*", &[]),
    ] {
        assert_eq!(selected(&manifest, path), files, "{path}");
    }
}

#[test]
fn a_path_a_folder_and_a_pattern_select_what_they_name_and_an_unknown_one_nothing() {
    let all =
        ["a.jpg", "b.png", "odd[1].jpg", "ü.jpg", "train/w.jpg", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg"];
    for (path, files) in [
        ("a.jpg", &["a.jpg"][..]),
        ("./train//1/x.jpg", &["train/1/x.jpg"]),
        ("train/1", &["train/1/x.jpg", "train/1/y.txt"]),
        ("train/2/", &["train/2/z.jpg"]),
        ("odd[1].jpg", &["odd[1].jpg"]),
        ("*.jpg", &["a.jpg", "odd[1].jpg", "ü.jpg"]),
        ("?.jpg", &["a.jpg", "ü.jpg"]),
        ("[!b-z].*", &["a.jpg"]),
        ("train/*/*.jpg", &["train/1/x.jpg", "train/2/z.jpg"]),
        ("train/*", &["train/w.jpg", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg"]),
        ("**/x.jpg", &["train/1/x.jpg"]),
        ("train/**/**/*.jpg", &["train/w.jpg", "train/1/x.jpg", "train/2/z.jpg"]),
        ("**/1/**", &["train/1/x.jpg", "train/1/y.txt"]),
        ("**", &all),
        ("/", &all),
        ("nothing", &[]),
        ("../a.jpg", &[]),
        ("a.jpg/b", &[]),
        ("*.gif", &[]),
        ("train/*/w.jpg", &[]),
    ] {
        assert_eq!(selected(&manifest_of(PATHS), path), files, "{path}");
    }
}

#[test]
fn stars_and_brackets_match_as_in_a_shell() {
    for (pattern, name, is) in [
        ("*", "", true),
        ("a*b*c", "axxbxbc", true),
        ("a*b*c", "axxbxb", false),
        ("*aab", "aaaaaab", true),
        ("[]]", "]", true),
        ("[", "[", true),
        ("[a-", "[a-", true),
        ("[a-c-]x", "-x", true),
        ("x[!a-c]", "xb", false),
        ("??", "aü", true),
    ] {
        assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is, "{pattern} {name}");
    }
}

#[test]
fn comments_and_blank_lines_are_no_paths() {
    for (line, path) in [("# a", None), ("", None), (" \t", None), ("a\r", Some("a")), (" a", Some(" a"))] {
        assert_eq!(path_of_line(line.as_bytes()), path.map(str::as_bytes), "{line:?}");
    }
}

/// The number of steps that the walk of a line takes, and the number of files that it selects.
fn steps(manifest: &Manifest<Vec<u8>>, path: &str) -> (usize, usize) {
    let mut selected = Selected::new(manifest, path.as_bytes()).unwrap();
    let (mut steps, mut files) = (0, 0);
    loop {
        steps += 1;
        match selected.advance(1).unwrap() {
            Advance::File(_) => files += 1,
            Advance::Paused => {}
            Advance::End => return (steps, files),
        }
    }
}

// SEMANTICS: C7
#[test]
fn a_line_takes_few_steps_for_each_entry_however_many_folders_it_leaves_open() {
    // A chain of 64 folders with a file in each: 64 over 10 ways to choose ten of them.
    let deep: Vec<String> = (0..64).map(|depth| format!("{}f", "d/".repeat(depth))).collect();
    let manifest = manifest_of(deep.iter().map(String::as_str));
    for (line, files) in [
        (format!("{}zz*", "**/*/".repeat(10)), 0),
        (format!("{}zz", "**/*/".repeat(10)), 0),
        (format!("{}f*", "**/*/".repeat(10)), 54),
        (format!("{}f", "**/d/".repeat(10)), 54),
        ("**/f".to_owned(), 64),
    ] {
        let (steps, found) = steps(&manifest, &line);
        assert_eq!(found, files, "{line}");
        assert!(steps <= 4 * 64, "{line}: {steps} steps");
    }
    let (steps, found) = steps(&manifest, "d/d/f");
    assert_eq!((steps, found), (2, 1), "a path needs no walk");
}

#[test]
fn a_walk_pauses_when_it_is_told_to_and_goes_on_from_there() {
    let manifest = manifest_of(PATHS);
    let mut selected = Selected::new(&manifest, b"**/y.txt").unwrap();
    assert_eq!(selected.advance(1), Ok(Advance::Paused));
    let mut advanced = Advance::Paused;
    for _ in 0..100 {
        if advanced == Advance::Paused {
            advanced = selected.advance(1).unwrap();
        }
    }
    assert!(matches!(advanced, Advance::File(_)), "{advanced:?}");
    assert_eq!(selected.advance(usize::MAX), Ok(Advance::End));
    assert_eq!(selected.advance(usize::MAX), Ok(Advance::End));
}

/// True if a line selects a path. Compares part by part and tries every possibility.
fn is_selected(parts: &[&str], path: &[&str]) -> bool {
    match (parts, path) {
        ([], _) => true,
        (_, []) => false,
        (["**", rest @ ..], _) => (0..path.len()).any(|skip| is_selected(rest, &path[skip..])),
        ([part, rest @ ..], [name, below @ ..]) => {
            matches(part.as_bytes(), name.as_bytes()) && is_selected(rest, below)
        }
    }
}

proptest! {
    // SEMANTICS: C7
    #[test]
    fn any_line_selects_what_trying_everything_does_and_each_file_once(
        paths in prop::collection::btree_set("[ab](/[ab]){0,4}", 1..40),
        line in prop::collection::vec(prop::sample::select(vec!["**", "*", "a", "b", "[ab]", "?", "c*", "a*"]), 1..8),
    ) {
        // A file cannot also be a folder.
        let is_folder = |path: &String| paths.iter().any(|other| other.starts_with(&format!("{path}/")));
        let files: BTreeSet<&str> = paths.iter().filter(|path| !is_folder(path)).map(String::as_str).collect();
        let manifest = manifest_of(files.iter().copied());
        let mut parts = line.clone();
        // The line selects everything below a folder.
        while parts.last() == Some(&"**") {
            parts.pop();
        }
        let wanted: Vec<&str> = files
            .iter()
            .copied()
            .filter(|path| is_selected(&parts, &path.split('/').collect::<Vec<_>>()))
            .collect();
        let mut found = selected(&manifest, &line.join("/"));
        found.sort();
        prop_assert_eq!(found, wanted);
    }
}
