//! `larder doctor`: looks at this machine and says what to change.

mod node;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::{home, output};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, but slower or with less than it could.
    Warn,
    /// Does not work.
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'static str,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let cache_dir = match &args.cache_dir {
        Some(dir) => dir.clone(),
        None if args.node => PathBuf::from("/var/lib/larder/cache"),
        None => home::sub_folder("stores")?,
    };
    let findings = if args.node {
        node::findings(&args.kubelet_dir, &cache_dir)
    } else {
        vec![
            kernel(),
            fuse_device(),
            fusermount(),
            allow_other(),
            read_size(),
            open_files(),
            direct_io(&cache_dir),
            disk(&cache_dir),
        ]
    };
    if args.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            let verdict = match finding.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            println!("{verdict:<5}{:<19}{}", finding.what, finding.found);
            if finding.verdict != Verdict::Ok {
                println!("     {:<19}{}", "", finding.remedy);
            }
        }
    }
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn finding(what: &'static str, verdict: Verdict, found: String, remedy: &'static str) -> Finding {
    Finding { what, verdict, found, remedy: if verdict == Verdict::Ok { "" } else { remedy } }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let verdict = match version(&release) {
        Some(found) if found >= (6, 1) => Verdict::Ok,
        Some(found) if found >= (5, 10) => Verdict::Warn,
        Some(_) | None => Verdict::Fail,
    };
    finding("kernel", verdict, release, "Larder needs Linux 5.10, and is tested on 6.1 and later: update the kernel")
}

/// Major and minor of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn fuse_device() -> Finding {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let (verdict, found) = match opened {
        Ok(_) => (Verdict::Ok, "/dev/fuse can be opened".to_owned()),
        Err(error) => (Verdict::Fail, format!("/dev/fuse: {error}")),
    };
    finding(
        "fuse",
        verdict,
        found,
        "load the module (modprobe fuse); in a container, pass the device (--device /dev/fuse)",
    )
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn fusermount() -> Finding {
    let path = ["/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    match path {
        Some(path) => finding("fusermount3", Verdict::Ok, path.to_owned(), ""),
        None if is_root() => finding("fusermount3", Verdict::Ok, "missing, and not needed by root".to_owned(), ""),
        None => {
            finding("fusermount3", Verdict::Fail, "missing".to_owned(), "install the package fuse3, or mount as root")
        }
    }
}

fn allow_other() -> Finding {
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let allowed = conf.lines().any(|line| line.trim() == "user_allow_other");
    let (verdict, found) = match (is_root(), allowed) {
        (true, _) => (Verdict::Ok, "mounts by root are open to all users"),
        (false, true) => (Verdict::Ok, "user_allow_other is set"),
        (false, false) => (Verdict::Warn, "user_allow_other is not set: only you will see your mounts"),
    };
    finding(
        "other users",
        verdict,
        found.to_owned(),
        "add the line user_allow_other to /etc/fuse.conf for --allow-other",
    )
}

fn read_size() -> Finding {
    const WANTED: u32 = 256;
    let limit =
        std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok().and_then(|text| text.trim().parse().ok());
    let root = if is_root() { "" } else { "; only root can raise a mount's read-ahead above 128 KiB" };
    let verdict = if is_root() && limit.is_none_or(|limit: u32| limit >= WANTED) { Verdict::Ok } else { Verdict::Warn };
    let found = format!("the kernel reads up to {} KiB at once{root}", limit.unwrap_or(WANTED) * 4);
    finding("read size", verdict, found, "sysctl fs.fuse.max_pages_limit=256, and mount as root")
}

fn open_files() -> Finding {
    const WANTED: u64 = 65_536;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let verdict = if most >= WANTED { Verdict::Ok } else { Verdict::Warn };
    finding(
        "open files",
        verdict,
        format!("at most {most}"),
        "raise the hard limit of open files to 65536 (LimitNOFILE=65536)",
    )
}

/// The nearest folder that exists, to which the cache will be written.
fn existing(folder: &Path) -> PathBuf {
    folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn direct_io(cache_dir: &Path) -> Finding {
    use rustix::fs::{Mode, OFlags};
    let folder = existing(cache_dir);
    let probe = folder.join(format!(".larder-doctor-{}", std::process::id()));
    let opened = rustix::fs::open(
        &probe,
        OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::DIRECT,
        Mode::RUSR | Mode::WUSR,
    );
    let _ = std::fs::remove_file(&probe);
    match opened {
        Ok(_) => finding("direct I/O", Verdict::Ok, format!("works in {}", folder.display()), ""),
        Err(rustix::io::Errno::INVAL) => finding(
            "direct I/O",
            Verdict::Warn,
            format!("{} does not support it", folder.display()),
            "put --cache-dir on ext4 or XFS on a local disk: elsewhere cached bytes take memory twice",
        ),
        Err(error) => finding(
            "direct I/O",
            Verdict::Fail,
            format!("cannot write to {}: {error}", folder.display()),
            "name a folder that you may write to (--cache-dir)",
        ),
    }
}

fn disk(cache_dir: &Path) -> Finding {
    const WANTED: u64 = 10 << 30;
    let folder = existing(cache_dir);
    match rustix::fs::statvfs(&folder) {
        Ok(disk) => {
            let free = disk.f_bavail * disk.f_frsize;
            let verdict = if free >= WANTED { Verdict::Ok } else { Verdict::Warn };
            let found = format!("{} free in {}", larder_daemon_api::size::show_bytes(free), folder.display());
            finding("disk", verdict, found, "put the cache on a larger disk (--cache-dir)")
        }
        Err(error) => finding(
            "disk",
            Verdict::Fail,
            format!("{}: {error}", folder.display()),
            "name another folder (--cache-dir)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_as_numbers() {
        assert_eq!(version("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version("5.4.0"), Some((5, 4)));
        assert!(version("5.10") > version("5.4.200"));
        assert_eq!(version("odd"), None);
    }

    #[test]
    fn a_folder_to_be_made_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(existing(&folder.path().join("a/b/c")), folder.path());
    }
}
