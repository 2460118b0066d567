//! [`MemoryCgroup`]: a limit on the memory of a program.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup whose processes may have so much memory together. Dropping it removes it; its processes must have ended.
#[derive(Debug)]
pub struct MemoryCgroup {
    dir: PathBuf,
    files: Files,
}

/// The names of a version's files.
#[derive(Clone, Copy, Debug)]
struct Files {
    limit: &'static str,
    /// Has a line with the number of processes that were killed for their memory.
    kills: &'static str,
}

const VERSION_1: Files = Files { limit: "memory.limit_in_bytes", kills: "memory.oom_control" };
const VERSION_2: Files = Files { limit: "memory.max", kills: "memory.events" };

impl MemoryCgroup {
    /// A new one. `None` if there is no memory controller, or this user may not use it.
    pub fn new(limit_bytes: u64) -> Option<Self> {
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
        // A line is number:controllers:path; version 2 has an empty list of controllers.
        let path_of = |controller| {
            let mut lines = cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(":/"));
            lines.find(|(controllers, _)| controllers.split(',').any(|one| one == controller)).map(|(_, path)| path)
        };
        let (root, own, files) = match path_of("memory") {
            Some(path) => ("/sys/fs/cgroup/memory", path, VERSION_1),
            None => ("/sys/fs/cgroup", path_of("")?, VERSION_2),
        };
        let root = Path::new(root);
        // A cgroup of version 2 that has processes has no limited children, but the root may have some.
        [root.join(own), root.to_owned()].into_iter().find_map(|parent| {
            let dir = parent.join(format!("larder-memory-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            // From here on, dropping it removes the folder.
            let limited = Self { dir, files };
            // Elsewhere it is an ordinary folder.
            limited.processes().exists().then_some(())?;
            fs::write(limited.dir.join(files.limit), limit_bytes.to_string()).ok()?;
            Some(limited)
        })
    }

    /// A process that writes its number into this file is in the cgroup.
    pub fn processes(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// How many of its processes the kernel has killed because they needed more.
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.files.kills)).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.unwrap_or_else(|| panic!("no count of kills: {text}")).trim().parse().unwrap()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}
