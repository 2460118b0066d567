//! Checks of the machine that every mount needs.

use std::os::unix::net::UnixStream;
use std::path::Path;

use larder_daemon_api::socket::{GRPC_SOCKET, SERVICE_RUN_DIR};

use super::finding::{Finding, Verdict};
use super::release::version;

/// The release of the running kernel.
pub(super) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

pub(super) fn kernel(release: &str) -> Finding {
    const TESTED: (u32, u32) = (6, 18);
    let (verdict, note) = match version(release) {
        Some(TESTED) => (Verdict::Ok, String::new()),
        Some(found) if found >= (5, 10) => {
            (Verdict::Ok, format!("; should work, but Larder was tested on Linux {}.{} only", TESTED.0, TESTED.1))
        }
        Some(_) | None => (Verdict::Fail, String::new()),
    };
    Finding {
        what: "kernel",
        verdict,
        found: format!("{release}{note}"),
        remedy: "update the kernel: Larder needs Linux 5.10 or later",
    }
}

pub(super) fn fuse_device() -> Finding {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    fuse_finding(opened.map(drop))
}

fn fuse_finding(opened: std::io::Result<()>) -> Finding {
    let remedy = match &opened {
        // The device is there, so its module is loaded.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "give this user access (chmod 0666 /dev/fuse, as most distributions do), or mount as root; in a container, \
             pass the device (--device /dev/fuse)"
        }
        _ => "load the module (modprobe fuse); in a container, pass the device (--device /dev/fuse)",
    };
    let (verdict, found) = match opened {
        Ok(()) => (Verdict::Ok, "/dev/fuse can be opened".to_owned()),
        Err(error) => (Verdict::Fail, format!("/dev/fuse: {error}")),
    };
    Finding { what: "fuse", verdict, found, remedy }
}

/// How long mounts of this user last on the machine with this root.
pub(super) fn service(root: &Path) -> Finding {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let run_dir = below(SERVICE_RUN_DIR);
    // systemd makes the folder at each start of the service, and removes it when the service is stopped.
    let found = match (below("/run/systemd/system").exists(), run_dir.exists(), is_root()) {
        (_, true, true) if UnixStream::connect(run_dir.join(GRPC_SOCKET)).is_err() => {
            return Finding {
                what: "service",
                verdict: Verdict::Warn,
                found: "larderd.service does not answer: the readers of its mounts wait".to_owned(),
                remedy: "see why it does not start: journalctl -u larderd",
            };
        }
        (_, true, true) => "larderd.service runs: mounts outlive its process, until it is stopped",
        (_, true, false) => "larderd.service runs for root alone: this user's mounts end with their process",
        (true, false, true) => "larderd.service does not run: mounts end with their process (systemctl start larderd)",
        (true, false, false) => "this user's mounts end with their process; larderd.service is for those of root",
        (false, false, _) => "no systemd: mounts end with their process, and are made again after a boot by hand",
    };
    Finding::ok("service", found.to_owned())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(super) fn fusermount() -> Finding {
    let path = ["/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    match path {
        Some(path) => Finding::ok("fusermount3", path.to_owned()),
        None if is_root() => Finding::ok("fusermount3", "missing; root does not need it".to_owned()),
        None => Finding {
            what: "fusermount3",
            verdict: Verdict::Fail,
            found: "missing".to_owned(),
            remedy: "install the package fuse3, or mount as root",
        },
    }
}

pub(super) fn allow_other() -> Finding {
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let allowed = conf.lines().any(|line| line.trim() == "user_allow_other");
    let (verdict, found) = match (is_root(), allowed) {
        (true, _) => (Verdict::Ok, "root's mounts are open to all users"),
        (false, true) => (Verdict::Ok, "user_allow_other is set"),
        (false, false) => (Verdict::Warn, "user_allow_other is not set: other users cannot read your mounts"),
    };
    Finding {
        what: "other users",
        verdict,
        found: found.to_owned(),
        remedy: "for --allow-other, add the line user_allow_other to /etc/fuse.conf",
    }
}

pub(super) fn read_size() -> Finding {
    const WANTED: u32 = 256;
    let limit =
        std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok().and_then(|text| text.trim().parse().ok());
    let root = if is_root() { "" } else { "; only root can raise a mount's read-ahead above 128 KiB" };
    let verdict = if is_root() && limit.is_none_or(|limit: u32| limit >= WANTED) { Verdict::Ok } else { Verdict::Warn };
    let found = format!("the kernel reads up to {} KiB at a time{root}", limit.unwrap_or(WANTED) * 4);
    Finding { what: "read size", verdict, found, remedy: "sysctl fs.fuse.max_pages_limit=256, and mount as root" }
}

pub(super) fn open_files() -> Finding {
    const WANTED: u64 = 65_536;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let verdict = if most >= WANTED { Verdict::Ok } else { Verdict::Warn };
    Finding {
        what: "open files",
        verdict,
        found: format!("at most {most}"),
        remedy: "raise the hard limit of open files to 65536 (LimitNOFILE=65536)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fuse_device_that_may_not_be_opened_is_not_taken_for_a_missing_module() {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        let remedy = |kind: std::io::ErrorKind| fuse_finding(Err(kind.into())).remedy;
        assert!(remedy(PermissionDenied).contains("chmod") && !remedy(PermissionDenied).contains("modprobe"));
        assert!(remedy(NotFound).contains("modprobe"));
    }

    #[test]
    fn the_service_is_found_where_it_runs() {
        let root = tempfile::tempdir().unwrap();
        let found = || service(root.path()).found;
        assert!(found().starts_with("no systemd"), "{}", found());
        std::fs::create_dir_all(root.path().join("run/systemd/system")).unwrap();
        assert_eq!(found().contains("systemctl start larderd"), is_root(), "{}", found());
        let run_dir = root.path().join("run/larderd");
        std::fs::create_dir(&run_dir).unwrap();
        // A user who is not root may not look into it.
        let waiting = service(root.path());
        assert_eq!(waiting.verdict == Verdict::Warn, is_root(), "{}", waiting.found);
        let _larderd = std::os::unix::net::UnixListener::bind(run_dir.join(GRPC_SOCKET)).unwrap();
        assert!(found().starts_with("larderd.service runs"), "{}", found());
    }

    #[test]
    fn kernels_from_5_10_on_pass_and_only_the_tested_kernel_is_called_tested() {
        for (release, verdict, tested) in [
            ("6.18.44", Verdict::Ok, true),
            ("6.19.0", Verdict::Ok, false),
            ("6.8.0-57-generic", Verdict::Ok, false),
            ("6.1.0", Verdict::Ok, false),
            ("5.14.0-503.el9", Verdict::Ok, false),
            ("5.10.0", Verdict::Ok, false),
            ("5.4.0", Verdict::Fail, false),
            ("odd", Verdict::Fail, false),
        ] {
            let judged = kernel(release);
            assert_eq!(judged.verdict, verdict, "{release}");
            let doubted = judged.found.contains("tested on Linux 6.18 only");
            assert_eq!(doubted, verdict == Verdict::Ok && !tested, "{release}: {}", judged.found);
        }
    }
}
