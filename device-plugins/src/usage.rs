//! How many RDMA objects pods have now, as the kernel counts them in the cgroups of their containers.

mod cgroup;

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
        read.inspect_err(|error| warn!(%error, "cannot read the RDMA objects of pods")).unwrap_or_default()
    }
}

/// What the containers have of their own HCAs, by pod. Those that have ended have no cgroup.
fn read(containers: &Containers, root: &Path) -> BTreeMap<Of, u64> {
    let mut counts = BTreeMap::new();
    let Some(controller) = Controller::find(root) else { return counts };
    for held in containers.values() {
        let Some(group) = cgroup::path(&held.cgroups_path) else { continue };
        let mut text = String::new();
        let opened = File::open(controller.folder(root, &group).join("rdma.current"));
        if opened.and_then(|file| file.take(BYTES_MOST).read_to_string(&mut text)).is_err() {
            continue;
        }
        for (hca, object, count) in text.lines().flat_map(cgroup::counts) {
            if held.hcas.iter().any(|own| own == hca) {
                let (namespace, pod) = (held.namespace.clone(), held.pod.clone());
                *counts.entry(Of { namespace, pod, hca: hca.to_owned(), object }).or_default() += count;
            }
        }
    }
    counts
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

    // SEMANTICS: D24
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
        let one = include_str!("../golden/current.node");
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
}
