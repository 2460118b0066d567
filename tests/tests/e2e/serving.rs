//! A model that `transformers` loads from a mount: it is the same as the one that was written.

use std::path::Path;
use std::process::Command;

use larder_e2e::Lab;
use larder_testkit::repository;

/// Runs the program of the example; `None` if Python lacks its packages.
fn tiny_model(args: [&str; 2]) -> Option<String> {
    let loaders = std::env::var_os("LARDER_CACHE")
        .map_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/larder"), Into::into)
        .join("bench/bin/python-with-loaders");
    let python = if loaders.exists() { loaders } else { "python3".into() };
    let program = repository().join("deploy/example/tiny_model.py");
    let output = Command::new(python).arg(program).args(args).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    if words.contains("ModuleNotFoundError") {
        return None;
    }
    assert!(output.status.success(), "{words}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
#[ignore = "needs transformers and PyTorch, which are large: make soak"]
fn transformers_loads_a_model_from_a_mount() {
    let lab = Lab::new();
    let made = lab.folder().join("model");
    let made_path = made.to_str().unwrap();
    if tiny_model(["make", made_path]).is_none() {
        println!("SKIPPED: no transformers: bench/install-peers --loaders installs it");
        return;
    }
    for file in std::fs::read_dir(&made).unwrap() {
        let file = file.unwrap();
        lab.put(file.file_name().to_str().unwrap(), std::fs::read(file.path()).unwrap());
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    let from_mount = tiny_model(["load", mount.dir().to_str().unwrap()]).unwrap();
    assert!(from_mount.split_whitespace().count() > 8, "the prompt and what was generated: {from_mount}");
    assert_eq!(from_mount, tiny_model(["load", made_path]).unwrap());
}
