//! Datasets that nobody imported: larderd lists them in a process of its own.

use std::path::Path;
use std::time::Duration;

use larder_daemon_api::v1;
use larder_e2e::platform::kill_process;
use larder_e2e::{Keeper, Lab, Larderd, wait_until};
use larder_testkit::{Fault, seeded_bytes};
use serde_json::Value;

const OTHER: &str = "s3://bucket/other";

/// A lab with a dataset of 20 files, and others of which the listing stalls.
fn lab() -> Lab {
    let lab = Lab::new();
    for n in 0..20 {
        lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
    }
    lab.put_other("a", b"1".to_vec());
    lab.proxy.set_hook(|request| match request.path.contains("list-type=2") && request.path.contains("prefix=other") {
        true => Fault::StallBeforeHead,
        false => Fault::None,
    });
    lab
}

fn dataset(url: &str) -> v1::Dataset {
    v1::Dataset { source: url.to_owned(), ..v1::Dataset::default() }
}

/// The answer of larderd within `wait`.
fn prepare(lab: &Lab, larderd: &Larderd, url: &str, wait: Duration) -> Result<v1::Prepared, String> {
    let _in_runtime = lab.runtime().enter();
    let mut client = larderd.client();
    let request =
        v1::PrepareRequest { dataset: Some(dataset(url)), wait_ms: wait.as_millis() as u32, ..Default::default() };
    let asked = tokio::time::timeout(Duration::from_secs(60), client.prepare(request));
    match lab.runtime().block_on(asked).expect("larderd answers") {
        Ok(answer) => match answer.into_inner().outcome {
            Some(v1::prepare_response::Outcome::Prepared(prepared)) => Ok(prepared),
            other => Err(format!("{other:?}")),
        },
        Err(status) => Err(status.message().to_owned()),
    }
}

fn assert_reads(dir: &Path) {
    for n in 0..20 {
        assert!(std::fs::read(dir.join(format!("{n}"))).unwrap() == seeded_bytes(n, 10_000), "file {n}");
    }
}

// SEMANTICS: I8
#[test]
fn an_import_for_a_mount_may_be_killed_and_the_other_mounts_of_its_larderd_go_on() {
    let lab = lab();
    let larderd = Larderd::start(&lab, "l", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let prepared = prepare(&lab, &larderd, &lab.url(), Duration::from_secs(30)).unwrap();
    let dir = lab.folder().join("kept");
    keeper.mount(&prepared, dataset(&lab.url()), &dir).unwrap();

    let importing = prepare(&lab, &larderd, OTHER, Duration::from_millis(10)).unwrap_err();
    assert!(importing.contains("Importing"), "{importing}");
    wait_until("a process imports", || larderd.importing().len() == 1);
    assert_reads(&dir);
    kill_process(larderd.importing()[0]);
    wait_until("the log says so", || larderd.log().contains("an import process ended early"));
    assert_reads(&dir);
    // The error is that of the caller that waits.
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| prepare(&lab, &larderd, OTHER, Duration::from_secs(30)));
        wait_until("a process imports again", || larderd.importing().len() == 1);
        kill_process(larderd.importing()[0]);
        waiting.join().unwrap().unwrap_err()
    });
    assert!(waiting.contains("published nothing") && waiting.contains("512 MiB"), "{waiting}");
    lab.proxy.set_hook(|_| Fault::None);
    assert_eq!(prepare(&lab, &larderd, OTHER, Duration::from_secs(30)).unwrap().files, 1);
}

// SEMANTICS: I8
#[test]
fn an_import_for_a_mount_ends_with_its_larderd_and_the_next_one_imports() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "l", &[]);
    larderd.wait_until_it_answers();
    for end in [Larderd::kill, Larderd::terminate] {
        prepare(&lab, &larderd, OTHER, Duration::from_millis(10)).unwrap_err();
        wait_until("a process imports", || larderd.importing().len() == 1);
        let importing = larderd.importing()[0];
        end(&mut larderd);
        let gone = || !std::fs::read_to_string(format!("/proc/{importing}/cmdline")).is_ok_and(|line| !line.is_empty());
        wait_until("the import has ended", gone);
        larderd.restart();
        larderd.wait_until_it_answers();
    }
    lab.proxy.set_hook(|_| Fault::None);
    assert_eq!(prepare(&lab, &larderd, OTHER, Duration::from_secs(30)).unwrap().files, 1);
}

// SEMANTICS: I10
#[test]
fn a_dataset_that_takes_more_of_the_home_than_it_may_names_the_flag_and_disturbs_no_other() {
    let lab = Lab::new();
    for n in 0..20 {
        lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
    }
    lab.put_other("a", b"1".to_vec());
    let larderd = Larderd::start(&lab, "l", &["--listing-size=500"]);
    larderd.wait_until_it_answers();
    let long = Duration::from_secs(30);
    let assert_refused = || {
        let error = prepare(&lab, &larderd, &lab.url(), long).unwrap_err();
        assert!(error.contains("--listing-size"), "{error}");
        assert_eq!(prepare(&lab, &larderd, OTHER, long).unwrap().files, 1);
    };
    assert_refused();
    // So is one that was listed elsewhere.
    let to = format!("{}/.larder/manifest", lab.url());
    lab.larder_ok(&["import", &lab.url(), "--to", &to]);
    assert_refused();
    drop(larderd);
    let larderd = Larderd::start(&lab, "m", &[]);
    larderd.wait_until_it_answers();
    assert_eq!(prepare(&lab, &larderd, &lab.url(), long).unwrap().files, 20);
}

// SEMANTICS: I10
#[test]
fn a_manifest_of_5_tb_and_an_order_of_3_tb_fill_no_disk_and_disturb_no_other_dataset() {
    let lab = Lab::new();
    for n in 0..20 {
        lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
    }
    lab.put_other("a", b"1".to_vec());
    lab.larder_ok(&["import", &lab.url(), "--to", &format!("{}/.larder/manifest", lab.url())]);
    let larderd = Larderd::start(&lab, "l", &[]);
    larderd.wait_until_it_answers();
    let long = Duration::from_secs(30);
    let claim = |name: &'static str, bytes: u64| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nETag: \"{bytes}\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\
             Content-Length: {bytes}\r\nConnection: close\r\n\r\n"
        );
        lab.proxy.set_hook(move |request| match request.path.ends_with(name) {
            true => Fault::Answer(head.clone().into_bytes()),
            false => Fault::None,
        });
    };
    claim("/data/.larder/manifest.order", 3_000_000_000_000);
    assert_eq!(prepare(&lab, &larderd, &lab.url(), long).unwrap().files, 20);
    let log = larderd.log();
    assert!(log.contains(".larder/manifest.order has 2.7 TiB, more than the 64MiB"), "{log}");
    claim("/data/.larder/manifest", 5_000_000_000_000);
    let error = prepare(&lab, &larderd, &lab.url(), long).unwrap_err();
    assert!(error.contains(".larder/manifest has 4.5 TiB, more than 16GiB"), "{error}");
    assert_eq!(prepare(&lab, &larderd, OTHER, long).unwrap().files, 1);
    let home = larderd.run_dir().parent().unwrap().join("home");
    let files = ["manifests", "mounts", "imports"].map(|name| std::fs::read_dir(home.join(name)).unwrap().flatten());
    let bytes: u64 = files.into_iter().flatten().map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes < 100_000, "{bytes} bytes");
    lab.proxy.set_hook(|_| Fault::None);
    assert_eq!(prepare(&lab, &larderd, &lab.url(), long).unwrap().files, 20);
}

// SEMANTICS: I9
#[test]
fn an_import_of_nothing_says_so_and_of_an_empty_bucket_is_empty() {
    let lab = Lab::new();
    let empty: Value = serde_json::from_str(&lab.larder_ok(&["import", "s3://bucket", "--json"])).unwrap();
    assert_eq!(empty["files"], 0);
    lab.put("a", b"1".to_vec());
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let cache = lab.cache_dir("m");
    let mount = ["mount", "s3://bucket/dato", dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    for args in [&["import", "s3://bucket/dato"][..], &mount] {
        let error = lab.larder_fails(1, args);
        assert!(error.contains("nothing below s3://bucket/dato") && error.contains("spelling"), "{error}");
    }
    let larderd = Larderd::start(&lab, "l", &[]);
    larderd.wait_until_it_answers();
    let error = prepare(&lab, &larderd, "s3://bucket/dato", Duration::from_secs(30)).unwrap_err();
    assert!(error.contains("nothing below s3://bucket/dato"), "{error}");
}

#[test]
fn an_import_says_how_many_keys_it_skipped_and_which_lines_of_an_order_name_nothing() {
    let lab = Lab::new();
    for key in ["1", "2", "train/3", "a//b"] {
        lab.put(key, b"1".to_vec());
    }
    let order = lab.folder().join("order");
    std::fs::write(&order, "# first\n1\n\ntrain\n?\nnever\n*.gif\n").unwrap();
    let args = ["import", &lab.url(), "--order", order.to_str().unwrap()];
    let output = lab.larder(&args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("order      5 lines: 3 found, 2 not found"), "{out}{err}");
    assert!(err.contains("matches never, *.gif (--order)") && err.contains("skipped 1 key: "), "{err}");
    let said: Value = serde_json::from_str(&lab.larder_ok(&[&args[..], &["--json"]].concat())).unwrap();
    let lines = serde_json::json!({"found": 3, "not_found": 2, "first_not_found": ["never", "*.gif"]});
    assert_eq!(said["order"], lines, "{said}");
    assert!(said["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{said}");
    lab.put("c//d", b"1".to_vec());
    let output = lab.larder(&["import", &lab.url()]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("skipped 2 keys: "), "{err}");
}

#[test]
fn an_order_that_is_no_regular_file_is_refused_before_anything_is_listed() {
    let lab = Lab::new();
    lab.put("1", b"1".to_vec());
    let (pipe, beside) = (lab.folder().join("pipe"), format!("{}/.larder/manifest", lab.url()));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    // Whoever opens the pipe once would read it, and have nothing the second time.
    let _writer = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    for order in ["/dev/null", pipe.to_str().unwrap(), lab.folder().to_str().unwrap()] {
        let error = lab.larder_fails(1, &["import", &lab.url(), "--to", &beside, "--order", order]);
        assert!(error.contains(&format!("--order {order}: not a regular file")), "{error}");
    }
    assert_eq!(lab.server.counters().lists, 0);
}

#[test]
fn bench_import_measures_complete_imports_and_leaves_nothing() {
    let lab = Lab::new();
    let (json, folder) = (lab.folder().join("import.json"), lab.folder().join("disk"));
    let shown = lab.larder_bench(&[
        "import",
        "--keys=20000",
        "--page-ms=1",
        "--folder-entries=3000",
        "--rounds=2",
        "--json",
        json.to_str().unwrap(),
        "--folder",
        folder.to_str().unwrap(),
    ]);
    for words in ["import, one call at a time", "import again, 1 % replaced", "file:// folder", "is mounted in"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let outcome: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = outcome["rows"].as_array().unwrap();
    assert_eq!((rows.len(), outcome["mounts"].as_array().unwrap().len()), (10, 2));
    for row in rows {
        let folder = row["work"] == "folder";
        assert_eq!(row["files"], if folder { 3000 } else { 20_000 }, "{row}");
        assert_eq!(row["work"] == "listing", row["peak_memory_bytes"] == 0, "{row}");
        if row["work"] == "one_lister" {
            assert!((20..=21).contains(&row["list_requests"].as_u64().unwrap()), "no call for nothing: {row}");
        }
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left behind");
}
