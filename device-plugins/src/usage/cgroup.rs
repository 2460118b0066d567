//! What the runtime and the kernel write about a container's cgroup: its path, and the file `rdma.current`.

use larder_dataset::name::PATH_MAX;

/// The kinds of objects that the kernel counts.
const OBJECTS: [&str; 2] = ["hca_handle", "hca_object"];

/// The counts of a line such as `mlx5_2 hca_handle=2 hca_object=2000`.
pub(super) fn counts(line: &str) -> impl Iterator<Item = (&str, &'static str, u64)> {
    let mut words = line.split_ascii_whitespace();
    let hca = words.next().unwrap_or_default();
    words.filter_map(move |word| {
        let (name, count) = word.split_once('=')?;
        let object = OBJECTS.into_iter().find(|object| *object == name)?;
        Some((hca, object, count.parse().ok()?))
    })
}

/// The path of a container's cgroup from the top of the hierarchy: as it is, or `SLICE:PREFIX:NAME` of systemd, whose
/// slices are nested by the dashes in their names. `None` if it is neither, or longer than a path may be.
pub(super) fn path(name: &str) -> Option<String> {
    if name.len() > PATH_MAX {
        return None;
    }
    let path = match name.split(':').collect::<Vec<_>>()[..] {
        [slice, prefix, container] if !name.starts_with('/') => {
            let slices = slice.strip_suffix(".slice")?;
            let nested = slices.match_indices('-').map(|(end, _)| &slices[..end]).chain([slices]);
            let folders: String = nested.map(|slice| format!("/{slice}.slice")).collect();
            format!("{folders}/{prefix}-{container}.scope")
        }
        _ => name.to_owned(),
    };
    (path.starts_with('/') && path.split('/').all(|part| part != "..")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (&format!("{}.slice:cri:c1", "-".repeat(PATH_MAX)), None),
        ];
        for (name, wanted) in cases {
            assert_eq!(path(name).as_deref(), wanted, "{name}");
        }
    }
}
