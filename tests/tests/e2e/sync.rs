//! Mirrors: snapshots that `larder sync` copies between two servers, and that are mounted where they were copied to.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{BUCKET, Lab, Larderd, Mount, OTHER_KEYS, Plugin, SECRET, wait_until};
use larder_testkit::{Fault, seeded_bytes};
use serde_json::{Value, json};

use crate::csi::publish;

const COPY: &str = "s3://bucket/copy";

/// The most objects that a copy has under way.
const AT_ONCE: usize = 64;

/// Two servers: one with the dataset, one for the mirror.
struct Labs {
    here: Lab,
    there: Lab,
    puts: Arc<Mutex<Puts>>,
}

/// The objects that the server of the mirror was sent.
struct Puts {
    /// How often, by path.
    counts: HashMap<String, usize>,
    /// The most paths that it takes. Further ones hang.
    most: usize,
}

impl Labs {
    fn new(files: u64) -> Self {
        let puts = Arc::new(Mutex::new(Puts { counts: HashMap::new(), most: usize::MAX }));
        let labs = Self { here: Lab::new(), there: Lab::new(), puts: Arc::clone(&puts) };
        for n in 0..files {
            labs.here.put(&name(n), contents(n));
        }
        labs.there.proxy.set_hook(move |head| {
            let mut puts = puts.lock().unwrap();
            if head.method != "PUT" {
                return Fault::None;
            }
            if puts.counts.len() >= puts.most && !puts.counts.contains_key(&head.path) {
                return Fault::StallBeforeHead;
            }
            *puts.counts.entry(head.path.clone()).or_default() += 1;
            Fault::None
        });
        labs
    }

    fn args<'a>(&self, more: &[&'a str], endpoint: &'a str) -> Vec<&'a str> {
        [&["sync", "s3://bucket/data", COPY, "--to-endpoint", endpoint][..], more].concat()
    }

    fn sync(&self, more: &[&str]) -> Value {
        let endpoint = self.there.proxy.endpoint();
        let args = self.args(&[&["--json"][..], more].concat(), &endpoint);
        serde_json::from_str(&self.here.larder_ok(&args)).unwrap()
    }

    fn sync_fails(&self, more: &[&str]) -> String {
        let endpoint = self.there.proxy.endpoint();
        self.here.larder_fails(1, &self.args(more, &endpoint))
    }

    fn has_manifest(&self) -> bool {
        self.puts.lock().unwrap().counts.keys().any(|path| path.ends_with("/copy/.larder/manifest"))
    }
}

fn name(n: u64) -> String {
    format!("class-{}/{n:05}.jpg", n % 7)
}

fn contents(n: u64) -> Vec<u8> {
    seeded_bytes(n, 100 + n % 3000)
}

/// Reads every file of the mirror through a mount.
fn read_all(lab: &Lab, mount: &str, files: u64) {
    let mount = lab.mount(mount, COPY, &[]);
    for n in 0..files {
        assert_eq!(std::fs::read(mount.path(name(n))).unwrap(), contents(n), "{}", name(n));
    }
}

// SEMANTICS: M1, M2
#[test]
fn a_copy_that_is_killed_ten_times_writes_each_object_once_and_is_mounted_as_the_dataset() {
    const FILES: u64 = 2000;
    const KILLS: usize = 10;
    let labs = Labs::new(FILES);
    let endpoint = labs.there.proxy.endpoint();
    for kill in 1..=KILLS {
        let enough = kill * FILES as usize / (KILLS + 2);
        labs.puts.lock().unwrap().most = enough;
        let mut command = labs.here.command(&labs.args(&[], &endpoint));
        let mut copying = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("a part is copied", || {
            assert!(copying.try_wait().unwrap().is_none(), "the copy ended before it was killed");
            labs.puts.lock().unwrap().counts.len() >= enough
        });
        copying.kill().unwrap();
        copying.wait().unwrap();
        assert!(!labs.has_manifest(), "no manifest of a part");
    }
    labs.puts.lock().unwrap().most = usize::MAX;
    let done = labs.sync(&[]);
    assert!(done["objects_copied"].as_u64().unwrap() < FILES, "{done}");
    let counts = labs.puts.lock().unwrap().counts.clone();
    let written: usize = counts.iter().filter(|(path, _)| path.contains("class-")).map(|(_, count)| count).sum();
    assert!(written >= FILES as usize, "{written}");
    let again = written - FILES as usize;
    assert!(again <= KILLS * AT_ONCE, "{again} objects were written again, more than were under way at the kills");
    read_all(&labs.there, "m", FILES);
    let unchanged = labs.sync(&[]);
    assert_eq!(unchanged["objects_copied"], 0);
    assert_eq!(unchanged["published"], false);
    assert_eq!(labs.puts.lock().unwrap().counts, counts, "a mirror that is up to date is not written");
    let said = labs.there.larder_ok(&["verify", COPY, "--deep"]);
    assert!(said.contains(&format!("{FILES} of {FILES} files match")), "{said}");
}

// SEMANTICS: M4
#[test]
fn a_source_that_changes_is_an_error_that_says_so_and_the_mirror_stays_as_it_was() {
    let labs = Labs::new(50);
    labs.here.larder_ok(&["import", &labs.here.url()]);
    labs.here.put(&name(7), b"other bytes".to_vec());
    let error = labs.sync_fails(&[]);
    assert!(error.contains("changed or vanished at the source") && error.contains(&name(7)), "{error}");
    assert!(!labs.has_manifest());
    labs.here.put(&name(7), contents(7));
    labs.sync(&["--refresh"]);
    read_all(&labs.there, "m", 50);
    labs.here.larder_ok(&["import", &labs.here.url()]);
    labs.here.server.delete(BUCKET, &format!("data/{}", name(9)));
    labs.here.put("new", b"1".to_vec());
    labs.here.larder_ok(&["import", &labs.here.url()]);
    labs.here.put("new", b"2".to_vec());
    let error = labs.sync_fails(&[]);
    assert!(error.contains("new changed or vanished"), "{error}");
    read_all(&labs.there, "still", 50);
}

// SEMANTICS: M3
#[test]
fn a_flipped_byte_at_the_source_is_named_and_not_copied() {
    let labs = Labs::new(50);
    let (path, mut bytes) = (labs.here.folder().join("rotten"), contents(7));
    std::fs::write(&path, &bytes).unwrap();
    let key = format!("data/{}", name(7));
    let put = labs.here.server.put_file(BUCKET, &key, &path, bytes.len() as u64, None);
    labs.here.runtime().block_on(put).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = labs.sync_fails(&[]);
    assert!(error.contains(&format!("{} is corrupt at the source: MD5", name(7))), "{error}");
    assert!(!labs.has_manifest());
}

// SEMANTICS: M3
#[test]
fn bytes_that_are_flipped_on_their_way_to_the_mirror_are_refused_there_and_sent_again() {
    const FILES: u64 = 400;
    let labs = Labs::new(FILES);
    let with_md5 = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&with_md5);
    labs.there.proxy.set_hook(move |head| {
        // The first of them shows whether the server refuses a wrong MD5.
        match head.header("content-md5").map(|_| counted.fetch_add(1, Ordering::SeqCst)) {
            Some(nth) if nth % 20 == 10 => Fault::FlipBody,
            Some(_) | None => Fault::None,
        }
    });
    let done = labs.sync(&[]);
    assert_eq!(done["objects_copied"], FILES, "{done}");
    let with_md5 = with_md5.load(Ordering::SeqCst);
    assert!(with_md5 > FILES / 4, "objects are sent with their MD5: {with_md5}");
    read_all(&labs.there, "m", FILES);
}

// SEMANTICS: M2
#[test]
fn only_changes_are_copied_and_only_what_is_asked_for_is_removed() {
    let labs = Labs::new(50);
    assert_eq!(labs.sync(&[])["objects_copied"], 50);
    labs.here.server.delete(BUCKET, &format!("data/{}", name(3)));
    labs.here.put("new", b"1".to_vec());
    let dry = labs.sync(&["--refresh", "--dry-run", "--delete"]);
    assert_eq!(dry["objects_copied"], 1, "{dry}");
    assert_eq!(dry["bytes_copied"], 1, "{dry}");
    // The file, and the manifest of the snapshot before.
    assert_eq!(dry["objects_deleted"], 2, "{dry}");
    assert!(labs.there.larder_ok(&["verify", COPY]).contains("50 of 50"), "a dry run changes nothing");
    let done = labs.sync(&["--max-rate", "100MiB/s"]);
    assert_eq!(done["objects_copied"], 1, "{done}");
    assert_eq!(done["objects_deleted"], 0, "{done}");
    assert_eq!(labs.sync(&["--delete"])["objects_deleted"], 2);
    assert!(!labs.there.server.delete(BUCKET, &format!("copy/{}", name(3))), "it was removed");
    assert!(labs.there.larder_ok(&["verify", COPY]).contains("50 of 50"));
}

// SEMANTICS: M1
#[test]
fn copies_within_one_server_are_its_own_and_packs_are_copied_or_made_on_the_way() {
    let lab = Lab::new();
    (0..50).for_each(|n| lab.put(&name(n), contents(n)));
    let sync = |args: &[&str]| {
        let said = lab.larder_ok(&[&["sync"][..], args, &["--json"]].concat());
        serde_json::from_str::<Value>(&said).unwrap()
    };
    lab.larder_ok(&["import", &lab.url()]);
    lab.server.reset_counters();
    let done = sync(&[&lab.url(), COPY]);
    assert_eq!(done["objects_copied_by_store"], 50, "{done}");
    assert_eq!((0..50).map(|n| lab.gets_of(&name(n))).sum::<u64>(), 0, "no byte passed this machine");
    read_all(&lab, "copied", 50);

    lab.larder_ok(&["pack", &lab.url(), "s3://bucket/packed"]);
    let done = sync(&["s3://bucket/packed", "s3://bucket/packed-copy"]);
    assert_eq!(done["files"], 50, "{done}");
    let mirrored = done["mirrors"].clone();
    assert!(lab.larder_ok(&["verify", "s3://bucket/packed-copy", "--deep"]).contains("50 of 50"));

    let done = sync(&[&lab.url(), "s3://bucket/packed-on-the-way", "--pack"]);
    assert_ne!(done["mirrors"], mirrored, "it mirrors the plain files");
    assert!(lab.larder_ok(&["verify", "s3://bucket/packed-on-the-way", "--deep"]).contains("50 of 50"));
}

#[test]
fn a_folder_is_a_mirror_too_and_knows_what_it_has() {
    let lab = Lab::new();
    (0..50).for_each(|n| lab.put(&name(n), contents(n)));
    let folder = lab.folder().join("mirror");
    let url = format!("file://{}", folder.display());
    let sync = || -> Value { serde_json::from_str(&lab.larder_ok(&["sync", &lab.url(), &url, "--json"])).unwrap() };
    assert_eq!(sync()["objects_copied"], 50);
    assert_eq!(std::fs::read(folder.join(name(5))).unwrap(), contents(5));
    assert_eq!(sync()["objects_copied"], 0);
    let changed = folder.join(name(5));
    std::fs::write(&changed, vec![0; contents(5).len()]).unwrap();
    assert_eq!(sync()["objects_copied"], 1, "a file that was changed there");
    assert_eq!(std::fs::read(&changed).unwrap(), contents(5));
}

#[test]
fn the_mirror_has_credentials_of_its_own() {
    let labs = Labs::new(10);
    labs.there.revoke(&["AKIAIOSFODNN7EXAMPLE"]);
    assert!(labs.sync_fails(&[]).contains("access denied"));
    let keys = labs.here.folder().join("keys");
    std::fs::create_dir(&keys).unwrap();
    let write = |name: &str, value: &str| std::fs::write(Path::new(&keys).join(name), value).unwrap();
    write("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE");
    write("AWS_SECRET_ACCESS_KEY", SECRET);
    write("there.AWS_ACCESS_KEY_ID", OTHER_KEYS[0]);
    write("there.AWS_SECRET_ACCESS_KEY", SECRET);
    let keys = keys.to_str().unwrap();
    assert!(labs.sync_fails(&["--to-credentials-dir", keys]).contains("access denied"));
    let prefixed = ["--to-credentials-dir", keys, "--to-credentials-prefix", "there."];
    assert_eq!(labs.sync(&prefixed)["objects_copied"], 10);
}

/// A mount of the dataset that also reads from its mirror on the other server.
fn mount_both(labs: &Labs, name: &str, settings: &str) -> Mount {
    let mirror = format!("{COPY},name=there,endpoint={}{settings}", labs.there.proxy.endpoint());
    let mount = labs.here.mount(name, &labs.here.url(), &["--mirror", &mirror]);
    mount.wait_until("the mirror is used", |mount| origins(mount).iter().all(|origin| origin["unused"].is_null()));
    mount
}

/// The origins of a mount, in the order in which they are read.
fn origins(mount: &Mount) -> Vec<Value> {
    mount.stats()["origins"].as_array().unwrap().clone()
}

/// GETs of the dataset's files at both servers.
fn gets(labs: &Labs, files: u64) -> (u64, u64) {
    let of = |lab: &Lab, folder: &str| {
        (0..files).map(|n| lab.server.gets_of(BUCKET, &format!("{folder}/{}", name(n)))).sum::<u64>()
    };
    (of(&labs.here, "data"), of(&labs.there, "copy"))
}

// SEMANTICS: M5, M6
#[test]
fn a_mount_reads_the_first_origin_and_goes_on_at_the_other_when_it_dies() {
    const FILES: u64 = 60;
    let labs = Labs::new(FILES);
    labs.sync(&[]);
    labs.here.server.reset_counters();
    labs.there.server.reset_counters();
    let mount = mount_both(&labs, "m", ",first");
    for n in 0..20 {
        assert_eq!(std::fs::read(mount.path(name(n))).unwrap(), contents(n));
    }
    mount.settle();
    assert_eq!(gets(&labs, FILES), (0, 20), "the mirror is first");
    labs.there.proxy.set_hook(|_| Fault::StallBeforeHead);
    std::thread::scope(|scope| {
        for n in 20..40 {
            let mount = &mount;
            scope.spawn(move || assert_eq!(std::fs::read(mount.path(name(n))).unwrap(), contents(n), "{n}"));
        }
    });
    mount.settle();
    assert_eq!(gets(&labs, FILES), (20, 20), "no file was fetched from both");
    assert!(origins(&mount)[0]["unused"].is_string(), "{:?}", origins(&mount));
    labs.there.proxy.set_hook(|_| Fault::None);
    wait_until("the mirror is used again", || origins(&mount)[0]["unused"].is_null());
    for n in 40..60 {
        assert_eq!(std::fs::read(mount.path(name(n))).unwrap(), contents(n));
    }
    mount.settle();
    assert_eq!(gets(&labs, FILES), (20, 40));
    // All of it is one snapshot in one cache.
    for n in 0..FILES {
        assert_eq!(mount.read_fresh(name(n)).unwrap(), contents(n));
    }
    assert_eq!(gets(&labs, FILES), (20, 40), "what is cached stays valid, wherever it came from");
}

// SEMANTICS: M6
#[test]
fn without_its_own_origin_a_mount_reads_from_the_mirror() {
    let labs = Labs::new(20);
    labs.sync(&[]);
    let mount = mount_both(&labs, "m", ",cost=3");
    labs.here.proxy.set_hook(|_| Fault::Reset);
    for n in 0..20 {
        assert_eq!(std::fs::read(mount.path(name(n))).unwrap(), contents(n));
    }
    let origins = origins(&mount);
    assert_eq!(origins[1]["mirror"], "there");
    assert!(origins[1]["bytes"].as_u64().unwrap() > 0, "{origins:?}");
}

// SEMANTICS: M6, K18
#[test]
fn a_volume_reads_its_mirror_with_the_keys_that_its_secret_has_for_it() {
    let labs = Labs::new(20);
    labs.sync(&[]);
    labs.there.revoke(&[labs.here.server.access_key()]);
    let larderd = Larderd::start(&labs.here, "mirrors", &[]);
    let plugin = Plugin::start(&labs.here, &larderd, &[]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    let target = plugin.path("kubelet/pods/a/mount");
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    let mut request = publish(&labs.here, &target);
    let mirrors = json!([{"name": "there", "source": COPY, "endpoint": labs.there.proxy.endpoint()}]);
    request.volume_context.insert("mirrors".to_owned(), mirrors.to_string());
    for (name, value) in [("there.AWS_ACCESS_KEY_ID", OTHER_KEYS[0]), ("there.AWS_SECRET_ACCESS_KEY", SECRET)] {
        request.secrets.insert(name.to_owned(), value.to_owned());
    }
    {
        let _in_runtime = labs.here.runtime().enter();
        let mut node = NodeClient::new(plugin.channel());
        labs.here.runtime().block_on(node.node_publish_volume(request)).unwrap();
    }
    let of_mirror = || -> Value {
        let stats = std::fs::read(target.join(".larder/stats.json")).unwrap();
        serde_json::from_slice::<Value>(&stats).unwrap()["origins"][1].clone()
    };
    wait_until("the mirror is used", || of_mirror()["mirror"] == "there" && of_mirror()["unused"].is_null());
    labs.here.proxy.set_hook(|_| Fault::Reset);
    for n in 0..20 {
        assert_eq!(std::fs::read(target.join(name(n))).unwrap(), contents(n));
    }
    assert!(of_mirror()["bytes"].as_u64().unwrap() > 0, "{}", of_mirror());
}

// SEMANTICS: M7
#[test]
fn objects_that_the_mirror_lacks_or_has_otherwise_come_from_the_dataset_and_are_counted() {
    let labs = Labs::new(20);
    labs.sync(&[]);
    labs.there.server.delete(BUCKET, &format!("copy/{}", name(3)));
    labs.there.server.put(BUCKET, &format!("copy/{}", name(4)), b"other bytes".to_vec());
    let mount = mount_both(&labs, "m", ",first");
    for n in 0..20 {
        assert_eq!(std::fs::read(mount.path(name(n))).unwrap(), contents(n));
    }
    let origins = origins(&mount);
    assert_eq!(origins[0]["missing"], 2, "{origins:?}");
    assert_eq!(origins[1]["missing"], 0, "{origins:?}");
}

#[test]
fn a_mirror_that_would_destroy_something_is_refused() {
    let lab = Lab::new();
    (0..3).for_each(|n| lab.put(&name(n), contents(n)));
    lab.put_other("x", b"1".to_vec());
    lab.larder_ok(&["import", &lab.other_url(), "--to", "s3://bucket/other/.larder/manifest"]);
    lab.larder_ok(&["sync", &lab.url(), COPY]);
    for (args, code, words) in [
        (&["sync", "s3://bucket/data", "s3://bucket/data"][..], 1, &["the dataset itself"][..]),
        (&["sync", "s3://bucket/data", "s3://bucket/data/copy"], 1, &["below SRC", "beside it"]),
        (&["sync", "s3://bucket/data", "s3://bucket"], 1, &["below DST", "beside it"]),
        (&["sync", "s3://bucket/data", "s3://bucket/other"], 1, &["dataset of its own", "choose another prefix"]),
        (&["sync", "s3://bucket/other", COPY], 1, &["mirrors s3://bucket/data"]),
        (&["sync", "s3://bucket/other", COPY, "--pack"], 1, &["mirrors s3://bucket/data"]),
        (&["sync", "s3://bucket/data", "bucket/copy"], 1, &["DST", "s3://bucket/prefix"]),
        (&["sync", "s3://bucket/data", "s3://key:secret@bucket"], 1, &["credentials do not belong"]),
        (&["sync", "s3://bucket/none", "s3://bucket/copy-2"], 1, &["there is nothing below"]),
        (&["sync", "s3://bucket/data", "s3://none/copy"], 1, &["no such bucket"]),
        (&["sync", "s3://bucket/data"], 2, &["DST"]),
        (&["sync", "s3://bucket/data", COPY, "--max-rate", "fast"], 2, &["--max-rate"]),
        (&["sync", "s3://bucket/data", COPY, "--pack", "--delete"], 2, &["--pack", "--delete"]),
        (&["sync", "s3://bucket/data", COPY, "--to-credentials-prefix", "x."], 2, &["--to-credentials-dir"]),
        (&["sync", "s3://bucket/data", COPY, "--to-credentials-dir", "/none"], 1, &["--to-credentials-dir", "/none"]),
    ] {
        let error = lab.larder_fails(code, args);
        for word in words {
            assert!(error.contains(word), "{args:?} should say {word}: {error}");
        }
    }
    assert!(lab.larder_ok(&["verify", &lab.other_url()]).contains("1 of 1"));
}
