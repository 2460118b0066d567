//! Keys that cannot be files, and imports that were killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_e2e::Lab;
use larder_testkit::Fault;
use serde_json::Value;

// SEMANTICS: N1, N2
#[test]
fn hostile_keys_are_listed_and_counted_and_nothing_escapes_or_shadows() {
    let lab = Lab::new();
    let long = "p".repeat(300);
    let hostile = [
        ("../escape", "path part . or .."),
        ("a/../../b", "path part . or .."),
        ("./dot", "path part . or .."),
        ("/leading", "empty path part (leading / or //)"),
        ("double//slash", "empty path part (leading / or //)"),
        ("nul\0byte", "NUL byte"),
        ("control\u{1}character", "control character"),
        (long.as_str(), "path part over 255 bytes"),
        ("both", "a folder has the same name"),
        ("marker/", "folder marker that holds bytes"),
    ];
    for (key, _) in hostile {
        lab.put(key, b"hostile".to_vec());
    }
    lab.put("both/below", b"good".to_vec());
    lab.put("fine", b"good".to_vec());
    lab.put("empty/", b"".to_vec());

    let said: Value = serde_json::from_str(&lab.larder_ok(&["import", &lab.url(), "--json"])).unwrap();
    let reasons: BTreeMap<String, String> = said["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skipped| (skipped["key"].as_str().unwrap().to_owned(), skipped["reason"].as_str().unwrap().to_owned()))
        .collect();
    let expected: BTreeMap<String, String> =
        hostile.iter().map(|(key, reason)| (key.as_bytes().escape_ascii().to_string(), (*reason).to_owned())).collect();
    assert_eq!(reasons, expected);
    assert_eq!(said["files"], 2);

    let mount = lab.mount("m", &lab.url(), &[]);
    let mut found = Vec::new();
    let mut folders = vec![mount.dir().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            } else {
                assert_eq!(std::fs::read(&path).unwrap(), b"good", "{}", path.display());
            }
            found.push(path.strip_prefix(mount.dir()).unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    assert_eq!(found, ["both", "both/below", "empty", "fine"]);
    // The plain text lists them too, without control characters for a terminal.
    let said = lab.larder(&["import", &lab.url()]);
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("skipped 3 keys: path part . or ..") && said.contains("nul\\x00byte"), "{said}");
}

// SEMANTICS: N4
#[test]
fn a_symlink_in_a_folder_origin_leads_nowhere_and_is_reported() {
    let lab = Lab::new();
    let folder = lab.folder().join("origin");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(lab.folder().join("secret"), b"secret").unwrap();
    std::fs::write(folder.join("file"), b"good").unwrap();
    std::os::unix::fs::symlink("../secret", folder.join("out")).unwrap();
    std::os::unix::fs::symlink(lab.folder(), folder.join("up")).unwrap();
    let url = format!("file://{}", folder.display());
    let said: Value = serde_json::from_str(&lab.larder_ok(&["import", &url, "--json"])).unwrap();
    assert_eq!((said["files"].as_u64(), said["skipped"].as_array().unwrap().len()), (Some(1), 2), "{said}");
    // A file that becomes a link after the import is not followed either.
    let mount = lab.mount("m", &url, &[]);
    std::fs::remove_file(folder.join("file")).unwrap();
    std::os::unix::fs::symlink("../secret", folder.join("file")).unwrap();
    assert!(std::fs::read(mount.path("file")).is_err());
}

/// Bytes of the journals of unfinished imports.
fn journal_bytes(lab: &Lab) -> u64 {
    let files = std::fs::read_dir(lab.folder().join("larder/imports")).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

// SEMANTICS: I1
#[test]
fn an_import_killed_at_any_time_goes_on_where_it_was() {
    let lab = Lab::new();
    for n in 0..60_000 {
        lab.put(&format!("{:02}/{n:05}", n % 70), vec![b'x'; n % 7]);
    }
    lab.server.reset_counters();
    let whole: Value = serde_json::from_str(&lab.larder_ok(&["import", &lab.url(), "--restart", "--json"])).unwrap();
    let lists_of_one = lab.server.counters().lists;
    let mut lists_of_all = 0;
    for round in 0..4 {
        // The server stops answering after some listings, so that the import is always unfinished when it is killed.
        let answered = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&answered);
        let stop_after = 5 + 3 * round;
        lab.proxy.set_hook(move |_| {
            if counted.fetch_add(1, Ordering::SeqCst) < stop_after { Fault::None } else { Fault::StallBeforeHead }
        });
        lab.server.reset_counters();
        let mut child = lab.command(&["import", &lab.url()]).spawn().unwrap();
        // The answered listings are in the journal before the kill; the others cannot be.
        let before = journal_bytes(&lab);
        while answered.load(Ordering::SeqCst) <= stop_after || journal_bytes(&lab) <= before {
            assert!(child.try_wait().unwrap().is_none(), "the import ended before it could be killed");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        lists_of_all += lab.server.counters().lists;
    }
    lab.proxy.set_hook(|_| Fault::None);
    lab.server.reset_counters();
    let resumed: Value = serde_json::from_str(&lab.larder_ok(&["import", &lab.url(), "--json"])).unwrap();
    lists_of_all += lab.server.counters().lists;
    assert_eq!((&resumed["files"], &resumed["snapshot"]), (&60_000.into(), &whole["snapshot"]));
    assert!(resumed["resumed_files"].as_u64().unwrap() > 0, "{resumed}");
    // The listings in flight at each of the four kills are repeated, and each run divides the work anew: at most two
    // for each of the 16 tasks.
    assert!(lists_of_all <= lists_of_one + 4 * 33, "{lists_of_all} listings instead of {lists_of_one}");
}

// SEMANTICS: I1
#[test]
fn two_imports_of_one_origin_do_not_mix() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    lab.proxy.set_hook(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Fault::StallBeforeHead
    });
    let mut first = lab.command(&["import", &lab.url()]).spawn().unwrap();
    while asked.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let error = lab.larder_fails(1, &["import", &lab.url()]);
    assert!(error.contains("running already"), "{error}");
    first.kill().unwrap();
    first.wait().unwrap();
}
