//! Inode numbers: 1 is the root, followed by the folders, the files and the symbolic links, each in row order. The
//! numbering needs no table and no FORGET. A new daemon understands the numbers that an earlier one assigned.

use larder_dataset::{DirIndex, Entry, FileIndex, LinkIndex, Totals};

/// The root folder.
pub(crate) const ROOT: u64 = 1;

/// The first number that does not stand for a row of the manifest.
const ABOUT_BASE: u64 = 1 << 62;

/// The files that describe the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// `.larder`
    Folder,
    /// `.larder/stats.json`
    Stats,
    /// `.larder/manifest.json`
    Manifest,
}

impl About {
    /// The files in the folder `.larder`, with their names.
    pub(crate) const FILES: [(Self, &'static str); 2] =
        [(Self::Manifest, "manifest.json"), (Self::Stats, "stats.json")];
}

/// The object that an inode number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A row of the manifest.
    Row(Entry),
    /// One of the mount's own files.
    About(About),
}

/// The inode numbers of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inodes {
    dirs: u32,
    files: u32,
    links: u32,
}

impl Inodes {
    /// The numbering of a snapshot with these counts.
    pub(crate) const fn new(totals: Totals) -> Self {
        Self { dirs: totals.dirs, files: totals.files, links: totals.links }
    }

    /// The number of a node.
    pub(crate) const fn number(&self, node: Node) -> u64 {
        match node {
            Node::Row(Entry::Dir(DirIndex(dir))) => ROOT + dir as u64,
            Node::Row(Entry::File(FileIndex(file))) => ROOT + self.dirs as u64 + file as u64,
            Node::Row(Entry::Link(LinkIndex(link))) => ROOT + self.dirs as u64 + self.files as u64 + link as u64,
            Node::About(about) => ABOUT_BASE + about as u64,
        }
    }

    /// The node with this inode number; `None` if there is none.
    pub(crate) fn node(&self, number: u64) -> Option<Node> {
        if number >= ABOUT_BASE {
            return [About::Folder, About::Stats, About::Manifest]
                .into_iter()
                .map(Node::About)
                .find(|&node| self.number(node) == number);
        }
        let row = number.checked_sub(ROOT)?;
        let (files, links) = (u64::from(self.dirs), u64::from(self.dirs) + u64::from(self.files));
        let end = links + u64::from(self.links);
        let entry = match row {
            row if row < files => Entry::Dir(DirIndex(row as u32)),
            row if row < links => Entry::File(FileIndex((row - files) as u32)),
            row if row < end => Entry::Link(LinkIndex((row - links) as u32)),
            _ => return None,
        };
        Some(Node::Row(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_nodes_are_one_to_one() {
        let inodes = Inodes { dirs: 3, files: 2, links: 2 };
        for number in 1..=7 {
            assert_eq!(inodes.number(inodes.node(number).unwrap()), number);
        }
        assert_eq!(inodes.node(1), Some(Node::Row(Entry::Dir(DirIndex(0)))));
        assert_eq!(inodes.node(4), Some(Node::Row(Entry::File(FileIndex(0)))));
        assert_eq!(inodes.node(6), Some(Node::Row(Entry::Link(LinkIndex(0)))));
        for number in [0, 8, u64::MAX, ABOUT_BASE + 3, ABOUT_BASE - 1] {
            assert_eq!(inodes.node(number), None, "{number}");
        }
        let stats = Node::About(About::Stats);
        assert_eq!(inodes.node(inodes.number(stats)), Some(stats));
    }
}
