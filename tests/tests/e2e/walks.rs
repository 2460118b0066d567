//! The ways of two new users, walked by `tests/walk/walk.sh`: every command and manifest of the documents, in the order in which a
//! reader meets them, over real servers. The script prints what it ran, with times, and fails with the page and line of the command
//! that failed.

use std::path::Path;
use std::process::{Command, Stdio};

use larder_testkit::{built, larder_binary, repository};

/// Whether what a walk needs is installed. Otherwise this prints `skipped: …`, and panics where CI is set.
fn is_installed(script: &str) -> bool {
    let script = repository().join(script);
    let installed =
        Command::new(&script).arg("check").stderr(Stdio::inherit()).status().expect("the script runs").success();
    if !installed {
        let message = format!("skipped: {} is not installed: run {0} install", script.display());
        assert!(std::env::var_os("CI").is_none(), "{message}");
        eprintln!("\n{message}\n");
    }
    installed
}

/// The folder of the programs. They must be current, so all that the walk uses are asked for.
fn programs(names: &[&str]) -> std::path::PathBuf {
    let larder = larder_binary();
    for name in names {
        assert!(built(name).is_file(), "{name}");
    }
    larder.parent().unwrap().to_owned()
}

fn walk(args: &[&str], bin: &Path) {
    let output = Command::new(repository().join("tests/walk/walk.sh")).args(args).arg(bin).output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn researcher(server: &str) {
    if is_installed(&format!("tests/servers/{server}.sh")) {
        walk(&["researcher", server], &programs(&["larderd", "cachenode"]));
    }
}

#[test]
fn a_researcher_walks_through_the_documents_with_minio() {
    researcher("minio");
}

#[test]
fn a_researcher_walks_through_the_documents_with_moto() {
    researcher("moto");
}

#[test]
fn a_researcher_walks_through_the_documents_with_rclone() {
    researcher("rclone");
}

#[test]
fn a_platform_engineer_walks_through_the_documents_on_a_cluster() {
    if is_installed("tests/cluster/cluster.sh") && is_installed("tests/servers/minio.sh") {
        // Its path must be short, since unix sockets are in it.
        let folder = tempfile::Builder::new().prefix("larder-walk-").tempdir_in("/tmp").unwrap();
        let all = ["larderd", "larder-csi", "cachenode", "larder-controller", "larder-scheduler-ext", "larder-devices"];
        walk(&["engineer", folder.path().join("c").to_str().unwrap()], &programs(&all));
    }
}
