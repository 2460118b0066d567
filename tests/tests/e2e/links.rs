//! Checks the links of all documents, and that the book has every page.
//!
//! A relative link leads to a file of the repository, and what follows its `#` to a heading there. GitHub and mdBook
//! make the same names of plain headings: lower case, spaces as hyphens, other punctuation left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use larder_testkit::repository;

/// The markdown files below a folder, by their paths from there.
fn documents(root: &Path) -> BTreeMap<PathBuf, String> {
    fn walk(root: &Path, folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type().unwrap().is_dir() {
                if !is_hidden && entry.file_name() != "target" {
                    walk(root, &path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(root.join(&path)).unwrap();
                found.insert(path, text);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, Path::new(""), &mut found);
    found
}

/// The lines of a document outside of its code blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((at + 1, line))
    })
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The targets of the links and images of a line.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let reference = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline.chain(reference).map(|target| target.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// The name by which a link finds a heading.
fn anchor(heading: &str) -> String {
    // Of a link in a heading, its text counts.
    let text = heading.split("](").enumerate().fold(String::new(), |text, (part, rest)| {
        text + if part == 0 { rest } else { rest.split_once(')').map_or(rest, |(_, after)| after) }
    });
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// All names in a document that a link can have after its `#`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        if let Some(heading) = line.strip_prefix('#') {
            let name = anchor(heading.trim_start_matches('#'));
            let again = (1..).map(|n| format!("{name}-{n}")).find(|name| !found.contains(name)).unwrap();
            if !found.insert(name) {
                found.insert(again);
            }
        }
        found.extend(line.split(" id=\"").skip(1).filter_map(|rest| rest.split_once('"')).map(|(id, _)| id.to_owned()));
    }
    found
}

/// The path of a link's target from the root, or `None` if it leads out of it.
fn resolve(from: &Path, link: &str) -> Option<PathBuf> {
    let mut path = from.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return None,
        }
    }
    Some(path)
}

/// Every relative link of the documents below a folder that leads nowhere, as `FILE:LINE: what is wrong`.
fn broken_links(root: &Path) -> Vec<String> {
    let documents = documents(root);
    let mut broken = Vec::new();
    for (document, text) in &documents {
        for (line, target) in prose(text).flat_map(|(line, text)| targets(text).into_iter().map(move |to| (line, to))) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let found = if file.is_empty() { Some(document.clone()) } else { resolve(document, file) };
            let is_heading = |path: &PathBuf| documents.get(path).is_some_and(|text| anchors(text).contains(heading));
            let wrong = match found.filter(|path| root.join(path).exists()) {
                None => "no such file",
                Some(path) if !heading.is_empty() && !is_heading(&path) => "no such heading",
                Some(_) => continue,
            };
            broken.push(format!("{}:{line}: {target}: {wrong}", document.display()));
        }
    }
    broken
}

#[test]
fn every_link_in_the_documents_leads_to_a_file_and_to_a_heading() {
    let broken = broken_links(&repository());
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn a_link_to_a_missing_file_or_heading_is_found() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("docs")).unwrap();
    let page = "# A `page` of docs\n[out](../../x.md) [image](plot.svg) <a id=\"here\"></a>\n\n## Twice\n## Twice\n\
                [a](#a-page-of-docs) [b](#twice-1) [c](../README.md#the-end-100-) [d](#here) [e](https://x.org/y#z)\n\
                ```\n[code](nowhere.md)\n# no heading\n```\n`[code](nowhere.md)` [f](#no-heading) [g](#twice-2)\n\
                [h]: ../README.md#start\n";
    std::fs::write(folder.path().join("docs/PAGE.md"), page).unwrap();
    std::fs::write(folder.path().join("README.md"), "# The end (100 %)\n[docs](docs) [page](docs/PAGE.md#end)\n")
        .unwrap();
    let expected = [
        "README.md:2: docs/PAGE.md#end: no such heading",
        "docs/PAGE.md:2: ../../x.md: no such file",
        "docs/PAGE.md:2: plot.svg: no such file",
        "docs/PAGE.md:11: #no-heading: no such heading",
        "docs/PAGE.md:11: #twice-2: no such heading",
        "docs/PAGE.md:12: ../README.md#start: no such heading",
    ];
    assert_eq!(broken_links(folder.path()), expected);
}

#[test]
fn the_book_has_every_page_once() {
    let folder = repository().join("docs");
    let documents = documents(&folder);
    let summary = &documents[Path::new("SUMMARY.md")];
    let mut listed: Vec<String> = prose(summary).flat_map(|(_, line)| targets(line)).collect();
    listed.sort();
    let pages = documents.keys().filter(|page| *page != Path::new("SUMMARY.md"));
    assert_eq!(listed, pages.map(|page| page.display().to_string()).collect::<Vec<_>>());
}

#[test]
fn the_book_lists_the_decisions_by_their_titles() {
    let path = repository().join("docs/SUMMARY.md");
    let summary = std::fs::read_to_string(&path).unwrap();
    let index = "(adr/README.md)\n";
    let mut made = summary.split_inclusive(index).next().unwrap().to_owned();
    for (name, text) in documents(&repository().join("docs/adr")) {
        if name != Path::new("README.md") {
            let title = text.lines().next().unwrap().trim_start_matches("# ");
            made += &format!("  - [{title}](adr/{})\n", name.display());
        }
    }
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made, "run this test with LARDER_WRITE_GOLDEN=1");
}
