//! The cgroups of a process, and which of them limits RDMA objects.

use std::path::{Path, PathBuf};

/// The cgroup version that has the rdma controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// A separate v1 hierarchy, mounted as `rdma` below the root.
    V1,
    /// The unified hierarchy of cgroup v2. It is mounted at the root, or at the root's `unified` beside v1 hierarchies.
    V2,
}

impl Controller {
    /// Finds the controller of this machine. `root` is the directory where cgroups are mounted. `None` if the kernel
    /// has no rdma controller, or if it is disabled.
    pub fn find(root: &Path) -> Option<Self> {
        // A folder named `rdma` alone proves nothing: it may be empty, so `cgroup.procs`, which every cgroup has, is
        // checked as well. In cgroup v2, a cgroup may be named `rdma`.
        let is_v1 = !root.join(CONTROLLERS).exists() && root.join("rdma/cgroup.procs").exists();
        if is_v1 { Some(Self::V1) } else { has_rdma(&unified(root)).then_some(Self::V2) }
    }

    /// The cgroup directory of the kubelet's pods, if it lacks the rdma controller of cgroup v2. Cgroups get their
    /// controllers from their parent, so no container below that directory can be limited.
    pub fn missing_from(root: &Path) -> Option<PathBuf> {
        let pods = ["kubepods.slice", "kubepods"].map(|name| unified(root).join(name));
        pods.into_iter().find(|folder| folder.join(CONTROLLERS).exists() && !has_rdma(folder))
    }

    /// The directory of a cgroup. `path` is relative to the top of the controller's hierarchy.
    pub fn folder(self, root: &Path, path: &str) -> PathBuf {
        let mount = match self {
            Self::V1 => root.join("rdma"),
            Self::V2 => unified(root),
        };
        mount.join(path.trim_start_matches('/'))
    }
}

/// True if a v2 cgroup has the rdma controller.
fn has_rdma(folder: &Path) -> bool {
    let controllers = std::fs::read_to_string(folder.join(CONTROLLERS)).unwrap_or_default();
    controllers.split_ascii_whitespace().any(|name| name == "rdma")
}

/// The file in every v2 cgroup that lists its controllers.
const CONTROLLERS: &str = "cgroup.controllers";

/// Where cgroup v2 is mounted.
fn unified(root: &Path) -> PathBuf {
    if root.join(CONTROLLERS).exists() { root.to_owned() } else { root.join("unified") }
}

/// The cgroups of a process that can limit RDMA objects, as paths from the top of their hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// In the v1 hierarchy of the rdma controller.
    pub rdma: Option<String>,
    /// In cgroup v2.
    pub unified: Option<String>,
}

/// The text is not in the format of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a line of a process's cgroups")]
pub struct UnsoundGroups(String);

impl Groups {
    /// Parses a `/proc/PID/cgroup`. Paths with `..` are rejected: such a process is outside of this process's cgroup
    /// namespace.
    pub fn parse(text: &str) -> Result<Self, UnsoundGroups> {
        let mut groups = Self::default();
        for line in text.lines() {
            let unsound = || UnsoundGroups(line.chars().take(200).collect());
            let mut parts = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(unsound());
            };
            let group = match (id, controllers) {
                ("0", "") => &mut groups.unified,
                _ if controllers.split(',').any(|name| name == "rdma") => &mut groups.rdma,
                _ => continue,
            };
            let leads_down = path.starts_with('/') && !path.contains('\0') && path.split('/').all(|part| part != "..");
            if !leads_down || group.replace(path.to_owned()).is_some() {
                return Err(unsound());
            }
        }
        Ok(groups)
    }

    /// The directory of the cgroup that limits RDMA objects; `None` if no cgroup can.
    pub fn folder(&self, root: &Path) -> Option<PathBuf> {
        match (&self.rdma, &self.unified) {
            (Some(path), _) => Some(Controller::V1.folder(root, path)),
            (None, Some(path)) => Some(Controller::V2.folder(root, path)),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: D20
    #[test]
    fn the_hierarchy_of_v1_comes_before_that_of_v2() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let v1 = "12:pids:/kubepods/a\n8:rdma:/kubepods/a:b\n1:name=systemd:/x\n";
        let folder = |text: &str| Groups::parse(text).unwrap().folder(root);
        assert_eq!(folder(v1), Some(root.join("rdma/kubepods/a:b")));
        assert_eq!(folder(&format!("{v1}0::/kubepods/a\n")), Some(root.join("rdma/kubepods/a:b")));
        assert_eq!(folder("8:misc,rdma:/a\n"), Some(root.join("rdma/a")));
        assert_eq!(folder("3:pids:/a\n0::/a\n"), Some(root.join("unified/a")));
        std::fs::write(root.join("cgroup.controllers"), "cpu rdma pids\n").unwrap();
        assert_eq!(folder("0::/a\n"), Some(root.join("a")));
        assert_eq!(folder("3:pids:/a\n"), None);
        // Another controller whose name has the same prefix does not count.
        assert_eq!(folder("3:rdmax:/a\n"), None);
    }

    #[test]
    fn lines_of_no_process_are_refused() {
        for wrong in ["x", "0:", "0::", "0::a", "0::/a/../b", "0::/..", "8:rdma:..", "8:rdma:/a\n9:rdma:/b", "0::/a\0b"]
        {
            assert!(Groups::parse(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(Groups::parse("").unwrap(), Groups::default());
        assert_eq!(Groups::parse("0::/a..b/..c\n").unwrap().unified.unwrap(), "/a..b/..c");
    }

    // SEMANTICS: D19
    #[test]
    fn a_machine_has_the_controller_in_v1_or_v2_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(Controller::find(root), None);
        std::fs::create_dir(root.join("unified")).unwrap();
        std::fs::write(root.join("unified/cgroup.controllers"), "hugetlb\n").unwrap();
        assert_eq!(Controller::find(root), None);
        std::fs::write(root.join("unified/cgroup.controllers"), "hugetlb rdma\n").unwrap();
        assert_eq!(Controller::find(root), Some(Controller::V2));
        std::fs::create_dir(root.join("rdma")).unwrap();
        assert_eq!(Controller::find(root), Some(Controller::V2), "nothing is mounted there");
        std::fs::write(root.join("rdma/cgroup.procs"), "").unwrap();
        assert_eq!(Controller::find(root), Some(Controller::V1));
        std::fs::write(root.join("cgroup.controllers"), "cpu rdma\n").unwrap();
        assert_eq!(Controller::find(root), Some(Controller::V2), "it is a cgroup that is called so");
    }

    #[test]
    fn pods_may_lack_a_controller_that_the_machine_has() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let write = |name: &str, controllers: &str| {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("cgroup.controllers"), controllers).unwrap();
        };
        write("", "cpu rdma\n");
        assert_eq!(Controller::missing_from(root), None, "the kubelet has made no cgroups yet");
        write("kubepods.slice", "cpu\n");
        assert_eq!(Controller::missing_from(root), Some(root.join("kubepods.slice")));
        write("kubepods.slice", "cpu rdma\n");
        assert_eq!(Controller::missing_from(root), None);
    }
}
