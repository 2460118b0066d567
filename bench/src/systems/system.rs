//! A filesystem as the benchmarks see it.

use std::path::PathBuf;

use super::corpus::Corpus;

/// The role of a system in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Not a filesystem over S3, but a bound of one: the disk, or S3 itself.
    Floor,
    /// Larder.
    Larder,
    /// A peer started as its documentation recommends.
    Shipped,
    /// A peer with the settings that its documentation gives for data that never changes.
    Tuned,
}

/// One filesystem, with one set of options.
pub trait System {
    /// Its name in tables, and for `--only`.
    fn name(&self) -> &str;

    /// Its role in the comparison.
    fn kind(&self) -> Kind;

    /// The version that its program reports; empty if it has no program.
    fn version(&self) -> String;

    /// How it is set up, in words.
    fn options(&self) -> &str;

    /// Runs once and is not timed: import, pack, copy the data in.
    fn prepare(&mut self, corpus: &Corpus) -> anyhow::Result<()>;

    /// Mounts with an empty local cache and returns the folder that holds the files. Returns once the kernel shows the
    /// mount.
    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf>;

    /// The processes that serve it now: daemons, and a metadata engine if it has one.
    fn processes(&self) -> Vec<u32>;

    /// Unmounts, ends the daemon and removes the cache. Does nothing if it is not mounted.
    fn unmount(&mut self) -> anyhow::Result<()>;
}

/// Any of the systems.
pub type AnySystem = Box<dyn System>;
