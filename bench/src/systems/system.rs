//! A filesystem as the benchmarks see it.

use std::path::PathBuf;

use super::corpus::Corpus;

/// The role of a system in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Not a filesystem over S3, but an upper bound for one: the disk, or S3 itself.
    Floor,
    Larder,
    /// A peer started as its documentation recommends.
    Shipped,
    /// A peer with the settings that its documentation gives for data that never changes.
    Tuned,
}

/// One filesystem, with one set of options.
pub trait System {
    /// The name in tables and for `--only`.
    fn name(&self) -> &str;

    /// The system's role in the comparison.
    fn kind(&self) -> Kind;

    /// The version that its program reports; empty if it has no program.
    fn version(&self) -> String;

    /// How the system is set up, as a sentence for the table.
    fn options(&self) -> &str;

    /// Does the untimed work before the first mount, once: import, pack, or copy the data in.
    fn prepare(&mut self, corpus: &Corpus) -> anyhow::Result<()>;

    /// Mounts with an empty local cache and returns the folder that holds the files. Returns once the kernel shows the
    /// mount.
    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf>;

    /// The ids of the processes that serve the mount: daemons, and a metadata engine if there is one.
    fn processes(&self) -> Vec<u32>;

    /// Unmounts, ends the daemon and removes the cache. Does nothing if the system is not mounted.
    fn unmount(&mut self) -> anyhow::Result<()>;
}

/// Any of the systems.
pub type AnySystem = Box<dyn System>;
