//! What a new user types, and mistypes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;

/// A lab with a few files, and the flags of a mount at `dir`.
fn lab() -> Lab {
    let lab = Lab::new();
    for n in 0..8 {
        lab.put(&format!("{n}"), seeded_bytes(n, 100_000));
    }
    lab
}

#[test]
fn a_mount_point_that_cannot_be_used_is_refused_before_the_origin_is_asked() {
    let lab = lab();
    let (file, full) = (lab.folder().join("file"), lab.folder().join("full"));
    std::fs::write(&file, b"").unwrap();
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("mine"), b"2").unwrap();
    let cache = lab.cache_dir("m");
    let args =
        |dir: &str| ["mount", &lab.url(), dir, "--cache-dir", cache.to_str().unwrap()].map(str::to_owned).to_vec();
    lab.server.reset_counters();
    for (dir, words) in [
        (lab.folder().join("missing"), ["does not exist", "mkdir -p"]),
        (file, ["not a directory", "empty directory"]),
        (full.clone(), ["not empty", "--over"]),
    ] {
        for foreground in [&[][..], &["--foreground".to_owned()]] {
            let args = [args(dir.to_str().unwrap()), foreground.to_vec()].concat();
            let refused = lab.larder_fails(1, &args.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(words.iter().all(|word| refused.contains(word)), "{args:?}: {refused}");
        }
    }
    let counters = lab.server.counters();
    assert_eq!((counters.lists, counters.heads, counters.gets), (0, 0, 0), "{counters:?}");
    // What is hidden by request comes back.
    let args = [args(full.to_str().unwrap()), vec!["--over".to_owned()]].concat();
    lab.larder_ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mount = Mount::of(full.clone());
    assert_eq!(std::fs::read(mount.path("0")).unwrap(), seeded_bytes(0, 100_000));
    assert!(!full.join("mine").exists());
    drop(mount);
    assert_eq!(std::fs::read(full.join("mine")).unwrap(), b"2");
}

#[test]
fn a_cache_directory_that_was_named_and_cannot_be_used_is_an_error() {
    let lab = lab();
    let (dir, file) = (lab.folder().join("dir"), lab.folder().join("file"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(&file, b"").unwrap();
    lab.server.reset_counters();
    for cache in ["/proc/x", file.to_str().unwrap()] {
        let refused = lab.larder_fails(1, &["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache]);
        assert!(refused.contains("--cache-dir") && refused.contains(cache), "{refused}");
    }
    assert_eq!(lab.server.counters().lists, 0);
}

#[test]
fn a_source_that_is_nearly_a_url_is_answered_with_the_url() {
    let lab = Lab::new();
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    for (source, words) in [
        ("s3:/datasets/train", "did you mean s3://datasets/train?"),
        ("gs:datasets", "did you mean gs://datasets?"),
        ("file:/data", "did you mean file:///data?"),
        ("datasets/train", "begins with s3://, gs://, az:// or file:///"),
    ] {
        let refused = lab.larder_fails(1, &["mount", source, dir.to_str().unwrap()]);
        assert!(refused.contains(words), "{source}: {refused}");
    }
}

#[test]
fn an_endpoint_at_which_nothing_listens_is_an_error_that_names_the_flag() {
    let lab = lab();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let refused = lab.larder_fails(1, &["import", "s3://bucket/nowhere", "--endpoint", &endpoint]);
    assert!(refused.contains(&format!("--endpoint {endpoint}: connection refused")), "{refused}");
}

#[test]
fn keys_that_may_not_read_the_published_listing_are_refused_and_get_no_older_one() {
    let lab = lab();
    let url = lab.url();
    drop(lab.mount("m", &url, &[]));
    lab.put("new", seeded_bytes(9, 100_000));
    lab.larder_ok(&["import", &url, "--to", &format!("{url}/.larder/manifest")]);
    let mount = lab.mount("m", &url, &[]);
    assert_eq!(mount.read_fresh("new").unwrap(), seeded_bytes(9, 100_000));
    drop(mount);
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut command = lab.command(&["mount", &url, dir.to_str().unwrap()]);
    let output = command.env("AWS_SECRET_ACCESS_KEY", "wrong").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("403"), "{said}");
}

#[test]
fn all_mounts_are_a_table_and_usual_verbs_lead_to_it() {
    let lab = lab();
    let mounts = [lab.mount("one", &lab.url(), &[]), lab.mount("two", &lab.url(), &[])];
    // Other tests have mounts on this machine, too.
    let table = |verb: &str| {
        let said = String::from_utf8(lab.larder(&[verb]).stdout).unwrap();
        let lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let own = |line: &String| line.starts_with("MOUNT") || line.starts_with(lab.folder().to_str().unwrap());
        lines.filter(own).collect::<Vec<_>>()
    };
    let lines = table("stats");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("MOUNT") && lines[0].contains("CACHED"), "{lines:?}");
    for mount in &mounts {
        let is_its = |line: &&String| line.starts_with(mount.dir().to_str().unwrap());
        let line = lines.iter().find(is_its).expect("a line");
        assert!(line.contains(&lab.url()) && line.ends_with("ok"), "{lines:?}");
    }
    for verb in ["status", "ls", "list"] {
        assert_eq!(table(verb), lines, "{verb}");
    }
    let third = lab.mount("three", &lab.url(), &[]);
    lab.larder_ok(&["unmount", third.dir().to_str().unwrap()]);
    std::mem::forget(third);
}

/// The words of a command line, as a shell splits them.
fn words(line: &str) -> Vec<String> {
    let output = Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {line}")).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The commands of larder that a message suggests.
fn suggested(text: &str) -> Vec<String> {
    text.split('`').filter(|part| part.starts_with("larder ")).map(str::to_owned).collect()
}

/// Runs a command line without any variable that names the endpoint: only what is in the line can.
fn pasted(lab: &Lab, line: &str) -> Output {
    let words = words(line);
    let mut command = lab.command(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
    command.env_remove("LARDER_ENDPOINT").env_remove("AWS_ENDPOINT_URL").output().unwrap()
}

/// Runs a command line, which must succeed, and returns all that it said.
fn ran(lab: &Lab, line: &str) -> String {
    let output = pasted(lab, line);
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "{line}: {said}");
    said
}

/// Runs a command line, which must fail, and returns its error.
fn failed(lab: &Lab, line: &str) -> String {
    let output = pasted(lab, line);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("error: "), "{line}: {said}");
    said
}

#[test]
fn printed_commands_run_when_pasted_with_the_flags_that_were_given() {
    let lab = lab();
    let (url, flags) = (lab.url(), format!("--endpoint {} --region eu-west-7", lab.proxy.endpoint()));
    // A shell splits a path with a space, unless it is quoted.
    let dir = |name: &str| {
        let dir = lab.folder().join("my data").join(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    };
    let mount = |name: &str| {
        let (dir, cache) = (dir(name), lab.cache_dir(name));
        ran(&lab, &format!("larder mount {url} '{}' --cache-dir '{}' {flags}", dir.display(), cache.display()));
        Mount::of(dir)
    };
    let packed = ran(&lab, &format!("larder pack {url} {url}-packed {flags}"));
    let printed = packed.lines().find_map(|line| line.strip_prefix("mount it   ")).expect(&packed);
    assert!(printed.ends_with(&flags), "{printed}");
    let packed = dir("packed");
    ran(&lab, &printed.replace("DIR", &format!("'{}'", packed.display())));
    let packed = Mount::of(packed);
    assert_eq!(std::fs::read(packed.path("0")).unwrap(), seeded_bytes(0, 100_000));

    // One of each kind, and what it must contain.
    let run_all = |said: &str, wanted: &[&str]| {
        let commands = suggested(said);
        for wanted in wanted {
            let is_there = |command: &String| command.starts_with(wanted);
            assert!(commands.iter().any(is_there), "{wanted}: {said}");
        }
        for command in &commands {
            assert!(!command.contains("import") || command.ends_with(&flags), "{command}");
            if command == "larder stats" {
                // Mounts of other tests on this machine may be dead, which it ends with.
                let table = String::from_utf8(pasted(&lab, command).stdout).unwrap();
                assert!(table.contains(packed.dir().to_str().unwrap()), "{table}");
            } else {
                ran(&lab, command);
            }
        }
    };

    // A warming, which must not meet the replaced object below: a warming that has ended says so and fails.
    let warmed = mount("warmed");
    let at = format!("'{}'", warmed.dir().display());
    run_all(&ran(&lab, &format!("larder warm {at}")), &[&format!("larder stats {at}")]);

    // A mount point in use, and a replaced object.
    let first = mount("first");
    let at = format!("'{}'", first.dir().display());
    let umount = format!("larder umount {at}");
    run_all(&failed(&lab, &format!("larder mount {url} {at} {flags}")), &[&umount]);
    std::mem::forget(first);
    let first = mount("first");
    lab.put("1", seeded_bytes(77, 100_000));
    let error = first.read_fresh("1").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()), "{error}");
    first.wait_until("the stats say so", |mount| mount.stats()["listing"]["stale"].is_string());
    run_all(&ran(&lab, &format!("larder stats {at}")), &[&format!("larder import {url} ")]);

    // Files in use, a directory that is no mount, and a process that was killed.
    let file = std::fs::File::open(first.path("0")).unwrap();
    let busy = failed(&lab, &umount);
    assert_eq!(busy.matches("busy").count(), 1, "{busy}");
    run_all(&busy, &[&format!("larder umount --lazy {at}")]);
    drop(file);
    std::mem::forget(first);
    run_all(&failed(&lab, &umount), &["larder stats"]);
    let second = mount("second");
    second.kill();
    let at = format!("'{}'", second.dir().display());
    run_all(&failed(&lab, &format!("larder stats {at}")), &[&format!("larder umount {at}")]);
    std::mem::forget(second);

    // A listing that a refresh does not renew.
    let published = format!("{url}/.larder/manifest");
    ran(&lab, &format!("larder import {url} --to {published} {flags}"));
    let home = lab.folder().join("another home");
    let refreshed = format!("larder mount {url} '{}' --refresh {flags}", dir("third").display());
    let words = words(&refreshed);
    let mut command = lab.command(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
    let refused = command.env("LARDER_HOME", home).env_remove("AWS_ENDPOINT_URL").output().unwrap();
    let refused = String::from_utf8(refused.stderr).unwrap();
    run_all(&refused, &[&format!("larder import {url} --to {published} ")]);
}

#[test]
fn a_mount_in_the_foreground_says_that_it_is_mounted_and_nothing_else() {
    let lab = lab();
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut command = lab.command(&["mount", &lab.url(), dir.to_str().unwrap(), "--foreground"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    assert_eq!(first, format!("data is mounted at {}\n", dir.display()));
    assert_eq!(std::fs::read(dir.join("0")).unwrap(), seeded_bytes(0, 100_000), "it is mounted when it says so");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let (mut rest, mut errors) = (String::new(), String::new());
    out.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
    assert!(rest.starts_with("snapshot ") && rest.lines().count() == 1, "{rest}");
    assert!(!errors.contains("mounted"), "{errors}");
}

#[test]
fn warming_what_does_not_fit_says_first_what_will_be_kept() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "300KiB"]);
    let warm = |args: &[&str]| {
        let output = lab.larder(&[&["warm", mount.dir().to_str().unwrap(), "--wait"], args].concat());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = warm(&[]);
    assert!(said.contains("room for 300.0 KiB of the dataset's 781.3 KiB") && said.contains("--from FILE"), "{said}");
    let said = warm(&[]);
    assert!(said.contains("the cache is full") && said.contains("nr replaces nothing"), "{said}");
    let mount = lab.mount("none", &lab.url(), &["--cache-size", "0"]);
    let output = lab.larder(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nothing can be cached: ") && said.contains("--cache-size"), "{said}");
}
