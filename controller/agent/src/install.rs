//! Puts this program into a folder, under the names by which the containers of a job call it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("install into {folder}: {source}")]
pub(crate) struct InstallError {
    folder: PathBuf,
    source: std::io::Error,
}

/// Copies this program to `agent`, and links `rsh` and `ssh` to it. Each name is there complete or not at all, and installing
/// again replaces them, also while they run.
pub(crate) fn install(folder: &Path) -> Result<(), InstallError> {
    let steps = || {
        let begun = folder.join(".agent");
        // Left by one that was killed.
        if begun.exists() {
            std::fs::remove_file(&begun)?;
        }
        std::fs::copy("/proc/self/exe", &begun)?;
        // Whoever the containers run as.
        std::fs::set_permissions(&begun, Permissions::from_mode(0o555))?;
        std::fs::rename(&begun, folder.join("agent"))?;
        for name in ["rsh", "ssh"] {
            std::fs::hard_link(folder.join("agent"), &begun)?;
            std::fs::rename(&begun, folder.join(name))?;
        }
        Ok(())
    };
    steps().map_err(|source| InstallError { folder: folder.to_owned(), source })
}
