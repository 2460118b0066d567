//! A real tree of this machine, through S3 and from its folder, compared byte by byte with `diff -r`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use larder_e2e::{BUCKET, Lab};
use larder_testkit::scaled;

/// The tree.
const TREE: &str = "/usr/share";

/// The most files that an ordinary run compares.
const FILES: u32 = 5_000;

/// The names that are left out, wherever they are: those of the tree's largest folders, so that few enough files remain.
fn omitted() -> BTreeSet<OsString> {
    let (most, mut files) = (scaled(FILES) as usize, 0);
    let entries = std::fs::read_dir(TREE).unwrap().map(|entry| entry.unwrap());
    let mut folders: Vec<(usize, OsString)> = entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| (look(&entry.path(), &BTreeSet::new()).files.len(), entry.file_name()))
        .collect();
    folders.sort_unstable();
    folders.retain(|(count, _)| {
        files += count;
        files > most
    });
    folders.into_iter().map(|(_, name)| name).collect()
}

/// A tree's files, and what no object store can hold: everything but files and the folders that hold some.
struct Left {
    links_and_others: BTreeSet<PathBuf>,
    empty_folders: BTreeSet<PathBuf>,
    files: Vec<(PathBuf, u64)>,
}

fn look(root: &Path, omitted: &BTreeSet<OsString>) -> Left {
    fn walk(root: &Path, folder: &Path, omitted: &BTreeSet<OsString>, left: &mut Left) -> bool {
        let mut holds_files = false;
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if omitted.contains(&entry.file_name()) {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let below = path.strip_prefix(root).unwrap().to_owned();
            if kind.is_dir() {
                if walk(root, &path, omitted, left) {
                    holds_files = true;
                } else {
                    left.empty_folders.insert(below);
                }
            } else if kind.is_file() {
                left.files.push((below, entry.metadata().unwrap().size()));
                holds_files = true;
            } else {
                left.links_and_others.insert(below);
            }
        }
        holds_files
    }
    let mut left = Left { links_and_others: BTreeSet::new(), empty_folders: BTreeSet::new(), files: Vec::new() };
    walk(root, root, omitted, &mut left);
    left
}

/// Paths that `diff -r` finds only in the original. Any other difference is an error, but for texts of links that lead
/// to the same place.
fn only_in_original(mount: &Path, omitted: &BTreeSet<OsString>) -> BTreeSet<PathBuf> {
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference"]).args(omitted.iter().flat_map(|name| [OsStr::new("-x"), name.as_os_str()]));
    let output = diff.arg(TREE).arg(mount).env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|line| difference(line, mount).unwrap_or_else(|| panic!("a difference: {line}"))).collect()
}

/// The path that a line of `diff` finds only in the original; `Some(None)` for a link that leads to the same place.
fn difference(line: &str, mount: &Path) -> Option<Option<PathBuf>> {
    if let Some(links) = line.strip_prefix("Symbolic links ").and_then(|rest| rest.strip_suffix(" differ")) {
        let (original, link) = links.split_once(" and ")?;
        let end =
            |root: &Path, link: &str| Some(Path::new(link).canonicalize().ok()?.strip_prefix(root).ok()?.to_owned());
        return (end(Path::new(TREE), original)? == end(mount, link)?).then_some(None);
    }
    let (folder, name) = line.strip_prefix("Only in ")?.split_once(": ")?;
    Some(Some(Path::new(folder).strip_prefix(TREE).ok()?.join(name)))
}

/// Whether a link leads, through relative links alone and never above the tree, to a file or folder of it.
fn leads_within(below: &Path) -> bool {
    let parts = |path: &Path| path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect::<Vec<_>>();
    let (mut at, mut ahead, mut hops) = (PathBuf::new(), parts(below), 0);
    while let Some(part) = ahead.pop() {
        if part == Path::new("..") {
            if !at.pop() {
                return false;
            }
            continue;
        }
        at.push(part);
        if let Ok(text) = Path::new(TREE).join(&at).read_link() {
            hops += 1;
            if text.is_absolute() || hops > 40 {
                return false;
            }
            at.pop();
            ahead.extend(parts(&text));
        }
    }
    Path::new(TREE).join(at).exists()
}

/// The missing paths, without those below a missing folder, which `diff` does not list.
fn topmost(paths: &BTreeSet<PathBuf>, folders: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    paths
        .union(folders)
        .filter(|path| !path.ancestors().skip(1).any(|above| folders.contains(above)))
        .cloned()
        .collect()
}

// SEMANTICS: B3
#[test]
fn a_tree_through_s3_differs_only_in_what_s3_cannot_hold() {
    let lab = Lab::new();
    let omitted = omitted();
    let left = look(Path::new(TREE), &omitted);
    assert!(left.files.len() > 1000, "{TREE} is too small to tell anything");
    lab.runtime().block_on(async {
        for (path, size) in &left.files {
            let key = format!("tree/{}", path.to_str().expect("names here are UTF-8"));
            // A made-up ETag saves reading the whole tree twice.
            let etag = format!("\"{:016x}-{size}\"", larder_dataset::crc32c(key.as_bytes()));
            lab.server.put_file(BUCKET, &key, Path::new(TREE).join(path), *size, Some(etag)).await.unwrap();
        }
    });
    let mount = lab.mount("m", &format!("s3://{BUCKET}/tree"), &[]);
    let missing = only_in_original(mount.dir(), &omitted);
    let expected = topmost(&left.links_and_others, &left.empty_folders);
    let odd: Vec<_> = missing.symmetric_difference(&expected).take(10).collect();
    assert!(odd.is_empty(), "{odd:?}");
}

// SEMANTICS: B3
#[test]
fn a_tree_from_its_folder_differs_only_in_links_that_lead_out_of_it() {
    let lab = Lab::new();
    let omitted = omitted();
    let left = look(Path::new(TREE), &omitted);
    let mount = lab.mount("m", &format!("file://{TREE}"), &[]);
    let missing = only_in_original(mount.dir(), &omitted);
    let (within, expected): (BTreeSet<_>, _) = left.links_and_others.into_iter().partition(|path| leads_within(path));
    assert!(within.len() > 100, "{TREE} has too few links to prove anything");
    let odd: Vec<_> = missing.symmetric_difference(&expected).take(10).collect();
    assert!(odd.is_empty(), "{odd:?}");
}
