use clap::Parser;

use super::*;

#[derive(Parser)]
struct Only {
    #[command(flatten)]
    node: NodeFlags,
}

#[test]
fn a_cache_of_nothing_or_beyond_the_disk_is_doubted_and_any_other_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let dirs = ["a/b", "c"].map(|dir| folder.path().join(dir));
    let doubt = |bytes| doubt_cache_size(bytes, &dirs);
    let disk = rustix::fs::statvfs(folder.path()).unwrap();
    let disk_bytes = disk.f_blocks * disk.f_frsize;
    assert!(doubt(0).unwrap().contains("--cache-size is 0"));
    assert_eq!([doubt(1), doubt(disk_bytes)], [None, None]);
    for bytes in [disk_bytes + 1, u64::MAX] {
        let doubt = doubt(bytes).unwrap();
        assert!(doubt.contains("--cache-size") && doubt.contains(folder.path().to_str().unwrap()), "{doubt}");
    }
}

#[tokio::test]
async fn of_several_folders_those_that_can_be_written_to_are_used_and_the_first_explains_why_none_can() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    let bad = PathBuf::from("/proc/larder");
    let usable = wait_for_folders(&[bad.clone(), good.clone()], "--run-dir").await.unwrap();
    assert_eq!(usable, std::slice::from_ref(&good));
    std::fs::write(good.join("file"), b"").unwrap();
    let error = wait_for_folders(&[bad, good.join("file/x")], "--run-dir").await.unwrap_err().to_string();
    assert!(error.contains("/proc/larder (--run-dir)"), "{error}");
}

fn set(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// If this thread is root's, it becomes another user's, and so do the threads that it starts.
fn become_user(uid: u32) {
    let own = rustix::process::getuid();
    if own.is_root() {
        rustix::thread::set_thread_res_uid(own, rustix::process::Uid::from_raw(uid), own).unwrap();
    }
}

// SEMANTICS: C20
#[tokio::test(start_paused = true)]
async fn cache_folders_that_another_process_has_yet_to_give_are_waited_for_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    set(folder.path(), 0o755);
    let dirs: Vec<PathBuf> = (0..8).map(|n| folder.path().join(n.to_string())).collect();
    for dir in &dirs {
        std::fs::create_dir(dir).unwrap();
        set(dir, 0o555);
    }
    become_user(65534);
    let begun = Instant::now();
    assert_eq!(wait_for_caches(dirs.clone()).await, dirs);
    let took = begun.elapsed();
    assert!((FOLDER_TIMEOUT..FOLDER_TIMEOUT * 2).contains(&took), "{took:?}");
    become_user(0);
}

/// As root this thread becomes another user, to whom the folder is forbidden.
#[tokio::test]
async fn a_folder_that_another_process_has_yet_to_give_is_used_later_and_one_that_fails_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let [forbidden, good] = ["forbidden", "good"].map(|name| folder.path().join(name));
    std::fs::create_dir(&forbidden).unwrap();
    std::fs::create_dir(&good).unwrap();
    set(folder.path(), 0o755);
    set(&forbidden, 0o555);
    set(&good, 0o777);
    become_user(65534);
    let found = wait_for_folders(&[forbidden.clone(), "/proc/larder".into(), good.clone()], "--run-dir").await;
    assert_eq!(found.unwrap(), [good.clone(), forbidden.clone()]);
    let wait = wait_for_folder(&forbidden);
    tokio::pin!(wait);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut wait).await.is_err());
    become_user(0);
    set(&forbidden, 0o777);
    become_user(65534);
    assert!(wait.await);
    assert!(!wait_for_folder(&good).await);
}

// SEMANTICS: C4
#[tokio::test]
async fn a_home_that_cannot_be_written_to_stays_the_home() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"").unwrap();
    // Below a file nothing can be made, whoever asks.
    let home = folder.path().join("file/home");
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let args = ["larderd".to_owned(), flag("cache-dir", &folder.path().join("cache")), flag("home", &home)];
    let (config, _) = Only::try_parse_from(args).unwrap().node.open().await.unwrap();
    assert_eq!(config.home.dir(), home);
}

#[test]
fn the_default_part_of_the_disk_that_stays_free_is_that_of_the_flag() {
    let flags = Only::try_parse_from(["larderd", "--cache-dir=/c", "--keep-free=7%"]).unwrap();
    assert_eq!(flags.node.keep_free, 7);
    let command = <Only as clap::CommandFactory>::command();
    let flag = command.get_arguments().find(|flag| flag.get_id() == "keep_free").unwrap();
    assert_eq!(flag.get_default_values(), [format!("{KEEP_FREE_DEFAULT}%").as_str()]);
}

// SEMANTICS: C20
#[test]
fn of_cache_folders_on_one_disk_the_first_is_used_and_one_that_is_missing_may_be_on_another() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&other).unwrap();
    let missing = folder.path().join("missing");
    let mut dirs = vec![one.clone(), other, PathBuf::from("/proc"), missing.clone()];
    drop_same_disks(&mut dirs);
    assert_eq!(dirs, [one, PathBuf::from("/proc"), missing]);
}

#[tokio::test]
async fn a_cache_folder_is_named_once() {
    let given = Only::try_parse_from(["larderd", "--cache-dir=/c", "--cache-dir=/d", "--cache-dir=/c"]).unwrap();
    let error = given.node.open().await.err().unwrap().to_string();
    assert!(error.contains("--cache-dir /c is given twice"), "{error}");
    assert!(Only::try_parse_from(["larderd"]).is_err());
}

#[test]
fn a_memory_target_that_is_no_size_or_too_little_is_an_error_that_names_the_flag() {
    for text in ["much", "1MiB", "-1"] {
        let args = ["larderd".to_owned(), "--cache-dir=/c".to_owned(), format!("--memory-target={text}")];
        let error = Only::try_parse_from(args).err().unwrap().to_string();
        assert!(error.contains("--memory-target"), "{error}");
    }
    let flags = Only::try_parse_from(["larderd", "--cache-dir=/c", "--memory-target=64MiB"]).unwrap();
    assert_eq!(flags.node.memory_target, Some(64 << 20));
}

#[test]
fn keep_free_is_a_whole_percentage_below_100() {
    assert_eq!([parse_percent("20%"), parse_percent("5 %"), parse_percent("0")], [Ok(20), Ok(5), Ok(0)]);
    for text in ["100%", "-1%", "1.5%", "20GiB", "", "%"] {
        assert!(parse_percent(text).unwrap_err().contains("20%"), "{text}");
    }
}
