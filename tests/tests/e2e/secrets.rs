//! Secrets appear nowhere.

use std::process::Output;

use larder_csi_api::csi::NodePublishVolumeRequest;
use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, OTHER_KEYS, Plugin, SECRET, assert_private, wait_until};
use larder_testkit::Fault;

use crate::csi::publish;
use crate::identity::Identities;

/// True if a text holds the secret, or the part of it that a careless program would print.
fn leaks(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains(SECRET) || text.contains(&SECRET[..16]) || text.contains(&SECRET[20..])
}

fn check(what: &str, output: &Output) {
    assert!(!leaks(&output.stdout) && !leaks(&output.stderr), "{what} prints the secret");
}

// SEMANTICS: P4
#[test]
fn no_log_error_stat_file_or_process_argument_holds_the_secret() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let trace = |args: &[&str]| {
        let mut command = lab.command(args);
        command.env("LARDER_LOG", "trace").env("AWS_SESSION_TOKEN", format!("token-{SECRET}"));
        command.output().unwrap()
    };
    let (url, dir) = (lab.url(), lab.folder().join("mnt-m"));
    check("import", &trace(&["import", &url]));
    check("verify", &trace(&["verify", &url, "--deep"]));
    check("pack", &trace(&["pack", &url, "s3://bucket/packed"]));

    std::fs::create_dir(&dir).unwrap();
    let cache = lab.cache_dir("m");
    let mount = ["mount", &url, dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    let output = trace(&mount);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check("mount", &output);
    // A second mount, which ends cleanly when it is dropped.
    let mounted = lab.mount("other", &url, &[]);
    for file in ["stats.json", "manifest.json"] {
        assert!(!leaks(&std::fs::read(dir.join(".larder").join(file)).unwrap()), "{file}");
    }
    assert!(!leaks(&std::fs::read(format!("/proc/{}/cmdline", mounted.pid())).unwrap()), "process arguments");

    for code in [403, 500] {
        lab.proxy.set_hook(move |_| Fault::Status { status: code, code: "AccessDenied" });
        check("import that fails", &trace(&["import", &url, "--restart", "--read-deadline", "1s"]));
        check(
            "mount that fails",
            &trace(&["mount", "s3://bucket/never", dir.to_str().unwrap(), "--read-deadline", "1s"]),
        );
    }
    lab.proxy.set_hook(|_| Fault::None);
    let with_key_in_url = format!("s3://AKIA:{SECRET}@bucket/data");
    let refused = trace(&["import", &with_key_in_url]);
    assert!(!refused.status.success());
    check("a URL with credentials in it", &refused);
    check("umount", &trace(&["umount", dir.to_str().unwrap()]));
    assert!(lab.logs().contains("mounted"), "the log is written");
    assert!(!leaks(lab.logs().as_bytes()), "the log holds the secret");
    let files = walk(lab.folder());
    assert!(files.len() > 3);
    for file in files {
        assert!(!leaks(&std::fs::read(&file).unwrap_or_default()), "{} holds the secret", file.display());
    }
}

fn walk(root: &std::path::Path) -> Vec<std::path::PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

/// Folders of keys are in memory, as the kubelet mounts them.
fn keys(lab: &Lab) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    put_key(&folder, lab.server.access_key());
    std::fs::write(folder.path().join("AWS_SECRET_ACCESS_KEY"), SECRET).unwrap();
    folder
}

fn put_key(folder: &tempfile::TempDir, key: &str) {
    std::fs::write(folder.path().join("AWS_ACCESS_KEY_ID"), format!("{key}\n")).unwrap();
}

/// A publish without a Secret: it is read with larderd's own keys.
fn publish_with_own_keys(lab: &Lab, plugin: &Plugin, target: &str, source: &str) -> Result<(), tonic::Status> {
    let target = plugin.path("kubelet/pods").join(target);
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    let mut request = publish(lab, &target);
    request.secrets.clear();
    request.volume_id = source.to_owned();
    request.volume_context.insert("source".to_owned(), source.to_owned());
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    lab.runtime().block_on(node.node_publish_volume(request)).map(|_| ())
}

// SEMANTICS: P4
#[test]
fn daemon_plugin_importer_and_mount_keep_the_keys_out_of_proc_logs_and_the_disk() {
    for by_files in [false, true] {
        keys_stay_in_memory(by_files);
    }
}

/// larderd has its own keys by files, or by variables, which only root can see then.
fn keys_stay_in_memory(by_files: bool) {
    let lab = Lab::new();
    lab.put("d/f", b"bytes".to_vec());
    lab.put_other("a", b"1".to_vec());
    let folder = keys(&lab);
    let mut larderd = Larderd::start(&lab, "keys", &[]);
    larderd.kill();
    if by_files {
        larderd.set_credentials_dir(folder.path());
    }
    larderd.log_everything();
    larderd.restart();
    larderd.wait_until_it_answers();
    let plugin = Plugin::start(&lab, &larderd, &[]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    // With its own keys, and with those of a volume.
    publish_with_own_keys(&lab, &plugin, "own/mount", &lab.url()).unwrap();
    let target = plugin.path("kubelet/pods/given/mount");
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    {
        let _in_runtime = lab.runtime().enter();
        let mut node = NodeClient::new(plugin.channel());
        let request = NodePublishVolumeRequest { volume_id: "given".to_owned(), ..publish(&lab, &target) };
        lab.runtime().block_on(node.node_publish_volume(request)).unwrap();
    }
    // With a pod's identity: neither its token nor the keys that it is exchanged for.
    let identities = Identities::start(&lab, 3600);
    let pod = plugin.path("kubelet/pods/identity/mount");
    std::fs::create_dir_all(pod.parent().unwrap()).unwrap();
    for (minute, name) in [(10, "first"), (20, "second")] {
        let _in_runtime = lab.runtime().enter();
        let mut node = NodeClient::new(plugin.channel());
        let request = identities.request(&lab, &pod, &identities.token(name), minute);
        lab.runtime().block_on(node.node_publish_volume(request)).unwrap();
    }
    for mounted in [plugin.path("kubelet/pods/own/mount"), target, pod] {
        assert_eq!(std::fs::read(mounted.join("d/f")).unwrap(), b"bytes");
    }
    // A listing that stalls, so that the process that imports can be looked at.
    lab.proxy.set_hook(|request| match request.path.contains("prefix=other") {
        true => Fault::StallBeforeHead,
        false => Fault::None,
    });
    std::thread::scope(|scope| {
        scope.spawn(|| publish_with_own_keys(&lab, &plugin, "other/mount", &lab.other_url()));
        wait_until("a process imports", || larderd.importing().len() == 1);
        let importing = larderd.importing()[0];
        // An exec undoes what makes memory private, and it has no job before that is redone.
        wait_until("it imports", || core_limit(importing) == Some(0));
        assert_private(importing, SECRET);
        lab.proxy.set_hook(|_| Fault::None);
    });
    assert_private(plugin.pid().unwrap(), SECRET);
    match larderd.pid().unwrap() {
        larderd if by_files => assert_private(larderd, SECRET),
        larderd => assert_eq!(core_limit(larderd), Some(0)),
    }
    let mounted = lab.mount("cli", &lab.url(), &[]);
    assert_eq!(core_limit(mounted.pid()), Some(0));
    assert!(larderd.log().contains("TRACE") && plugin.log().contains("INFO"), "both log");
    let files = walk(lab.folder());
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        assert!(!leaks(&std::fs::read(&file).unwrap_or_default()), "{} holds the secret", file.display());
    }
}

/// The limit up to which a process may raise that of its core dumps, in bytes.
fn core_limit(pid: u32) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?.split_whitespace().nth(1)?.parse().ok()
}

// SEMANTICS: P4
#[test]
fn changed_files_of_keys_take_effect_without_a_restart_and_a_lost_folder_keeps_the_former_ones() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    lab.put_other("a", b"1".to_vec());
    let folder = keys(&lab);
    let mut larderd = Larderd::start(&lab, "keys", &[]);
    larderd.kill();
    larderd.set_credentials_dir(folder.path());
    larderd.restart();
    larderd.wait_until_it_answers();
    let plugin = Plugin::start(&lab, &larderd, &[]);
    wait_until("the driver listens", || plugin.log().contains("in session with larderd"));
    publish_with_own_keys(&lab, &plugin, "a/mount", &lab.url()).unwrap();
    let mounted = plugin.path("kubelet/pods/a/mount");
    // The key is revoked, for a mount that exists and for a new one, and replaced by another one.
    lab.revoke(&[lab.server.access_key()]);
    assert_eq!(std::fs::read(mounted.join("a")).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let refused = publish_with_own_keys(&lab, &plugin, "b/mount", &lab.other_url()).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    put_key(&folder, OTHER_KEYS[0]);
    wait_until("the mount is read with the new key", || std::fs::read(mounted.join("a")).is_ok_and(|it| it == b"1"));
    assert!(larderd.log().contains("reloaded the node's own credentials"));
    drop(folder);
    wait_until("larderd misses the folder", || larderd.log().contains("the former ones stay in use"));
    publish_with_own_keys(&lab, &plugin, "b/mount", &lab.other_url()).unwrap();
    assert_eq!(std::fs::read(plugin.path("kubelet/pods/b/mount/a")).unwrap(), b"1");
    // Without the folder it does not start.
    larderd.kill();
    larderd.restart();
    wait_until("larderd says which flag is wrong", || larderd.log().contains("--origin-credentials-dir"));
}

// SEMANTICS: P4
#[test]
fn an_import_takes_keys_from_files_and_says_if_there_are_none() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let (folder, empty, report) = (keys(&lab), tempfile::tempdir().unwrap(), lab.folder().join("report"));
    let import = |dir: &std::path::Path, more: &[&str]| {
        let dir = format!("--origin-credentials-dir={}", dir.display());
        let url = lab.url();
        let args = [&["import", &url, &dir, "--report", report.to_str().unwrap()], more].concat();
        let mut command = lab.command(&args);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command.env("AWS_EC2_METADATA_DISABLED", "true").output().unwrap()
    };
    let missing = import(empty.path(), &["--require-credentials"]);
    assert!(!missing.status.success());
    let said = std::fs::read_to_string(&report).unwrap();
    assert!(said.contains("\"no-credentials\"") && said.contains(empty.path().to_str().unwrap()), "{said}");
    let done = import(folder.path(), &["--require-credentials"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    check("import", &done);
    std::fs::remove_dir(empty.path()).unwrap();
    let lost = import(empty.path(), &[]);
    assert!(String::from_utf8_lossy(&lost.stderr).contains("--origin-credentials-dir"), "{lost:?}");
}
