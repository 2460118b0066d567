//! Checks of a Kubernetes node, for larder-csi and larderd. Each check takes the kernel's text as an argument, so that
//! tests can pass the text of a faulty machine.

use std::borrow::Cow;
use std::path::Path;

use larder_dataset::size::show_bytes;
use larder_fs::pids_max_file;

use super::finding::{Finding, Verdict};
use super::mountinfo::mount_of;
use super::release::version;
use super::{cache_folder, cpu, host};

pub(super) fn findings(kubelet_dir: &Path, cache_dir: &Path, keep_free: u8) -> Vec<Finding> {
    let release = host::release();
    let mounts = text("/proc/self/mountinfo");
    vec![
        host::kernel(&release),
        fuse_module(&text("/proc/filesystems"), &kernel_config(&release)),
        host::fuse_device(),
        host::read_size(),
        background(&text("/sys/module/fuse/parameters/max_user_bgreq")),
        request_timeout(
            &text("/proc/sys/fs/fuse/default_request_timeout"),
            &text("/proc/sys/fs/fuse/max_request_timeout"),
        ),
        propagation(&mounts, kubelet_dir),
        user_namespaces(&release),
        host::open_files(),
        threads(&[
            ("kernel.pid_max", text("/proc/sys/kernel/pid_max")),
            ("kernel.threads-max", text("/proc/sys/kernel/threads-max")),
            ("pids.max of the cgroup", pids_max_file(&text("/proc/self/cgroup")).map(text).unwrap_or_default()),
        ]),
        memory(&text("/proc/meminfo")),
        cpu::finding(kubelet_dir, Path::new("/sys/fs/cgroup")),
        cgroups(Path::new("/sys/fs/cgroup/cgroup.controllers").exists()),
        selinux(&text("/sys/fs/selinux/enforce")),
        file_system(&mounts, &cache_folder::existing(cache_dir)),
        cache_folder::direct_io(cache_dir),
        cache_folder::disk(cache_dir, keep_free),
    ]
}

/// The text of a file; empty if it cannot be read.
fn text(path: impl AsRef<Path>) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The options that the kernel was built with; empty if it does not publish them.
fn kernel_config(release: &str) -> String {
    let plain = text(format!("/boot/config-{release}"));
    if !plain.is_empty() {
        return plain;
    }
    let unpacked = std::process::Command::new("gzip").args(["-dc", "/proc/config.gz"]).output();
    unpacked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn fuse_module(filesystems: &str, config: &str) -> Finding {
    let loaded = filesystems.lines().any(|line| line.split_whitespace().last() == Some("fuse"));
    let option = config.lines().find_map(|line| line.strip_prefix("CONFIG_FUSE_FS="));
    let (verdict, found, remedy) = match (loaded, option) {
        (true, _) => (Verdict::Ok, "loaded", ""),
        (false, Some(_)) => (
            Verdict::Fail,
            "not loaded",
            "modprobe fuse, and for the next boot add a file with the line fuse to /etc/modules-load.d",
        ),
        (false, None) if config.is_empty() => (
            Verdict::Fail,
            "not loaded, and the kernel does not publish its options",
            "modprobe fuse; if there is no such module, use a kernel with CONFIG_FUSE_FS",
        ),
        (false, None) => {
            (Verdict::Fail, "the kernel was built without CONFIG_FUSE_FS", "use a kernel with CONFIG_FUSE_FS")
        }
    };
    Finding { what: "fuse module", verdict, found: found.to_owned(), remedy }
}

/// larderd is not root, so the kernel caps its background requests at this limit.
fn background(max_user_bgreq: &str) -> Finding {
    const WANTED: u64 = 1024;
    let (verdict, found) = match number(max_user_bgreq) {
        Some(limit) if limit < WANTED => (Verdict::Warn, format!("at most {limit} concurrent read-aheads on a mount")),
        Some(limit) => (Verdict::Ok, format!("up to {limit} on a mount")),
        None => (Verdict::Ok, "the kernel reports no limit".to_owned()),
    };
    Finding { what: "reads ahead", verdict, found, remedy: "echo 1024 > /sys/module/fuse/parameters/max_user_bgreq" }
}

/// The kernel aborts a connection whose daemon does not answer within this time, even if the daemon is restarting or
/// waiting for the origin.
fn request_timeout(default: &str, most: &str) -> Finding {
    let seconds = [default, most].into_iter().filter_map(number).filter(|seconds| *seconds > 0).min();
    let (verdict, found) = match seconds {
        Some(seconds) => (Verdict::Warn, format!("a mount dies if a read is not answered within {seconds} s")),
        None => (Verdict::Ok, "none: readers wait while larderd restarts".to_owned()),
    };
    let remedy = "sysctl fs.fuse.default_request_timeout=0 fs.fuse.max_request_timeout=0";
    Finding { what: "request timeout", verdict, found, remedy }
}

fn propagation(mountinfo: &str, kubelet_dir: &Path) -> Finding {
    const WHAT: &str = "mount propagation";
    let Ok(folder) = kubelet_dir.canonicalize() else {
        let found = format!("{} does not exist", kubelet_dir.display());
        return Finding {
            what: WHAT,
            verdict: Verdict::Fail,
            found,
            remedy: "run this on a Kubernetes node, and name the kubelet's folder (--kubelet-dir)",
        };
    };
    let (verdict, found) = match mount_of(mountinfo, &folder) {
        Some(mount) if mount.shared => {
            (Verdict::Ok, format!("{} is shared (mount {})", folder.display(), mount.path.display()))
        }
        Some(mount) => (Verdict::Fail, format!("{} is not shared (mount {})", folder.display(), mount.path.display())),
        None => (Verdict::Fail, format!("{} is in no visible mount", folder.display())),
    };
    Finding {
        what: WHAT,
        verdict,
        found,
        remedy: "mount --make-rshared / (or the named mount), then restart the kubelet",
    }
}

fn threads(limits: &[(&str, String)]) -> Finding {
    const WANTED: u64 = 1024;
    let least = limits.iter().filter_map(|(name, limit)| Some((number(limit)?, *name))).min();
    let (verdict, found) = match least {
        Some((limit, name)) if limit < WANTED => (Verdict::Warn, format!("at most {limit} ({name})")),
        Some((limit, name)) => (Verdict::Ok, format!("up to {limit} ({name})")),
        None => (Verdict::Ok, "no limit".to_owned()),
    };
    let remedy = "allow pods 1024 threads (podPidsLimit of the kubelet): larderd has up to 256 for its mounts, and \
                  others for its disk and network";
    Finding { what: "threads", verdict, found, remedy }
}

fn memory(meminfo: &str) -> Finding {
    const WANTED: u64 = 2 << 30;
    let available = meminfo.lines().find_map(|line| {
        let kilobytes = line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?;
        Some(number(kilobytes)? << 10)
    });
    let (verdict, found) = match available {
        Some(bytes) if bytes < WANTED => (Verdict::Warn, format!("{} available", show_bytes(bytes))),
        Some(bytes) => (Verdict::Ok, format!("{} available", show_bytes(bytes))),
        None => (Verdict::Warn, "unknown".to_owned()),
    };
    let remedy =
        "leave 2 GiB for larderd and for the pages of the files being read, which count towards the reading pod";
    Finding { what: "memory", verdict, found, remedy }
}

/// Whether pods in user namespaces can use Larder's volumes.
fn user_namespaces(release: &str) -> Finding {
    let maps = version(release).is_some_and(|found| found >= (6, 12));
    let found =
        if maps { "pods in them can use volumes" } else { "pods in them (hostUsers: false) cannot use volumes" };
    let verdict = if maps { Verdict::Ok } else { Verdict::Warn };
    let remedy = "for pods in user namespaces, update the kernel to Linux 6.12 or later";
    Finding { what: "user namespaces", verdict, found: found.to_owned(), remedy }
}

fn cgroups(unified: bool) -> Finding {
    let (verdict, found) = if unified { (Verdict::Ok, "version 2") } else { (Verdict::Warn, "version 1") };
    let remedy = "boot with systemd.unified_cgroup_hierarchy=1: from 1.35 on, kubelets refuse version 1 by default";
    Finding { what: "cgroups", verdict, found: found.to_owned(), remedy }
}

fn selinux(enforce: &str) -> Finding {
    let (verdict, found) = match number(enforce) {
        Some(1) => (Verdict::Warn, "enforcing; Larder has not been tested with it"),
        Some(_) => (Verdict::Ok, "permissive"),
        None => (Verdict::Ok, "none"),
    };
    let remedy =
        "if pods get EACCES, look for `avc: denied` in the kernel's log and allow the operations that it names";
    Finding { what: "SELinux", verdict, found: found.to_owned(), remedy }
}

fn file_system(mountinfo: &str, folder: &Path) -> Finding {
    let folder: Cow<'_, Path> = folder.canonicalize().map_or(Cow::Borrowed(folder), Cow::Owned);
    let kind = mount_of(mountinfo, &folder).map_or("unknown".to_owned(), |mount| mount.fs_type);
    let verdict = if ["ext4", "xfs", "btrfs"].contains(&kind.as_str()) { Verdict::Ok } else { Verdict::Warn };
    let remedy = "mount an ext4 or XFS file system on a local disk at /var/lib/larder";
    Finding { what: "file system", verdict, found: format!("{kind} in {}", folder.display()), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_directory_without_shared_propagation_fails() {
        let folder = tempfile::tempdir().unwrap();
        let judged = |options: &str| propagation(&format!("1 0 8:1 / / rw{options} - ext4 /dev/sda rw"), folder.path());
        assert_eq!(judged(" shared:1").verdict, Verdict::Ok);
        for private in ["", " master:1", " unbindable"] {
            let found = judged(private);
            assert_eq!(found.verdict, Verdict::Fail, "{private}");
            assert!(found.remedy.contains("--make-rshared"));
        }
        assert_eq!(propagation("", Path::new("/no/such/folder")).verdict, Verdict::Fail);
    }

    #[test]
    fn fuse_must_be_loaded_and_the_remedy_says_whether_it_can_be() {
        assert_eq!(fuse_module("nodev\tproc\nnodev\tfuse\n", "").verdict, Verdict::Ok);
        // Neither of these is the file system itself.
        let without = "\tfuseblk\nnodev\tfusectl\n";
        for (config, remedy) in [
            ("CONFIG_EXT4_FS=y\nCONFIG_FUSE_FS=m\n", "modprobe fuse, and"),
            ("# CONFIG_FUSE_FS is not set\n", "use a kernel"),
            ("", "modprobe fuse; if"),
        ] {
            let found = fuse_module(without, config);
            assert_eq!(found.verdict, Verdict::Fail);
            assert!(found.remedy.starts_with(remedy), "{}", found.remedy);
        }
    }

    #[test]
    fn a_low_limit_of_background_reads_is_a_warning() {
        assert_eq!(background("7866\n").verdict, Verdict::Ok);
        assert_eq!(background("").verdict, Verdict::Ok);
        assert_eq!(background("12\n").verdict, Verdict::Warn);
    }

    #[test]
    fn the_shorter_request_timeout_counts_and_0_is_none() {
        assert_eq!(request_timeout("0\n", "0\n").verdict, Verdict::Ok);
        assert_eq!(request_timeout("", "").verdict, Verdict::Ok);
        for (default, most, seconds) in [("30", "0", "30 s"), ("0", "600", "600 s"), ("90", "60", "60 s")] {
            let found = request_timeout(default, most);
            assert_eq!(found.verdict, Verdict::Warn);
            assert!(found.found.ends_with(seconds), "{}", found.found);
        }
    }

    #[test]
    fn the_lowest_limit_of_threads_is_named() {
        let judged = |pod: &str| threads(&[("kernel.pid_max", "32768\n".to_owned()), ("pids.max", pod.to_owned())]);
        assert_eq!(judged("max\n").verdict, Verdict::Ok);
        assert_eq!(judged("").verdict, Verdict::Ok);
        let found = judged("100\n");
        assert_eq!((found.verdict, found.found.as_str()), (Verdict::Warn, "at most 100 (pids.max)"));
    }

    #[test]
    fn pods_in_user_namespaces_need_a_kernel_that_maps_fuse_mounts() {
        assert_eq!(user_namespaces("6.12.0").verdict, Verdict::Ok);
        for release in ["6.11.9", "5.14.0-503.el9", ""] {
            let found = user_namespaces(release);
            assert!(found.verdict == Verdict::Warn && found.remedy.contains("6.12"), "{release}");
        }
    }

    #[test]
    fn memory_cgroups_and_selinux_are_checked() {
        assert_eq!(memory("MemTotal: 9 kB\nMemAvailable:   22000000 kB\n").verdict, Verdict::Ok);
        assert_eq!(memory("MemAvailable: 1000000 kB\n").verdict, Verdict::Warn);
        assert_eq!(memory("MemTotal: 22000000 kB\n").verdict, Verdict::Warn);
        assert_eq!(cgroups(true).verdict, Verdict::Ok);
        assert_eq!(cgroups(false).verdict, Verdict::Warn);
        assert_eq!(selinux("").verdict, Verdict::Ok);
        assert_eq!(selinux("0").verdict, Verdict::Ok);
        assert_eq!(selinux("1").verdict, Verdict::Warn);
    }

    #[test]
    fn a_cache_on_a_remote_or_memory_file_system_is_a_warning() {
        let folder = Path::new("/srv/larder");
        let on = |kind: &str| file_system(&format!("1 0 8:1 / / rw - {kind} source rw"), folder).verdict;
        assert_eq!(on("ext4"), Verdict::Ok);
        assert_eq!(on("xfs"), Verdict::Ok);
        for kind in ["nfs4", "overlay", "tmpfs", "fuse.sshfs"] {
            assert_eq!(on(kind), Verdict::Warn, "{kind}");
        }
    }
}
