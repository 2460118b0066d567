//! The share of a node's CPUs that `larderd` has while the pods around it are busy, read from the kernel's tree of
//! cgroups. All folders are arguments, so that tests can pass any node.
//!
//! A CPU request is a weight among the cgroups of one parent. So the share is the product of the weights from the
//! kubelet's cgroup down to the pod, each divided by the weights beside it. Pods whose cores are not `larderd`'s (the
//! kubelet's static CPU manager gave them some of their own) take nothing from it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::finding::{Finding, Verdict};

const WHAT: &str = "CPU of larderd";

/// The CPUs that suffice for a node with GPUs, and on a small node the part of all.
const WANTED: f64 = 2.0;
const WANTED_PART: f64 = 1.0 / 8.0;

/// The kubelet's cgroup is at most this deep, and a pod's three levels below it.
const DEPTH_MOST: usize = 8;

/// Judges the `larderd` among the pods in `kubelet_dir`, by the cgroups mounted at `cgroups`.
pub(super) fn finding(kubelet_dir: &Path, cgroups: &Path) -> Finding {
    let tree = Tree::at(cgroups);
    let uids = pods_of_larderd(kubelet_dir);
    let Some(share) = tree.find(Path::new(""), &uids, DEPTH_MOST).and_then(|pod| tree.share(&pod)) else {
        let found = match uids.is_empty() {
            true => "larderd does not run on this node",
            false => "unknown: its cgroup is not visible here; run this on the node as root",
        };
        return Finding::ok(WHAT, found.to_owned());
    };
    judge(&share)
}

fn judge(Share { part, usable, cores }: &Share) -> Finding {
    let (usable, cores) = (*usable as f64, *cores as f64);
    let (cpus, wanted) = (part * usable, WANTED.min(cores * WANTED_PART));
    let (verdict, remedy) = if usable < wanted {
        (
            Verdict::Warn,
            "the static CPU manager has given the other cores to pods: leave whole cores to the shared pool by a \
             higher CPU request of larderd, or by --reserved-cpus of the kubelet",
        )
    } else if cpus < wanted {
        (
            Verdict::Warn,
            "raise the CPU request of larderd in the overlay: 1 CPU for 10,000 warm or 4,000 cold files per second, \
             and 2 on a node with GPUs",
        )
    } else {
        (Verdict::Ok, "")
    };
    let found = format!("{cpus:.1} of {cores} CPUs while all pods are busy, on the {usable} that it may use");
    Finding { what: WHAT, verdict, found, remedy }
}

/// The UIDs of pods with a container `larderd`: the kubelet has a folder for each container.
fn pods_of_larderd(kubelet_dir: &Path) -> Vec<String> {
    let pods = kubelet_dir.join("pods");
    names(&pods).into_iter().filter(|uid| pods.join(uid).join("containers/larderd").is_dir()).collect()
}

/// The share of a cgroup in the CPUs.
struct Share {
    /// Its part of the CPUs that it may use.
    part: f64,
    usable: usize,
    /// The CPUs of the node.
    cores: usize,
}

/// The mounted trees. They are one tree in version 2. In version 1 each controller has its own, with the same folders.
struct Tree {
    cpu: PathBuf,
    cpuset: PathBuf,
    /// The names of the files.
    weight: &'static str,
    cpus: &'static str,
}

impl Tree {
    fn at(root: &Path) -> Self {
        if root.join("cgroup.controllers").exists() {
            let (cpu, cpuset) = (root.to_owned(), root.to_owned());
            return Self { cpu, cpuset, weight: "cpu.weight", cpus: "cpuset.cpus.effective" };
        }
        let (cpu, cpuset) = (root.join("cpu"), root.join("cpuset"));
        Self { cpu, cpuset, weight: "cpu.shares", cpus: "cpuset.effective_cpus" }
    }

    /// The cgroup of a pod, below `group`: its name has the pod's UID, in which systemd has `_` for `-`.
    fn find(&self, group: &Path, uids: &[String], depth: usize) -> Option<PathBuf> {
        let names = names(&self.cpu.join(group));
        let is_pod = |name: &&String| {
            let name = name.replace('_', "-");
            uids.iter().any(|uid| name.contains(&format!("pod{uid}")))
        };
        if let Some(pod) = names.iter().find(is_pod) {
            return Some(group.join(pod));
        }
        let depth = depth.checked_sub(1)?;
        names.iter().find_map(|name| self.find(&group.join(name), uids, depth))
    }

    /// The share of a pod. None: the files say too little.
    fn share(&self, pod: &Path) -> Option<Share> {
        let cpus = self.cpus(&self.heaviest(pod))?;
        let mut part = 1.0;
        for group in pod.ancestors().take_while(|group| is_of_pods(group.parent())) {
            let parent = group.parent()?;
            let beside = names(&self.cpu.join(parent)).into_iter().map(|name| parent.join(name));
            let rivals = beside.filter(|other| other != group && self.meets(other, &cpus));
            let own = self.weight(group)? as f64;
            part *= own / (own + rivals.filter_map(|other| self.weight(&other)).sum::<u64>() as f64);
        }
        Some(Share { part, usable: cpus.len(), cores: self.cpus(Path::new(""))?.len() })
    }

    /// True if a cgroup's processes may run on some of these CPUs. The kubelet gives cores to containers and not to
    /// pods, and none to the container that holds a pod's namespaces, so the one with the greatest weight decides.
    fn meets(&self, group: &Path, cpus: &BTreeSet<u32>) -> bool {
        self.cpus(&self.heaviest(group)).is_none_or(|others| !others.is_disjoint(cpus))
    }

    /// The cgroup without others in it that is reached by the greatest weights.
    fn heaviest(&self, group: &Path) -> PathBuf {
        let below = names(&self.cpu.join(group)).into_iter().map(|name| group.join(name));
        match below.max_by_key(|child| self.weight(child)) {
            Some(child) => self.heaviest(&child),
            None => group.to_owned(),
        }
    }

    fn weight(&self, group: &Path) -> Option<u64> {
        std::fs::read_to_string(self.cpu.join(group).join(self.weight)).ok()?.trim().parse().ok()
    }

    /// The CPUs that a cgroup may use: its own, or those of the nearest cgroup around it that has a list.
    fn cpus(&self, group: &Path) -> Option<BTreeSet<u32>> {
        let list_of = |group: &Path| std::fs::read_to_string(self.cpuset.join(group).join(self.cpus)).ok();
        let list = group.ancestors().find_map(list_of)?;
        let ranges = list.trim().split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
        });
        Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

/// True if this is the kubelet's cgroup, which contains the pods', or one below it.
fn is_of_pods(group: Option<&Path>) -> bool {
    group.is_some_and(|group| group.to_string_lossy().contains("kubepods"))
}

/// The names of the folders in a folder, sorted; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests;
