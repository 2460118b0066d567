//! How many RDMA objects pods have now, as the kernel counts them in the cgroups of their containers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_rdma_limit::Controller;
use tokio::sync::watch;
use tracing::warn;

use crate::nri::Containers;

/// The longest text that is read of a cgroup.
const BYTES_MOST: u64 = 1 << 16;

/// The kinds of objects that the kernel counts.
const OBJECTS: [&str; 2] = ["hca_handle", "hca_object"];

/// What a count is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Of {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The kernel's name of the HCA.
    pub hca: String,
    /// One of the two kinds of objects.
    pub object: &'static str,
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The containers with HCAs.
    pub containers: watch::Receiver<Arc<Containers>>,
    /// The folder that the host's cgroups are mounted in, as this process sees it.
    pub cgroup_root: PathBuf,
}

impl Usage {
    /// Reads what the pods have now.
    pub async fn read(&self) -> BTreeMap<Of, u64> {
        let (containers, root) = (Arc::clone(&self.containers.borrow()), self.cgroup_root.clone());
        let read = tokio::task::spawn_blocking(move || read(&containers, &root)).await;
        read.inspect_err(|error| warn!(%error, "the RDMA objects of pods cannot be read")).unwrap_or_default()
    }
}

/// What the containers have of their own HCAs, by pod. Those that have ended have no cgroup.
fn read(containers: &Containers, root: &Path) -> BTreeMap<Of, u64> {
    let mut counts = BTreeMap::new();
    let Some(controller) = Controller::find(root) else { return counts };
    for held in containers.values() {
        let Some(group) = group(&held.cgroups_path) else { continue };
        let mut text = String::new();
        let opened = File::open(controller.folder(root, &group).join("rdma.current"));
        if opened.and_then(|file| file.take(BYTES_MOST).read_to_string(&mut text)).is_err() {
            continue;
        }
        for (hca, object, count) in text.lines().flat_map(counts_of) {
            if held.hcas.iter().any(|own| own == hca) {
                let (namespace, pod) = (held.namespace.clone(), held.pod.clone());
                *counts.entry(Of { namespace, pod, hca: hca.to_owned(), object }).or_default() += count;
            }
        }
    }
    counts
}

/// The counts of a line such as `mlx5_2 hca_handle=2 hca_object=2000`.
fn counts_of(line: &str) -> impl Iterator<Item = (&str, &'static str, u64)> {
    let mut words = line.split_ascii_whitespace();
    let hca = words.next().unwrap_or_default();
    words.filter_map(move |word| {
        let (name, count) = word.split_once('=')?;
        let object = OBJECTS.into_iter().find(|object| *object == name)?;
        Some((hca, object, count.parse().ok()?))
    })
}

/// The path of a container's cgroup from the top of the hierarchy: as it is, or `SLICE:PREFIX:NAME` of systemd, whose slices are
/// nested by the dashes in their names. `None` if it is neither.
fn group(path: &str) -> Option<String> {
    let path = match path.split(':').collect::<Vec<_>>()[..] {
        [slice, prefix, name] if !path.starts_with('/') => {
            let slices = slice.strip_suffix(".slice")?;
            let nested = slices.match_indices('-').map(|(end, _)| &slices[..end]).chain([slices]);
            let folders: String = nested.map(|slice| format!("/{slice}.slice")).collect();
            format!("{folders}/{prefix}-{name}.scope")
        }
        _ => path.to_owned(),
    };
    (path.starts_with('/') && path.split('/').all(|part| part != "..")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nri::{Held, Key};

    /// Containers of the pod a/b with these HCAs, by the paths of their cgroups.
    fn containers(of: &[(&str, &[&str])]) -> Containers {
        let container = |(nth, (path, hcas)): (usize, &(&str, &[&str]))| {
            let held = Held {
                id: nth.to_string(),
                namespace: "a".to_owned(),
                pod: "b".to_owned(),
                cgroups_path: (*path).to_owned(),
                hcas: hcas.iter().map(|hca| (*hca).to_owned()).collect(),
            };
            (Key { pod_uid: "u".to_owned(), container: nth.to_string() }, held)
        };
        of.iter().enumerate().map(container).collect()
    }

    fn write(path: PathBuf, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_pod_has_what_its_containers_have_of_their_hcas() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let all = containers(&[
            ("/pods/1", &["mlx5_0", "mlx5_1"]),
            ("pods-b.slice:cri:2", &["mlx5_0"]),
            ("/pods/ended", &["mlx5_0"]),
            ("/../1", &["mlx5_0"]),
        ]);
        let one = "mlx5_0 hca_handle=1 hca_object=20\nmlx5_1 hca_handle=0 hca_object=max\nmlx5_2 hca_handle=9\n";
        let two = "mlx5_0 hca_handle=2 hca_object=5 other=7\n\nmlx5_0\n";
        let read = || {
            let counted = read(&all, root).into_iter();
            counted
                .map(|(of, count)| format!("{}/{} {} {} {count}", of.namespace, of.pod, of.hca, of.object))
                .collect::<Vec<_>>()
        };
        for mount in ["rdma", "."] {
            write(root.join(mount).join("pods/1/rdma.current"), one);
            write(root.join(mount).join("pods.slice/pods-b.slice/cri-2.scope/rdma.current"), two);
        }
        assert_eq!(read(), Vec::<String>::new(), "there is no controller");
        let counted = ["a/b mlx5_0 hca_handle 3", "a/b mlx5_0 hca_object 25", "a/b mlx5_1 hca_handle 0"];
        write(root.join("rdma/cgroup.procs"), "");
        assert_eq!(read(), counted, "cgroup v1");
        std::fs::remove_dir_all(root.join("rdma")).unwrap();
        write(root.join("cgroup.controllers"), "rdma\n");
        assert_eq!(read(), counted, "cgroup v2");
    }

    #[test]
    fn cgroups_are_named_by_paths_or_by_systemds_slices() {
        let cases = [
            ("/kubepods/burstable/podX/c1", Some("/kubepods/burstable/podX/c1")),
            ("/with:two:colons", Some("/with:two:colons")),
            ("kubepods.slice:cri:c1", Some("/kubepods.slice/cri-c1.scope")),
            (
                "kubepods-burstable-pod1_2.slice:cri-containerd:c1",
                Some(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-c1.scope",
                ),
            ),
            ("/a/../b", None),
            ("../x.slice:cri:c1", None),
            ("", None),
            ("relative", None),
        ];
        for (path, wanted) in cases {
            assert_eq!(group(path).as_deref(), wanted, "{path}");
        }
    }
}
