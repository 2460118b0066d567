//! The filesystems that are measured side by side: Larder, the disk itself, and those of Larder's peers that are
//! installed.
//!
//! The cast: [`Corpus`] is the data, as files and as the same objects in an S3 server; a [`System`] serves it through a
//! folder; [`all`] finds the systems of this machine. [`child`] runs their daemons, [`mounts`] waits for their mounts
//! and removes them.
//!
//! Invariant: when a system is dropped, its processes have ended and its mount is detached. Both end with this process
//! even if it is killed. Keys of the S3 server reach a daemon in its environment or in a private file, never in an
//! argument.

pub mod child;
pub mod mounts;

mod corpus;
mod folder;
mod juicefs;
mod larder;
mod mountpoint;
mod programs;
mod rclone;
mod s3fs;
mod served;
mod stop;
mod system;

use std::path::{Path, PathBuf};

pub(crate) use corpus::TREE;
pub use corpus::{Corpus, CorpusOptions};
pub use programs::find_program;
pub(crate) use programs::find_python;
pub use stop::Stop;
pub use system::{AnySystem, Kind, System};

/// The systems that this machine can run, and those that it cannot.
#[derive(Default)]
pub struct Found {
    /// The installed systems, floors and Larder first.
    pub systems: Vec<AnySystem>,
    /// The name of each system that cannot run, with the reason.
    pub missing: Vec<(String, String)>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.systems.iter().map(|system| system.name()).collect();
        f.debug_struct("Found").field("systems", &names).field("missing", &self.missing).finish()
    }
}

/// Larder over plain objects, which `larder mount` mounts with these flags.
pub fn larder_with_flags(binary: &Path, flags: Vec<String>) -> AnySystem {
    larder::with_flags(binary, flags)
}

/// Finds every system. `binary` is the command `larder`. Peers are searched for on `PATH` and in the folder of
/// `bench/install-peers`.
pub fn all(binary: &Path) -> Found {
    let mut found = Found::default();
    found.systems.push(Box::new(folder::Folder));
    found.systems.extend(larder::both(binary));
    let mut add = |names: &[&str], needs: &[&str], make: fn(&[PathBuf]) -> Vec<AnySystem>| {
        let programs: Result<Vec<PathBuf>, &str> =
            needs.iter().map(|&program| find_program(program).ok_or(program)).collect();
        match programs {
            Ok(programs) => found.systems.extend(make(&programs)),
            Err(program) => {
                let why = format!(
                    "no {program} on PATH (bench/install-peers installs the peers that package registries have)"
                );
                found.missing.extend(names.iter().map(|&name| (name.to_owned(), why.clone())));
            }
        }
    };
    add(&juicefs::NAMES, &["juicefs", "redis-server"], |programs| juicefs::both(&programs[0], &programs[1]));
    add(&[mountpoint::NAME], &["mount-s3"], |programs| vec![mountpoint::new(&programs[0])]);
    add(&rclone::NAMES, &["rclone"], |programs| rclone::both(&programs[0]));
    add(&[s3fs::NAME], &["s3fs"], |programs| vec![s3fs::new(&programs[0])]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_listed_once_whether_installed_or_not() {
        let found = all(Path::new("/nonexistent/larder"));
        let mut names: Vec<String> = found.systems.iter().map(|system| system.name().to_owned()).collect();
        names.extend(found.missing.iter().map(|(name, _)| name.clone()));
        names.sort();
        let expected = [
            "ext4",
            "juicefs",
            "juicefs tuned",
            "larder",
            "larder packed",
            "mountpoint-s3",
            "rclone",
            "rclone tuned",
            "s3fs",
        ];
        assert_eq!(names, expected);
    }
}
