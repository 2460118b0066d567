//! The mount that contains a folder.

use std::path::Path;

use larder_daemon_api::mountinfo::{MountEntry, parse};

/// The mount that contains a folder: the deepest mount above it. Of two mounts at the same point, the later one counts,
/// because it covers the other.
pub(super) fn mount_of(mountinfo: &str, folder: &Path) -> Option<MountEntry> {
    let mounts = parse(mountinfo.as_bytes()).into_iter().filter(|mount| folder.starts_with(&mount.path));
    mounts.max_by_key(|mount| mount.path.as_os_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
60 27 0:50 / /var/lib rw - overlay overlay rw
61 60 0:51 / /var/lib/kube\\040let rw,relatime master:7 shared:9 - xfs /dev/vdb rw
62 60 0:52 / /srv rw shared:3 - tmpfs tmpfs rw
63 60 0:53 / /srv rw - nfs4 far:/ rw
a line that is none";

    fn kind_and_sharing(folder: &str) -> (String, bool) {
        let mount = mount_of(MOUNTS, Path::new(folder)).unwrap();
        (mount.fs_type, mount.shared)
    }

    #[test]
    fn a_directory_belongs_to_the_deepest_and_last_mount_above_it() {
        assert_eq!(kind_and_sharing("/home"), ("ext4".to_owned(), true));
        assert_eq!(kind_and_sharing("/var/lib/larder"), ("overlay".to_owned(), false));
        assert_eq!(kind_and_sharing("/var/lib/kube let/pods"), ("xfs".to_owned(), true));
        assert_eq!(kind_and_sharing("/srv"), ("nfs4".to_owned(), false), "the later covers the earlier");
        assert_eq!(kind_and_sharing("/srvx"), ("ext4".to_owned(), true), "a name that begins alike is another folder");
        assert!(mount_of("", Path::new("/")).is_none());
    }
}
