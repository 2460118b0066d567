//! The main job with Google Cloud Storage and Azure, against their emulators. Mirrors in every kind of store.

use larder_e2e::Lab;
use larder_testkit::{RealServer, ServerKind, seeded_bytes};
use rustix::io::Errno;
use serde_json::{Value, json};

const KINDS: [ServerKind; 2] = [ServerKind::Gcs, ServerKind::Azurite];

/// More files than a page of a listing, beside enough folders that each is listed flat.
fn small_files() -> impl Iterator<Item = (String, Vec<u8>)> {
    let path = |n| if n < 70 { format!("folder-{n:02}/x.jpg") } else { format!("many/{:02}/{n:04}.jpg", n / 300) };
    (0..1200).map(move |n| (path(n), seeded_bytes(n, 1 + n * 7)))
}

fn all_files() -> Vec<(String, Vec<u8>)> {
    let odd =
        ["with space", "100%", "a%2Fb", "a+b", "hash#tag", "q?x=y&z", "ünï/日本語", "quote'double\"back`", "...", "=x"];
    let odd = odd.iter().enumerate().map(|(n, name)| (format!("odd/{name}"), seeded_bytes(n as u64, 1000)));
    let large = [("large/9MB.bin".to_owned(), seeded_bytes(9, 9_000_001)), ("empty".to_owned(), Vec::new())];
    small_files().chain(odd).chain(large).collect()
}

/// A lab whose commands use an emulator, if that is installed.
fn lab(kind: ServerKind) -> Option<(Lab, RealServer)> {
    let server = RealServer::start(kind)?;
    let mut lab = Lab::new();
    let mut variables = server.env();
    variables.push(("LARDER_ENDPOINT", server.endpoint().to_owned()));
    lab.set_variables(variables);
    Some((lab, server))
}

fn fill(server: &RealServer, files: &[(String, Vec<u8>)]) {
    let keys: Vec<String> = files.iter().map(|(path, _)| format!("data/{path}")).collect();
    server.fill(keys.iter().zip(files).map(|(key, (_, bytes))| (key.as_str(), bytes.as_slice())));
}

fn mounts_and_reads_every_file(kind: ServerKind) {
    let Some((lab, server)) = lab(kind) else { return };
    let files = all_files();
    fill(&server, &files);
    let mount = lab.mount("m", &server.url("data"), &[]);
    for _ in 0..2 {
        for (path, bytes) in &files {
            assert!(mount.read_fresh(path).unwrap() == *bytes, "{kind:?} {path}");
        }
        mount.settle();
    }
    // Three blocks of the large one, and none of the empty one.
    assert_eq!(mount.metric("fs_origin_gets_total"), files.len() as u64 - 2 + 3, "{kind:?}");
    assert_eq!(mount.metric("fs_origin_errors_total"), 0, "{kind:?}");
    lab.larder_ok(&["verify", mount.dir().to_str().unwrap()]);
}

fn publishes_packs_and_manifests(kind: ServerKind) {
    let Some((lab, server)) = lab(kind) else { return };
    let folder = lab.folder().join("origin");
    std::fs::create_dir(&folder).unwrap();
    for n in 0..30 {
        std::fs::write(folder.join(n.to_string()), seeded_bytes(n, 700_000)).unwrap();
    }
    // A pack of 20 MB is uploaded in parts.
    let packed = server.url("packed");
    let said = lab.larder_ok(&["pack", &format!("file://{}", folder.display()), &packed, "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["packs"], 1, "{kind:?}");
    lab.larder_ok(&["verify", &packed, "--deep"]);
    let mount = lab.mount("packed", &packed, &[]);
    for n in 0..30 {
        assert!(mount.read_fresh(n.to_string()).unwrap() == seeded_bytes(n, 700_000), "{kind:?} {n}");
    }

    fill(&server, &[("x".into(), b"listed".to_vec())]);
    let manifest = server.url("manifests/today.manifest");
    lab.larder_ok(&["import", &server.url("data"), "--to", &manifest]);
    fill(&server, &[("y".into(), b"later".to_vec())]);
    let mount = lab.mount("listed", &manifest, &[]);
    assert_eq!(mount.read_fresh("x").unwrap(), b"listed", "{kind:?}");
    assert!(!mount.path("y").exists(), "{kind:?}: the manifest is of before");
}

fn tells_replaced_objects_and_refused_keys_by_their_errno(kind: ServerKind) {
    let Some((mut lab, server)) = lab(kind) else { return };
    let file = |path: &str, byte: u8| (path.to_owned(), vec![byte; 5000]);
    fill(&server, &[file("kept", 1), file("replaced", 1), file("other", 1)]);
    let manifest = lab.folder().join("data.manifest");
    let manifest = manifest.to_str().unwrap();
    lab.larder_ok(&["import", &server.url("data"), "--to", manifest]);
    let errno = |read: std::io::Result<Vec<u8>>| Errno::from_io_error(&read.unwrap_err()).unwrap();

    let mount = lab.mount("stale", manifest, &[]);
    fill(&server, &[file("replaced", 2)]);
    assert_eq!(errno(mount.read_fresh("replaced")), Errno::STALE, "{kind:?}");
    assert_eq!(mount.read_fresh("kept").unwrap(), [1; 5000], "{kind:?}");
    drop(mount);

    let mut variables = server.wrong_env();
    variables.push(("LARDER_ENDPOINT", server.endpoint().to_owned()));
    lab.set_variables(variables);
    let refused = lab.larder_fails(1, &["import", &server.url("data"), "--to", "/dev/null/x"]);
    assert!(refused.contains("access denied by the origin"), "{kind:?}: {refused}");
    assert_eq!(refused.matches("status code").count(), 1, "{kind:?}: each cause once: {refused}");
    assert!(!refused.contains("hunter2"), "{kind:?}: {refused}");
    let mount = lab.mount("denied", manifest, &[]);
    assert_eq!(errno(mount.read_fresh("other")), Errno::ACCESS, "{kind:?}");
}

fn takes_a_prefix_without_keys_for_misspelt_and_one_with_its_marker_for_empty(kind: ServerKind) {
    let Some((lab, server)) = lab(kind) else { return };
    fill(&server, &[("x".into(), b"1".to_vec())]);
    let url = server.url("nothing");
    let error = lab.larder_fails(1, &["import", &url]);
    // The error names the marker that this cloud lists.
    let marker = if kind == ServerKind::Azurite { "nothing/.larder/empty" } else { "nothing/" };
    assert!(error.contains(&format!("empty object with the key {marker} there")), "{kind:?}: {error}");
    server.fill([(marker, &b""[..])]);
    let said: serde_json::Value = serde_json::from_str(&lab.larder_ok(&["import", &url, "--json"])).unwrap();
    assert_eq!(said["files"], 0, "{kind:?}: {said}");
}

fn keeps_a_mirror(kind: ServerKind) {
    const SMALL: u64 = 100;
    let Some((lab, server)) = lab(kind) else { return };
    let folder = |name: &str| lab.folder().join(name);
    std::fs::create_dir(folder("origin")).unwrap();
    let file = |n: u64| seeded_bytes(n, if n < SMALL { 1 + n * 7 } else { 40_000_001 });
    for n in 0..=SMALL {
        std::fs::write(folder("origin").join(n.to_string()), file(n)).unwrap();
    }
    let sync = |from: &str, to: &str| -> Value {
        serde_json::from_str(&lab.larder_ok(&["sync", from, to, "--json"])).unwrap()
    };
    let (source, back) = (folder("origin"), folder("back"));
    let [source, back] = [source, back].map(|folder| format!("file://{}", folder.display()));
    let (copy, beside) = (server.url("copy"), server.url("beside"));
    // From a folder into the store, within it, and back into a folder. The large one is uploaded in parts.
    for (from, to) in [(&source, &copy), (&copy, &beside), (&beside, &back)] {
        let done = sync(from, to);
        assert_eq!(done["objects_copied"], SMALL + 1, "{kind:?} {from}: {done}");
        let is_by_store = from == &copy && matches!(kind, ServerKind::Minio | ServerKind::Ceph);
        assert_eq!(done["objects_copied_by_store"] != 0, is_by_store, "{kind:?} {from}: {done}");
        lab.larder_ok(&["verify", to, "--deep"]);
        let again = sync(from, to);
        assert_eq!((&again["objects_copied"], &again["published"]), (&json!(0), &json!(false)), "{kind:?} {from}");
    }
    for n in 0..=SMALL {
        assert!(std::fs::read(folder("back").join(n.to_string())).unwrap() == file(n), "{kind:?} {n}");
    }
    let mount = lab.mount("beside", &beside, &[]);
    for n in [0, 7, SMALL] {
        assert!(mount.read_fresh(n.to_string()).unwrap() == file(n), "{kind:?} {n}");
    }
}

// SEMANTICS: M1, M2
#[test]
fn mirrors_in_every_kind_of_store_know_what_they_have() {
    [ServerKind::Minio, ServerKind::Ceph, ServerKind::Gcs, ServerKind::Azurite].into_iter().for_each(keeps_a_mirror);
}

// SEMANTICS: I9
#[test]
fn a_prefix_without_keys_in_another_cloud_is_an_error_that_names_a_marker_it_lists() {
    KINDS.into_iter().for_each(takes_a_prefix_without_keys_for_misspelt_and_one_with_its_marker_for_empty);
}

// SEMANTICS: I4
#[test]
fn buckets_of_other_clouds_are_listed_in_pages_mounted_and_read() {
    KINDS.into_iter().for_each(mounts_and_reads_every_file);
}

// SEMANTICS: I4
#[test]
fn packs_and_manifests_are_published_in_other_clouds() {
    KINDS.into_iter().for_each(publishes_packs_and_manifests);
}

// SEMANTICS: V2
#[test]
fn replaced_objects_and_refused_keys_of_other_clouds_have_their_errno() {
    KINDS.into_iter().for_each(tells_replaced_objects_and_refused_keys_by_their_errno);
}
