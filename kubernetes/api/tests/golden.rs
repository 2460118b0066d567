//! `deploy/crds` has the definitions that the types generate. With `LARDER_WRITE_GOLDEN=1` the files are written
//! instead of compared.

use std::path::Path;

use larder_api::definitions;

/// The largest object that `kubectl apply` can keep in its annotation.
const APPLIED_BYTES: usize = 256 << 10;

#[test]
fn the_definitions_in_deploy_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let mut names = Vec::new();
    for definition in definitions::all() {
        let name = definition.metadata.name.clone().expect("a definition has a name");
        let file = format!("{name}.yaml");
        let text = format!(
            "# Generated from kubernetes/api: run its test `golden` with LARDER_WRITE_GOLDEN=1.\n{}",
            serde_yaml_ng::to_string(&definition).expect("a definition is YAML")
        );
        let json = serde_json::to_string(&definition).expect("a definition is JSON");
        assert!(json.len() < APPLIED_BYTES, "{name} has {} bytes: too large for kubectl apply", json.len());
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join(&file), &text).expect("written");
        }
        let kept = std::fs::read_to_string(folder.join(&file)).unwrap_or_default();
        assert!(kept == text, "deploy/crds/{file} is stale: run this test with LARDER_WRITE_GOLDEN=1");
        names.push(file);
    }
    let mut kept: Vec<_> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    kept.sort();
    names.sort();
    assert_eq!(kept, names, "deploy/crds holds the definitions and nothing else");
}
