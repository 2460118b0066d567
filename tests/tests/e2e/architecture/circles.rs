//! Circles between the files of a crate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use super::source::{Source, Words};

/// A module's path from the crate's root, which is empty.
pub(super) type Module = Words;

/// The crate's files by the modules that they are, and by whom each is used: the graph of its files.
struct Files {
    sources: BTreeMap<Module, Source>,
}

/// Circles such as `a.rs ─► b.rs (crate::b::X) ─► a.rs (super::a)`, until each file that is in a circle is in one of
/// them.
///
/// A file uses another if it has a path outside of test code that leads to an item of it. A file that declares a module
/// does not use it for that alone; a re-export does.
pub(super) fn of_crate(folder: &Path) -> Vec<String> {
    let files = Files::read(folder);
    let graph: BTreeMap<&Module, BTreeMap<&Module, String>> =
        files.sources.keys().map(|module| (module, files.used_by(module))).collect();
    let mut circles = Vec::new();
    let mut in_a_circle = BTreeSet::new();
    for start in graph.keys() {
        if in_a_circle.contains(start) {
            continue;
        }
        if let Some(circle) = shortest_circle(&graph, start) {
            in_a_circle.extend(circle.iter().copied());
            let mut text = file_name(start);
            for (from, to) in circle.iter().zip(circle.iter().cycle().skip(1)) {
                text += &format!(" ─► {} ({})", file_name(to), graph[from][to]);
            }
            circles.push(text);
        }
    }
    circles
}

/// The modules of the shortest way from `start` back to it.
fn shortest_circle<'a>(
    graph: &BTreeMap<&'a Module, BTreeMap<&'a Module, String>>,
    start: &'a Module,
) -> Option<Vec<&'a Module>> {
    let mut came_from: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(module) = queue.pop_front() {
        for used in graph[module].keys() {
            if *used == start {
                let mut way = vec![module];
                while let Some(before) = came_from.get(way[way.len() - 1]) {
                    way.push(before);
                }
                way.reverse();
                return Some(way);
            }
            if !came_from.contains_key(used) {
                came_from.insert(used, module);
                queue.push_back(used);
            }
        }
    }
    None
}

/// A file of a crate and what it uses outside of test code: other files of the crate, and paths as they are written.
pub(super) struct Uses {
    pub(super) file: Module,
    pub(super) files: Vec<Module>,
    pub(super) paths: Vec<Words>,
}

/// All files of a crate but those of tests.
pub(super) fn uses(folder: &Path) -> Vec<Uses> {
    let files = Files::read(folder);
    let of = |module: &Module| Uses {
        file: module.clone(),
        files: files.used_by(module).into_keys().cloned().collect(),
        paths: files.sources[module].paths.iter().map(|(_, path)| path.clone()).collect(),
    };
    files.sources.keys().map(of).collect()
}

pub(super) fn file_name(module: &Module) -> String {
    if module.is_empty() { "the root".to_owned() } else { format!("{}.rs", module.join("/")) }
}

impl Files {
    fn read(folder: &Path) -> Self {
        let mut sources = BTreeMap::new();
        // A program beside a library is a crate of its own, which has one file.
        let root = ["lib.rs", "main.rs"].iter().map(|name| folder.join(name)).find(|path| path.exists());
        if let Some(root) = root {
            sources.insert(Module::new(), Source::parse(&std::fs::read_to_string(root).unwrap()));
        }
        read_below(folder, &Module::new(), &mut sources);
        let for_tests: Vec<Module> = sources
            .iter()
            .flat_map(|(module, source)| source.test_modules.iter().map(|name| child(module, name)))
            .collect();
        sources.retain(|module, _| !for_tests.iter().any(|test| module.starts_with(test)));
        Self { sources }
    }

    /// The files that a file uses, each with a path that says so.
    fn used_by(&self, module: &Module) -> BTreeMap<&Module, String> {
        let mut used = BTreeMap::new();
        for (inline, path) in &self.sources[module].paths {
            let Some(target) = self.target(&[&module[..], &inline[..]].concat(), path) else { continue };
            if target != module {
                used.entry(target).or_insert_with(|| path.join("::"));
            }
        }
        used
    }

    /// The file that holds what a path in a module leads to; `None` for other crates and names of the module itself.
    fn target(&self, module: &Module, path: &Words) -> Option<&Module> {
        let ups = path.iter().take_while(|word| *word == "super").count();
        let mut full = match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "super" => [&module[..module.len().saturating_sub(ups)], &path[ups..]].concat(),
            "self" => [&module[..], &path[1..]].concat(),
            name if self.sources.contains_key(&child(module, name)) => [&module[..], path].concat(),
            _ => return None,
        };
        while !self.sources.contains_key(&full) {
            full.pop()?;
        }
        self.sources.get_key_value(&full).map(|(module, _)| module)
    }
}

fn child(module: &Module, name: &str) -> Module {
    let mut child = module.clone();
    child.push(name.to_owned());
    child
}

fn read_below(folder: &Path, module: &Module, sources: &mut BTreeMap<Module, Source>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let is_root = module.is_empty() && ["lib", "main", "bin"].contains(&name.as_str());
        if path.is_dir() && !is_root {
            read_below(&path, &child(module, &name), sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_root {
            sources.insert(child(module, &name), Source::parse(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn a_circle_is_named_and_a_parent_may_use_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a; mod b; mod c; pub use c::C;");
    write("a.rs", "mod child; use crate::b::B; use child::X; #[cfg(test)] mod tests;");
    write("a/child.rs", "use crate::b;");
    write("a/tests.rs", "use super::*;");
    write("b.rs", "#[cfg(test)] use crate::a::A;");
    write("c.rs", "fn f() { crate::b::B; }");
    assert_eq!(of_crate(folder.path()), [] as [String; 0]);
    write("a/child.rs", "");
    write("b.rs", "use crate::c::C;");
    write("c.rs", "use super::a::A;");
    let circle = "a.rs ─► b.rs (crate::b::B) ─► c.rs (crate::c::C) ─► a.rs (super::a::A)";
    assert_eq!(of_crate(folder.path()), [circle]);
    write("b.rs", "");
    write("c.rs", "use crate::Thing;");
    assert_eq!(of_crate(folder.path()), ["the root ─► c.rs (c::C) ─► the root (crate::Thing)"]);
    write("c.rs", "");
    write("a/child.rs", "use super::A;");
    assert_eq!(of_crate(folder.path()), ["a.rs ─► a/child.rs (child::X) ─► a.rs (super::A)"]);
}
