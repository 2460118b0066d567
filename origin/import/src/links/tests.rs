use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use larder_dataset::{DirIndex, FileIndex};
use proptest::prelude::*;

use super::*;

/// Follows links in a tree of files, whose folders are those above files and links. Returns where each link leads to,
/// or why it is left out.
fn follow(files: &[&str], links: &[(&str, &str)]) -> Vec<(String, Result<String, &'static str>)> {
    let mut collected = Links::default();
    for (path, target) in links {
        assert!(collected.push(path.as_bytes(), target.as_bytes(), 0));
    }
    let mut folders = BTreeSet::from([""]);
    for path in files.iter().chain(links.iter().map(|(path, _)| path)) {
        folders.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
    }
    let depth_of_folder = |path: &str| path.matches('/').count() + usize::from(!path.is_empty());
    let mut rows: Vec<(Vec<u8>, usize, &str, bool)> = Vec::new();
    let key = |path: &str| path.bytes().map(|byte| if byte == b'/' { 0 } else { byte }).collect::<Vec<_>>();
    rows.extend(folders.iter().map(|path| (key(path), depth_of_folder(path), *path, true)));
    let kept = files.iter().filter(|path| !folders.contains(*path));
    rows.extend(kept.map(|path| (key(path), path.matches('/').count(), *path, false)));
    rows.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    let mut ends = collected.follow().unwrap();
    let (mut dirs, mut rows_of_files) = (Vec::new(), Vec::new());
    for (key, depth, path, is_folder) in rows {
        let row = if is_folder {
            dirs.push(path);
            LinkTarget::Dir(DirIndex(dirs.len() as u32 - 1))
        } else {
            rows_of_files.push(path);
            LinkTarget::File(FileIndex(rows_of_files.len() as u32 - 1))
        };
        ends.see(depth as u16, &key, row);
    }
    let mut found: Vec<(String, Result<String, &'static str>)> = Vec::new();
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let kept = ends.finish(|path, reason| found.push((text(&path), Err(reason))));
    for link in kept {
        assert_eq!(dirs[link.folder as usize].as_bytes(), name::split(&link.path).0);
        let target = match link.target {
            LinkTarget::Dir(dir) => dirs[dir.0 as usize],
            LinkTarget::File(file) => rows_of_files[file.0 as usize],
        };
        found.push((text(&link.path), Ok(target.to_owned())));
    }
    found.sort();
    found
}

fn one(files: &[&str], links: &[(&str, &str)]) -> Result<String, &'static str> {
    let path = links[0].0;
    follow(files, links).into_iter().find(|(found, _)| found == path).unwrap().1
}

// SEMANTICS: N4, N6
#[test]
fn a_link_leads_to_a_file_or_a_folder_of_the_tree_through_any_other_links() {
    let files = ["blobs/1", "blobs/2", "snapshots/x/plain", "z"];
    for (links, end) in [
        (&[("snapshots/x/model", "../../blobs/1")][..], "blobs/1"),
        (&[("main", "snapshots/x")], "snapshots/x"),
        (&[("main", "./snapshots//x/")], "snapshots/x"),
        (&[("snapshots/up", "..")], ""),
        (&[("a", "main/model"), ("main", "snapshots/x"), ("snapshots/x/model", "../../blobs/2")], "blobs/2"),
        // `..` after a link is the parent of the folder that the link leads to.
        (&[("a", "main/../x/plain"), ("main", "snapshots/x")], "snapshots/x/plain"),
        (&[("a", "b"), ("b", "c"), ("c", "z")], "z"),
    ] {
        assert_eq!(one(&files, links), Ok(end.to_owned()), "{links:?}");
    }
}

// SEMANTICS: N4
#[test]
fn a_link_that_leads_nowhere_or_out_of_the_tree_is_left_out_with_the_reason() {
    let files = ["a/b", "c"];
    for (links, reason) in [
        (&[("l", "/etc/passwd")][..], OUTSIDE),
        (&[("l", "../c")], OUTSIDE),
        (&[("a/l", "../../c")], OUTSIDE),
        (&[("l", "m/../../c"), ("m", "a")], OUTSIDE),
        (&[("l", "m"), ("m", "../../etc/passwd")], OUTSIDE),
        (&[("l", "m"), ("m", "/etc/passwd")], OUTSIDE),
        (&[("l", "l")], CIRCLE),
        (&[("l", "m"), ("m", "l")], CIRCLE),
        (&[("a/l", "l/x")], CIRCLE),
        (&[("l", "none")], NOWHERE),
        (&[("l", "c/x")], NOWHERE),
        (&[("l", "m"), ("m", "none")], NOWHERE),
        (&[("l", "")], NO_PATH),
        (&[("l", "a\0b")], NO_PATH),
        (&[("c", "a/b")], TAKEN),
        (&[("a", "c")], TAKEN),
    ] {
        assert_eq!(one(&files, links), Err(reason), "{links:?}");
    }
    let long = "x/".repeat(3000);
    assert_eq!(one(&files, &[("l", &long)]), Err(NO_PATH));
    assert_eq!(one(&files, &[("l", &"./".repeat(2000))]), Err(CIRCLE));
}

// SEMANTICS: N4
#[test]
fn a_chain_of_forty_links_is_followed_and_a_longer_one_is_not() {
    let names: Vec<String> = (0..41).map(|nth| format!("l{nth:02}")).collect();
    let mut links: Vec<(&str, &str)> = names.windows(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    links.push(("l40", "file"));
    let found = follow(&["file"], &links);
    assert_eq!(found[0], ("l00".to_owned(), Err(CIRCLE)));
    assert!(found[1..].iter().all(|(_, end)| *end == Ok("file".to_owned())), "{found:?}");
}

#[test]
fn links_over_the_limit_are_all_left_out_in_any_order() {
    let mut links = Links::default();
    let target = vec![b'x'; 4000];
    let mut refused = 0;
    for nth in 0..40_000_u32 {
        refused += u32::from(!links.push(format!("{nth}").as_bytes(), &target, 0));
    }
    assert!(refused > 0);
    let mut left_out = 0;
    let kept = links.follow().unwrap().finish(|_, reason| left_out += u32::from(reason == TOO_MANY));
    assert_eq!((kept, left_out + refused), (Vec::new(), 40_000));
}

#[test]
fn a_link_listed_twice_is_kept_once_unless_it_changed() {
    let mut links = Links::default();
    let twice = |links: &mut Links, target: &[u8]| assert!(links.push(b"l", target, 0));
    twice(&mut links, b"a");
    twice(&mut links, b"a");
    let mut left_out = 0;
    links.follow().unwrap().finish(|_, _| left_out += 1);
    assert_eq!(left_out, 1);
    let mut links = Links::default();
    twice(&mut links, b"a");
    twice(&mut links, b"b");
    assert!(matches!(links.follow(), Err(BuildError::ChangedWhileListed { path }) if path == "l"));
}

fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(part(), 1..4).prop_map(|parts| parts.join("/"))
}

fn target() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "c", "..", ".", "a", "b"]);
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

proptest! {
    // SEMANTICS: N4, N6
    #[test]
    fn links_are_followed_as_the_kernel_follows_them_and_never_further(
        files in prop::collection::btree_set(path(), 1..5),
        links in prop::collection::btree_map(path(), target(), 1..6),
    ) {
        // The kernel's answer: a tree with these files and links. A name that is in use stays what it is.
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let place = |path: &str| {
            let parts: Vec<&str> = path.split('/').collect();
            let mut at = root.clone();
            for part in &parts[..parts.len() - 1] {
                at.push(part);
                match at.symlink_metadata() {
                    Ok(found) if found.is_dir() => {}
                    Ok(_) => return None,
                    Err(_) => std::fs::create_dir(&at).unwrap(),
                }
            }
            at.push(parts[parts.len() - 1]);
            at.symlink_metadata().is_err().then_some(at)
        };
        let files: Vec<&str> =
            files.iter().map(String::as_str).filter(|path| place(path).is_some_and(|at| std::fs::write(at, "").is_ok())).collect();
        let made = |(path, target): &(&str, &str)| {
            place(path).is_some_and(|at| std::os::unix::fs::symlink(target, at).is_ok())
        };
        let links: Vec<(&str, &str)> =
            links.iter().map(|(path, target)| (path.as_str(), target.as_str())).filter(made).collect();
        let canonical = root.canonicalize().unwrap();
        for (path, end) in follow(&files, &links) {
            let kernel = root.join(&path).canonicalize().ok();
            let inside = kernel.as_deref().and_then(|at| at.strip_prefix(&canonical).ok());
            match end {
                // The names on the way need not exist for Larder, but the end does.
                Ok(end) => {
                    let there = canonical.join(Path::new(OsStr::from_bytes(end.as_bytes())));
                    prop_assert!(there.canonicalize().is_ok_and(|at| at == there), "{path} leads through a link to {end}");
                    if kernel.is_some() {
                        prop_assert_eq!(inside, Some(Path::new(&end)), "{}", path);
                    }
                }
                // A path may leave the tree and come back, which only the kernel can follow.
                Err(reason) => prop_assert!(inside.is_none() || reason == OUTSIDE, "{path}: {reason}, and {inside:?}"),
            }
        }
    }
}
