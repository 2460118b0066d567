//! Arrows point one way: between crates as ARCHITECTURE.md draws them, and between the files of a crate.

mod circles;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use larder_testkit::repository;

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(repository().join("Cargo.toml")).no_deps().exec().unwrap()
}

/// True if arrows lead from one crate to another.
fn is_below(arrows: &BTreeMap<&str, BTreeSet<&str>>, from: &str, to: &str) -> bool {
    arrows.get(from).is_some_and(|next| next.contains(to) || next.iter().any(|next| is_below(arrows, next, to)))
}

#[test]
fn the_crates_depend_on_each_other_as_drawn() {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let drawing = text.split("## Crates").nth(1).unwrap().split("```").nth(1).unwrap();
    let mut allowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in drawing.lines().filter(|line| line.contains("──►")) {
        let (from, to) = line.split_once("──►").unwrap();
        for from in from.split(',') {
            allowed.entry(from.trim()).or_default().extend(to.split(',').map(str::trim));
        }
    }
    let short =
        |name: &str| if name == "larder" { "cli".to_owned() } else { name.trim_start_matches("larder-").to_owned() };
    for package in &metadata().packages {
        let from = short(&package.name);
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let to = short(&dependency.name);
            // Tests and benchmarks may use these, and whatever is below their crate, past the floors between.
            let for_tests = dependency.kind == DependencyKind::Development
                && (["testkit", "s3-server", "fake-platform", "dataset", "telemetry", "origin"].contains(&to.as_str())
                    || is_below(&allowed, &from, &to));
            let drawn = allowed.get(from.as_str()).is_some_and(|to_these| to_these.contains(to.as_str()));
            assert!(drawn || for_tests, "{from} ──► {to} is not drawn in ARCHITECTURE.md");
        }
        assert!(allowed.contains_key(from.as_str()), "{from} is not drawn in ARCHITECTURE.md");
    }
}

#[test]
fn only_the_crates_of_kubernetes_link_its_client() {
    let metadata = metadata();
    for package in &metadata.packages {
        // The repository itself may lie in a folder of this name.
        let is_there = package.manifest_path.starts_with(metadata.workspace_root.join("kubernetes"));
        let kube = package.dependencies.iter().find(|dependency| dependency.name.starts_with("kube"));
        assert!(is_there || kube.is_none(), "{} links {}: use larder-kube", package.name, kube.unwrap().name);
    }
}

#[test]
fn the_files_of_a_crate_use_each_other_one_way() {
    let mut found = String::new();
    for package in &metadata().packages {
        let folder = package.manifest_path.parent().unwrap().join("src");
        let circles = circles::of_crate(folder.as_std_path());
        for circle in circles {
            found += &format!("\n{}: {circle}", package.name);
        }
    }
    assert!(found.is_empty(), "move what two files share down into a file of its own:{found}");
}

#[test]
fn the_two_wings_of_the_controller_do_not_use_each_other() {
    for uses in circles::uses(&repository().join("controller/src")) {
        // Both wings use Kueue's objects and the reduced objects of the root, so those use neither wing.
        let below = ["kueue", "objects", "read"];
        let of_root = below.into_iter().flat_map(|below| [(below, "jobs"), (below, "datasets")]);
        for (wing, other) in [("jobs", "datasets"), ("datasets", "jobs")].into_iter().chain(of_root) {
            let other = uses.files.iter().find(|file| file.first().is_some_and(|first| first == other));
            if uses.file.first().is_some_and(|first| first == wing)
                && let Some(other) = other
            {
                let (file, other) = (circles::file_name(&uses.file), circles::file_name(other));
                panic!("{file} uses {other}: move what both need to the root of the controller");
            }
        }
    }
}

/// Decisions about jobs are made without the API: only the files that talk to it, and those that read its objects, see a
/// client. The others see what `larder-kube` knows about objects that it has read.
#[test]
fn decisions_about_jobs_do_not_see_the_kubernetes_client() {
    let pure = ["Resource", "events", "fields", "key", "kinds", "node", "pod", "short_hash", "store"];
    for uses in circles::uses(&repository().join("controller/src")) {
        let decides = uses.file.first().is_some_and(|first| first == "jobs")
            && !uses.file.last().is_some_and(|last| ["discovery", "read"].contains(&last.as_str()));
        for path in uses.paths.iter().filter(|path| decides && path[0] == "larder_kube") {
            let file = circles::file_name(&uses.file);
            let is_pure = path.get(1).is_some_and(|module| pure.contains(&module.as_str()));
            assert!(is_pure, "{file} uses {}: it is to be pure", path.join("::"));
        }
    }
}
