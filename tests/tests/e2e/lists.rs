//! Lists of files to warm, and what an import says about the import before it.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;
use serde_json::Value;

const FILE_BYTES: u64 = 10_000;

fn put(lab: &Lab, name: &str, seed: u64) {
    lab.put(name, seeded_bytes(seed, FILE_BYTES));
}

/// Warms by a list on standard input. The folder has a slash at its end, as shells complete it.
fn warm_from(lab: &Lab, mount: &Mount, list: &str) -> Value {
    let dir = mount.dir().join("");
    let mut command = lab.command(&["warm", dir.to_str().unwrap(), "--from", "-", "--wait", "--json"]);
    let mut warming = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    warming.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let output = warming.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mount.settle();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The files of a plain dataset that are read without a GET, not even one ahead of the reader.
fn kept(lab: &Lab, mount: &Mount, files: impl Iterator<Item = String>) -> BTreeSet<String> {
    let files: Vec<String> = files.collect();
    lab.server.reset_counters();
    for file in &files {
        mount.read_fresh(file).unwrap();
    }
    mount.settle();
    files.into_iter().filter(|file| lab.gets_of(file) == 0).collect()
}

// SEMANTICS: C7
#[test]
fn a_list_is_warmed_in_its_order_which_decides_what_a_small_cache_keeps() {
    // So many fetches of a warming are in flight at once.
    const IN_FLIGHT: usize = 32;
    let lab = Lab::new();
    for n in 0..300 {
        put(&lab, &format!("{n:03}"), n);
    }
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "1000000"]);
    let order: Vec<String> = (0..300).rev().map(|n| format!("{n:03}")).collect();
    let said = warm_from(&lab, &mount, &order.join("\n"));
    assert_eq!((&said["full"], &said["running"]), (&true.into(), &false.into()), "{said}");
    let kept = kept(&lab, &mount, order.iter().cloned());
    assert!(kept.len() >= 90, "{kept:?}");
    let (first, last) = (kept.len() - IN_FLIGHT, kept.len() + IN_FLIGHT);
    for (at, file) in order.iter().enumerate() {
        assert!(at >= first || kept.contains(file), "{file} comes early in the list");
        assert!(at < last || !kept.contains(file), "{file} comes late in the list");
    }
}

// SEMANTICS: C7
#[test]
fn a_plain_warming_begins_with_the_order_of_the_import_which_decides_what_a_small_cache_keeps() {
    let lab = Lab::new();
    for n in 0..300 {
        put(&lab, &format!("{n:03}"), n);
    }
    let order = |lines: &str| {
        let path = lab.folder().join("order.txt");
        std::fs::write(&path, lines).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let warmed = |name: &str, cache: &str| {
        let mount = lab.mount(name, &lab.url(), &["--cache-size", cache]);
        lab.server.reset_counters();
        let said = lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait", "--json"]);
        mount.settle();
        let (said, gets): (Value, u64) = (serde_json::from_str(&said).unwrap(), lab.server.counters().gets);
        (said, gets, kept(&lab, &mount, (0..300).map(|n| format!("{n:03}"))))
    };
    // 20 of 300 files, of which the last come first; one is named twice, and one was never there.
    lab.larder_ok(&["import", &lab.url(), "--order", &order("29?\n# then\n150\n299\nnever\n2[0-9]1\n")]);
    let first: BTreeSet<String> =
        (290..300).chain([150]).chain((201..300).step_by(10)).map(|n| format!("{n:03}")).collect();
    let (said, _, kept_of) = warmed("small", "250000");
    assert_eq!(said["full"], true, "{said}");
    assert!(kept_of.len() >= first.len() && first.is_subset(&kept_of), "{kept_of:?}");
    let (said, gets, kept_of) = warmed("whole", "10MiB");
    assert_eq!(
        (&said["blocks_done"], &said["blocks_kept"], &said["blocks_total"]),
        (&300.into(), &300.into(), &300.into())
    );
    assert_eq!((gets, kept_of.len()), (300, 300), "each once");

    // An order that is published is that of all nodes, and stays over the next imports.
    let beside = format!("{}/.larder/manifest", lab.url());
    lab.larder_ok(&["import", &lab.url(), "--to", &beside, "--order", &order("1?5\n")]);
    put(&lab, "145", 999);
    lab.larder_ok(&["import", &lab.url(), "--to", &beside]);
    let (_, _, kept_of) = warmed("published", "250000");
    let first: BTreeSet<String> = (105..200).step_by(10).map(|n| format!("{n:03}")).collect();
    assert!(first.is_subset(&kept_of) && !kept_of.contains("299"), "{kept_of:?}");
    let error = lab.larder_fails(1, &["import", &lab.url(), "--order", "/nonexistent/order"]);
    assert!(error.contains("--order") && error.contains("/nonexistent/order"), "{error}");
    let long = lab.folder().join("long");
    std::fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    let error = lab.larder_fails(1, &["import", &lab.url(), "--order", long.to_str().unwrap()]);
    assert!(error.contains("--order") && error.contains("more than the 64MiB"), "{error}");
}

// SEMANTICS: C7
#[test]
fn a_list_has_paths_folders_patterns_and_comments_and_its_unknown_lines_are_counted_and_named() {
    let lab = Lab::new();
    for (n, name) in
        ["a.jpg", "b.txt", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg", "test/q.jpg"].iter().enumerate()
    {
        put(&lab, name, n as u64);
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    let mounted = mount.path("test/q.jpg");
    let list =
        format!("# the first\na.jpg\n\ntrain/1\r\n**/z.*\n{}\nmissing\n*.gif\n../a.jpg\n", mounted.to_str().unwrap());
    let said = warm_from(&lab, &mount, &list);
    assert_eq!((&said["blocks_kept"], &said["blocks_total"]), (&5.into(), &5.into()), "{said}");
    assert_eq!(said["lines_unknown"], 3, "{said}");
    assert_eq!(said["unknown"], serde_json::json!(["missing", "*.gif", "../a.jpg"]));
    let all = ["a.jpg", "b.txt", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg", "test/q.jpg"].map(str::to_owned);
    let kept = kept(&lab, &mount, all.clone().into_iter());
    assert_eq!(kept, all.into_iter().filter(|file| file != "b.txt").collect());
    let shown = lab.larder_ok(&["stats", mount.dir().to_str().unwrap()]);
    assert!(shown.contains("3 lines of the list match no file"), "{shown}");
    let error = lab.larder_fails(1, &["warm", mount.dir().to_str().unwrap(), "--from", "/nonexistent/list"]);
    assert!(error.contains("--from") && error.contains("/nonexistent/list"), "{error}");
}

// SEMANTICS: C7
#[test]
fn a_list_of_which_no_line_names_a_file_is_an_error_also_for_those_that_do_not_wait() {
    let lab = Lab::new();
    put(&lab, "a", 1);
    let mount = lab.mount("m", &lab.url(), &[]);
    let list = lab.folder().join("list");
    let warm = |lines: &str, flags: &[&str]| {
        std::fs::write(&list, lines).unwrap();
        let args = ["warm", mount.dir().to_str().unwrap(), "--from", list.to_str().unwrap()];
        let output = lab.larder(&[&args, flags].concat());
        mount.wait_until("warming has ended", |mount| mount.stats()["warm"]["running"] == false);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for flags in [&[][..], &["--wait"], &["--json"], &["--wait", "--json"]] {
        for lines in ["b\nc/*\n", "# nothing\n", ""] {
            let (code, _, error) = warm(lines, flags);
            assert_eq!(code, Some(1), "{lines:?} {flags:?}: {error}");
            assert!(error.contains(&format!("no line of {} (--from)", list.display())), "{error}");
        }
        let (code, said, error) = warm("b\na\n", flags);
        assert_eq!(code, Some(0), "{flags:?}: {error}");
        if flags.contains(&"--json") {
            let said: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(said["files_listed"], 1, "{said}");
        }
    }
    let said: Value = serde_json::from_str(&lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(said["blocks_total"], 1, "{said}");
}

// SEMANTICS: C7
#[test]
fn a_list_of_hundreds_of_thousands_of_lines_is_handed_over_part_by_part() {
    let lab = Lab::new();
    for n in 0..50 {
        put(&lab, &format!("a-folder-with-a-long-name/another/{n:03}"), n);
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    let list: String = (0..100_000).map(|n| format!("a-folder-with-a-long-name/another/{:03}\n", n % 51)).collect();
    assert!(list.len() > 2 << 20, "more than waits at once");
    let said = warm_from(&lab, &mount, &list);
    let unknown = (0..100_000).filter(|n| n % 51 == 50).count();
    assert_eq!(said["lines_unknown"], unknown, "{said}");
    assert_eq!(said["blocks_kept"], 100_000 - unknown, "{said}");
    assert_eq!(said["unknown"].as_array().unwrap().len(), 5);
    assert_eq!(lab.server.counters().gets, 50);
}

// SEMANTICS: C7
#[test]
fn a_list_of_a_packed_dataset_that_does_not_fit_keeps_what_it_names_and_no_neighbours() {
    let lab = Lab::new();
    for n in 0..300 {
        put(&lab, &format!("{n:03}"), n);
    }
    lab.larder_ok(&["pack", &lab.url(), "s3://bucket/packed"]);
    let mount = lab.mount("m", "s3://bucket/packed", &["--cache-size", "500000"]);
    let listed: Vec<String> = (0..300).step_by(10).map(|n| format!("{n:03}")).collect();
    let said = warm_from(&lab, &mount, &listed.join("\n"));
    assert_eq!((&said["blocks_kept"], &said["full"]), (&30.into(), &false.into()), "{said}");
    lab.server.reset_counters();
    for file in &listed {
        mount.read_fresh(file).unwrap();
    }
    mount.settle();
    assert_eq!(lab.server.counters().gets, 0);
}

fn import(lab: &Lab, flags: &[&str]) -> Value {
    let url = lab.url();
    serde_json::from_str(&lab.larder_ok(&[&["import", &url, "--json"], flags].concat())).unwrap()
}

// SEMANTICS: I1
#[test]
fn an_import_says_what_was_added_changed_and_removed_and_publishes_nothing_where_nothing_was() {
    let lab = Lab::new();
    for n in 0..10 {
        put(&lab, &format!("d/{n}"), n);
    }
    let beside = format!("{}/.larder/manifest", lab.url());
    let file = lab.folder().join("kept.manifest");
    let targets = [&[][..], &["--to", &beside], &["--to", file.to_str().unwrap()]];
    let first = targets.map(|flags| import(&lab, flags));
    for said in &first {
        assert!(said["changes"].is_null(), "{said}");
    }
    put(&lab, "d/3", 99);
    put(&lab, "d/4", 98);
    put(&lab, "d/new", 97);
    assert!(lab.server.delete("bucket", "data/d/7"));
    let changes = serde_json::json!({"added": 1, "changed": 2, "removed": 1, "unchanged": 7});
    for flags in targets {
        let said = import(&lab, flags);
        assert_eq!(said["changes"], changes, "{flags:?}");
        assert_eq!(said["published"], true);
        assert_ne!(said["snapshot"], first[0]["snapshot"]);
    }
    let nothing = serde_json::json!({"added": 0, "changed": 0, "removed": 0, "unchanged": 10});
    let version = || lab.server.counters().puts;
    for flags in targets {
        let puts = version();
        let said = import(&lab, flags);
        assert_eq!(said["changes"], nothing, "{flags:?}");
        assert_eq!(version(), puts, "{flags:?} publishes nothing");
        assert_eq!(said["published"], !flags.contains(&beside.as_str()), "{flags:?}");
    }
    let told = lab.larder_ok(&["import", &lab.url(), "--to", &beside]);
    assert!(told.contains("0 added, 0 changed, 0 removed, 10 unchanged") && told.contains("; unchanged)"), "{told}");
    // Another name is to be seen by all, too.
    assert_eq!(import(&lab, &["--to", &beside, "--name", "other"])["published"], true);
    // A manifest of something else is no earlier import.
    lab.put_other("x", b"1".to_vec());
    let said: Value =
        serde_json::from_str(&lab.larder_ok(&["import", &lab.other_url(), "--json", "--to", file.to_str().unwrap()]))
            .unwrap();
    assert!(said["changes"].is_null(), "{said}");
}
