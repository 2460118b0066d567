//! Secrets appear nowhere.

use std::process::Output;

use larder_e2e::{Lab, SECRET};
use larder_testkit::Fault;

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
