//! A mount can be read, and nothing else.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;

use larder_e2e::{Lab, Mount};
use rustix::fs::{AtFlags, FileType, Mode, XattrFlags};
use rustix::io::Errno;

fn lab_with_mount() -> (Lab, Mount) {
    let lab = Lab::new();
    lab.put("a/file", b"some bytes".to_vec());
    lab.put("b", b"x".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    (lab, mount)
}

// SEMANTICS: A2
#[test]
fn every_call_that_would_write_is_refused_with_erofs() {
    let (_lab, mount) = lab_with_mount();
    let (file, new, dir) = (mount.path("a/file"), mount.path("a/new"), mount.path("a"));
    let erofs = |what: &str, result: Result<(), Errno>| assert_eq!(result, Err(Errno::ROFS), "{what}");
    let open = |options: &mut OpenOptions, path: &std::path::Path| {
        options.open(path).map(drop).map_err(|error| Errno::from_io_error(&error).unwrap())
    };
    let mode = Mode::from_raw_mode(0o644);
    let at = rustix::fs::CWD;
    erofs("open for writing", open(OpenOptions::new().write(true), &file));
    erofs("open for appending", open(OpenOptions::new().append(true), &file));
    erofs("truncating open", open(OpenOptions::new().write(true).truncate(true), &file));
    erofs("create", open(OpenOptions::new().write(true).create_new(true), &new));
    erofs("mkdir", rustix::fs::mkdir(&new, mode));
    erofs("mknod", rustix::fs::mknodat(at, &new, FileType::Fifo, mode, 0));
    erofs("symlink", rustix::fs::symlink("target", &new));
    erofs("link", rustix::fs::link(&file, &new));
    erofs("unlink", rustix::fs::unlink(&file));
    erofs("rmdir", rustix::fs::rmdir(&dir));
    erofs("rename", rustix::fs::rename(&file, &new));
    erofs("chmod", rustix::fs::chmod(&file, mode));
    erofs("chown", rustix::fs::chown(&file, Some(rustix::fs::Uid::ROOT), None));
    erofs("setxattr", rustix::fs::setxattr(&file, "user.x", b"1", XattrFlags::empty()));
    erofs("removexattr", rustix::fs::removexattr(&file, "user.larder.etag"));
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 },
    };
    erofs("utimes", rustix::fs::utimensat(at, &file, &times, AtFlags::empty()));
    assert_eq!(std::fs::read(&file).unwrap(), b"some bytes");
}

// SEMANTICS: A2
#[test]
fn a_mount_that_root_made_writable_still_refuses_writes() {
    use rustix::mount::MountFlags;
    let (_lab, mount) = lab_with_mount();
    rustix::mount::mount_remount(mount.dir(), MountFlags::NODEV | MountFlags::NOSUID, c"").unwrap();
    let refused = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    refused(std::fs::create_dir(mount.path("new")));
    refused(std::fs::write(mount.path("new"), b"x"));
    refused(std::fs::remove_file(mount.path("b")));
    refused(std::fs::rename(mount.path("b"), mount.path("c")));
    refused(std::fs::set_permissions(mount.path("b"), std::os::unix::fs::PermissionsExt::from_mode(0o777)));
    assert_eq!(std::fs::read(mount.path("b")).unwrap(), b"x");
}

// SEMANTICS: A3
#[test]
fn files_tell_where_they_come_from_in_xattrs() {
    let (lab, mount) = lab_with_mount();
    let get = |path: &str, name: &str| {
        let mut value = [0; 200];
        rustix::fs::getxattr(mount.path(path), name, &mut value)
            .map(|len| String::from_utf8(value[..len].to_vec()).unwrap())
    };
    assert_eq!(get("a/file", "user.larder.origin").unwrap(), format!("{}/a/file", lab.url()));
    // The MD5 of "x".
    assert_eq!(get("b", "user.larder.etag").unwrap(), "\"9dd4e461268c8034f5c8564e155c67a6\"");
    assert_eq!(get("b", "user.larder.crc32c"), Err(Errno::NODATA), "not known before packing");
    assert_eq!(get("b", "user.other"), Err(Errno::NODATA));
    let mut names = [0; 200];
    let len = rustix::fs::listxattr(mount.path("b"), &mut names).unwrap();
    assert_eq!(&names[..len], b"user.larder.etag\0user.larder.origin\0");
    let mut short = [0; 3];
    assert_eq!(rustix::fs::getxattr(mount.path("b"), "user.larder.etag", &mut short), Err(Errno::RANGE));
}

// SEMANTICS: A4
#[test]
fn the_mount_tells_about_itself_in_files_that_no_listing_shows() {
    let (lab, mount) = lab_with_mount();
    let listed: Vec<_> = std::fs::read_dir(mount.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, ["a", "b"]);
    let listed: Vec<_> =
        std::fs::read_dir(mount.path(".larder")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, ["manifest.json", "stats.json"]);

    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(mount.path(".larder/manifest.json")).unwrap()).unwrap();
    assert_eq!((manifest["files"].as_u64(), manifest["bytes"].as_u64()), (Some(2), Some(11)));
    assert_eq!(manifest["origin"], lab.url());
    let before = mount.metric("fs_reads_total");
    mount.read_fresh("a/file").unwrap();
    assert!(mount.metric("fs_reads_total") > before, "stats are current at each read");
}

// SEMANTICS: A4
#[test]
fn every_metric_in_stats_is_in_the_table_and_the_other_way_round() {
    let (_lab, mount) = lab_with_mount();
    let stats = mount.stats();
    let found: Vec<&str> = stats["metrics"].as_object().unwrap().keys().map(String::as_str).collect();
    // The others belong to no mount, as those of mirrors, or are in other sections of its stats.
    let is_one_of = |name: &str, of: &[&str]| of.iter().any(|of| name.starts_with(of));
    let of_a_mount =
        |name: &&str| is_one_of(name, &["fs_", "store_"]) && !is_one_of(name, &["fs_mirror_", "fs_origins_left_"]);
    let mut named: Vec<&str> = larder_telemetry::METRICS.iter().map(|metric| metric.name).filter(of_a_mount).collect();
    named.sort_unstable();
    assert_eq!(found, named);
}

// SEMANTICS: N3
#[test]
fn names_of_255_bytes_and_odd_ones_are_kept_and_found() {
    let lab = Lab::new();
    let long = "n".repeat(255);
    let names =
        [long.as_str(), "a b", "%2e%2e", "💀", "x+y=z&?#", "ünï", ".hidden", "trailing.", "back\\slash", "'\"`"];
    for name in names {
        lab.put(&format!("d/{name}"), name.as_bytes().to_vec());
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    for name in names {
        assert_eq!(std::fs::read(mount.path("d").join(name)).unwrap(), name.as_bytes(), "{name}");
    }
    let mut listed: Vec<_> =
        std::fs::read_dir(mount.path("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut expected: Vec<_> = names.map(std::ffi::OsString::from).to_vec();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    assert_eq!(File::open(mount.path("d").join("n".repeat(256))).unwrap_err().raw_os_error(), Some(36), "ENAMETOOLONG");
}

// SEMANTICS: N3
#[test]
fn names_that_are_not_utf_8_come_through_from_a_folder() {
    let lab = Lab::new();
    let folder = lab.folder().join("origin");
    std::fs::create_dir(&folder).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe new\nline");
    std::fs::write(folder.join(name), b"odd").unwrap();
    let mount = lab.mount("m", &format!("file://{}", folder.display()), &[]);
    assert_eq!(std::fs::read(mount.path(name)).unwrap(), b"odd");
}
