//! Installs this program into a folder, under the names that the containers of a job call.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("install into {folder}: {source}")]
pub(crate) struct InstallError {
    folder: PathBuf,
    source: std::io::Error,
}

/// Copies this program to `agent`, and links `rsh` and `ssh` to it. Each name is replaced atomically, so installing
/// again is safe while the old programs run.
pub(crate) fn install(folder: &Path) -> Result<(), InstallError> {
    let steps = || {
        let begun = folder.join(".agent");
        // An earlier installation was killed and left this file.
        if begun.exists() {
            std::fs::remove_file(&begun)?;
        }
        std::fs::copy("/proc/self/exe", &begun)?;
        // Executable by every user, because containers run as any user.
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
