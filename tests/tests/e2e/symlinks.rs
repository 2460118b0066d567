//! Symbolic links of a folder and of a bucket: they lead to files and folders of the dataset, and never out of it.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;
use serde_json::Value;

fn import(lab: &Lab, url: &str, flags: &[&str]) -> Value {
    let mut args = vec!["import", url, "--json"];
    args.extend(flags);
    serde_json::from_str(&lab.larder_ok(&args)).unwrap()
}

/// The keys that an import left out, with the reasons.
fn left_out(said: &Value) -> BTreeMap<String, String> {
    let text = |skipped: &Value, field: &str| skipped[field].as_str().unwrap().to_owned();
    let skipped = said["skipped"].as_array().unwrap().iter();
    skipped.map(|skipped| (text(skipped, "key"), text(skipped, "reason"))).collect()
}

/// All names of a mount, with the text of each link.
fn tree(mount: &Mount) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![mount.dir().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let link = kind.is_symlink().then(|| std::fs::read_link(&path).unwrap().to_str().unwrap().to_owned());
            if kind.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path.strip_prefix(mount.dir()).unwrap().to_str().unwrap().to_owned(), link);
        }
    }
    found
}

/// Makes a folder with files and links.
fn folder_of(lab: &Lab, files: &[(&str, &[u8])], links: &[(&str, &str)]) -> (PathBuf, String) {
    let folder = lab.folder().join("origin");
    let place = |path: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    files.iter().for_each(|(path, bytes)| std::fs::write(place(path), bytes).unwrap());
    links.iter().for_each(|(path, target)| symlink(target, place(path)).unwrap());
    let url = format!("file://{}", folder.display());
    (folder, url)
}

// SEMANTICS: N6
#[test]
fn a_cache_of_hugging_face_reads_through_its_links_and_caches_each_blob_once() {
    let lab = Lab::new();
    let blobs = [seeded_bytes(1, 300_000), seeded_bytes(2, 20_000)];
    let (_, url) = folder_of(
        &lab,
        &[("models--x/blobs/aa", &blobs[0]), ("models--x/blobs/bb", &blobs[1]), ("models--x/refs/main", b"rev")],
        &[
            ("models--x/snapshots/rev/model.safetensors", "../../blobs/aa"),
            ("models--x/snapshots/rev/config/tokenizer.json", "../../../blobs/bb"),
            ("models--x/snapshots/latest", "rev"),
            ("current", "models--x/snapshots/latest"),
            ("all", "."),
        ],
    );
    let said = import(&lab, &url, &[]);
    assert_eq!((&said["files"], &said["links"], left_out(&said)), (&3.into(), &5.into(), BTreeMap::new()));
    assert_eq!(import(&lab, &url, &["--restart"])["snapshot"], said["snapshot"]);

    let mount = lab.mount("m", &url, &[]);
    let link = |text: &str| Some(text.to_owned());
    let expected = [
        ("all", link(".")),
        ("current", link("models--x/snapshots/rev")),
        ("models--x", None),
        ("models--x/blobs", None),
        ("models--x/blobs/aa", None),
        ("models--x/blobs/bb", None),
        ("models--x/refs", None),
        ("models--x/refs/main", None),
        ("models--x/snapshots", None),
        ("models--x/snapshots/latest", link("rev")),
        ("models--x/snapshots/rev", None),
        ("models--x/snapshots/rev/config", None),
        ("models--x/snapshots/rev/config/tokenizer.json", link("../../../blobs/bb")),
        ("models--x/snapshots/rev/model.safetensors", link("../../blobs/aa")),
    ];
    assert_eq!(tree(&mount), expected.map(|(path, link)| (path.to_owned(), link)).into());
    for (path, blob) in [
        ("models--x/blobs/aa", &blobs[0]),
        ("models--x/snapshots/rev/model.safetensors", &blobs[0]),
        ("models--x/snapshots/latest/model.safetensors", &blobs[0]),
        ("current/model.safetensors", &blobs[0]),
        ("current/config/tokenizer.json", &blobs[1]),
        ("all/all/current/config/../model.safetensors", &blobs[0]),
    ] {
        assert!(std::fs::read(mount.path(path)).unwrap() == **blob, "{path}");
    }
    let link = mount.path("models--x/snapshots/rev/model.safetensors");
    let about = link.symlink_metadata().unwrap();
    assert_eq!((about.len(), about.mode() & 0o777), ("../../blobs/aa".len() as u64, 0o777));
    let blob = mount.path("models--x/blobs/aa").metadata().unwrap();
    assert_eq!((link.metadata().unwrap().ino(), link.metadata().unwrap().len()), (blob.ino(), 300_000));
    mount.settle();
    assert_eq!(mount.metric("fs_origin_bytes_total"), 320_000, "{:#}", mount.stats());
    let verified = lab.larder_ok(&["verify", mount.dir().to_str().unwrap()]);
    assert!(verified.contains("3 files read") && verified.contains("0 problems"), "{verified}");
}

// SEMANTICS: N4, N6
#[test]
fn links_out_of_a_folder_in_circles_or_to_nothing_are_reported_and_have_no_name() {
    let lab = Lab::new();
    std::fs::write(lab.folder().join("secret"), b"secret").unwrap();
    let (folder, url) = folder_of(
        &lab,
        &[("data/file", b"good"), ("other", b"good")],
        &[
            ("good", "data/file"),
            ("chain", "data/to-good"),
            ("data/to-good", "../good"),
            ("absolute", "/etc/passwd"),
            ("up", "../secret"),
            ("data/up", "../../secret"),
            ("through", "data/up"),
            ("parent", ".."),
            ("itself", "itself"),
            ("circle-1", "circle-2"),
            ("circle-2", "circle-1"),
            ("lost", "data/none"),
            ("below-a-file", "data/file/x"),
        ],
    );
    // An absolute path into the folder itself is one out of the dataset, too: elsewhere it may be another folder.
    symlink(folder.join("other"), folder.join("own")).unwrap();
    let (out, circle) =
        ("a symbolic link out of the dataset", "a symbolic link in a circle, or through more than 40 others");
    let nowhere = "a symbolic link to nothing in the dataset";
    let expected = [
        ("absolute", out),
        ("below-a-file", nowhere),
        ("circle-1", circle),
        ("circle-2", circle),
        ("data/up", out),
        ("itself", circle),
        ("lost", nowhere),
        ("own", out),
        ("parent", out),
        ("through", out),
        ("up", out),
    ];
    let said = import(&lab, &url, &[]);
    assert_eq!(left_out(&said), expected.map(|(key, reason)| (key.to_owned(), reason.to_owned())).into());
    let mount = lab.mount("m", &url, &[]);
    let link = |text: &str| Some(text.to_owned());
    let names = [
        ("chain", link("data/file")),
        ("data", None),
        ("data/file", None),
        ("data/to-good", link("file")),
        ("good", link("data/file")),
        ("other", None),
    ];
    assert_eq!(tree(&mount), names.map(|(path, link)| (path.to_owned(), link)).into());
    for path in ["chain", "data/to-good", "good"] {
        assert_eq!(std::fs::read(mount.path(path)).unwrap(), b"good", "{path}");
    }
    let plain = String::from_utf8(lab.larder(&["import", &url]).stderr).unwrap();
    assert!(plain.contains(&format!("skipped 6 keys: {out}")) && plain.contains("    through"), "{plain}");
}

// SEMANTICS: N4
#[test]
fn a_link_or_a_file_that_is_exchanged_after_the_import_leads_nowhere_else() {
    let lab = Lab::new();
    std::fs::write(lab.folder().join("secret"), b"secret").unwrap();
    let (folder, url) = folder_of(
        &lab,
        &[("data/file", b"good"), ("data/other", b"good"), ("sub/below", b"good")],
        &[("link", "data/file"), ("to-other", "data/other"), ("dir", "sub")],
    );
    let mount = lab.mount("m", &url, &[]);
    let exchange = |path: &str, target: &Path| {
        let path = folder.join(path);
        if path.symlink_metadata().unwrap().is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        symlink(target, path).unwrap();
    };
    // The link that was listed is not read again.
    exchange("link", Path::new("../secret"));
    assert_eq!(std::fs::read_link(mount.path("link")).unwrap(), Path::new("data/file"));
    assert_eq!(std::fs::read(mount.path("link")).unwrap(), b"good");
    // What it leads to is read, and not through a link.
    exchange("data/other", Path::new("../../secret"));
    assert!(std::fs::read(mount.path("to-other")).is_err());
    std::fs::create_dir(lab.folder().join("outside")).unwrap();
    std::fs::write(lab.folder().join("outside/below"), b"secret").unwrap();
    exchange("sub", &lab.folder().join("outside"));
    assert!(std::fs::read(mount.path("dir/below")).is_err());
}

// SEMANTICS: N4, N6
#[test]
fn objects_that_rclone_made_of_links_are_links_on_request_over_refreshes_and_in_packs() {
    let lab = Lab::new();
    lab.put("blobs/aa", b"the blob".to_vec());
    lab.put("snapshots/rev/plain", b"plain".to_vec());
    for (key, target) in [
        ("snapshots/rev/model.rclonelink", &b"../../blobs/aa"[..]),
        ("latest.rclonelink", b"snapshots/rev"),
        ("out.rclonelink", b"../../etc/passwd"),
        ("absolute.rclonelink", b"/etc/passwd"),
        ("nul.rclonelink", b"blobs\0aa"),
        ("empty.rclonelink", b""),
    ] {
        lab.put(key, target.to_vec());
    }
    lab.put("large.rclonelink", vec![b'x'; 5_000_000]);

    let plain = import(&lab, &lab.url(), &[]);
    assert_eq!((&plain["files"], &plain["links"]), (&9.into(), &0.into()));
    lab.server.reset_counters();
    let said = import(&lab, &lab.url(), &["--links"]);
    assert_eq!((&said["files"], &said["links"]), (&2.into(), &2.into()));
    let (out, no_path) = ("a symbolic link out of the dataset", "a symbolic link that contains no path");
    let expected = [
        ("absolute.rclonelink", out),
        ("empty.rclonelink", no_path),
        ("large.rclonelink", no_path),
        ("nul.rclonelink", no_path),
        ("out.rclonelink", out),
    ];
    assert_eq!(left_out(&said), expected.map(|(key, reason)| (key.to_owned(), reason.to_owned())).into());
    assert_eq!((lab.gets_of("large.rclonelink"), lab.gets_of("empty.rclonelink")), (0, 0));
    assert_eq!(import(&lab, &lab.url(), &["--links"])["snapshot"], said["snapshot"]);

    let mount = lab.mount("m", &lab.url(), &[]);
    assert_eq!(std::fs::read_link(mount.path("snapshots/rev/model")).unwrap(), Path::new("../../blobs/aa"));
    for path in ["snapshots/rev/model", "latest/model", "blobs/aa"] {
        assert_eq!(std::fs::read(mount.path(path)).unwrap(), b"the blob", "{path}");
    }
    assert!(!mount.path("out").exists() && mount.path("out").symlink_metadata().is_err());
    drop(mount);

    lab.put("more.rclonelink", b"blobs/aa".to_vec());
    let renewed = lab.mount("renewed", &lab.url(), &["--refresh"]);
    assert_eq!(std::fs::read(renewed.path("more")).unwrap(), b"the blob");
    drop(renewed);

    lab.larder_ok(&["pack", &lab.url(), "s3://bucket/packed"]);
    let packed = lab.mount("packed", "s3://bucket/packed", &[]);
    for path in ["snapshots/rev/model", "latest/model", "more"] {
        assert_eq!(std::fs::read(packed.path(path)).unwrap(), b"the blob", "{path}");
    }
}
