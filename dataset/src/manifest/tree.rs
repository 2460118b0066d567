//! The folders of a manifest that is being built.

use std::collections::HashMap;

use super::built::{BuildError, limit};
use crate::name;

/// The folders in breadth-first order. The children of a folder are adjacent and sorted by name.
pub(super) struct FolderTree {
    pub(super) folders: Vec<Folder>,
    pub(super) index_of: HashMap<Vec<u8>, u32>,
}

pub(super) struct Folder {
    pub(super) name: Vec<u8>,
    pub(super) parent: u32,
    pub(super) first_dir: u32,
    pub(super) dir_count: u32,
}

impl FolderTree {
    /// Builds the tree from the folders in `parents` (sorted, with repeats), those in `markers`, and all their
    /// ancestors.
    pub(super) fn new<'a>(parents: impl Iterator<Item = &'a [u8]>, markers: &'a [Vec<u8>]) -> Result<Self, BuildError> {
        let mut levels: Vec<Vec<Vec<u8>>> = vec![vec![Vec::new()]];
        let mut index_of = HashMap::from([(Vec::new(), 0_u32)]);
        let mut last: &[u8] = &[];
        // Parents arrive sorted, so most repeats are adjacent.
        for path in parents.chain(markers.iter().map(Vec::as_slice)) {
            if path == last {
                continue;
            }
            last = path;
            let mut path = path;
            while !path.is_empty() && !index_of.contains_key(path) {
                index_of.insert(path.to_vec(), u32::MAX);
                let depth = path.iter().filter(|&&byte| byte == b'/').count() + 1;
                if levels.len() <= depth {
                    levels.resize_with(depth + 1, Vec::new);
                }
                levels[depth].push(path.to_vec());
                path = name::split(path).0;
            }
        }
        limit("folders", index_of.len() as u64)?;
        let mut folders: Vec<Folder> = Vec::with_capacity(index_of.len());
        for level in &mut levels {
            level.sort_unstable_by(|a, b| {
                let ((a_parent, a_name), (b_parent, b_name)) = (name::split(a), name::split(b));
                (index_of[a_parent], a_name).cmp(&(index_of[b_parent], b_name))
            });
            for path in level.drain(..) {
                let index = folders.len() as u32;
                let (parent, name) = name::split(&path);
                let parent = index_of[parent];
                if index > 0 {
                    let above = &mut folders[parent as usize];
                    if above.dir_count == 0 {
                        above.first_dir = index;
                    }
                    above.dir_count += 1;
                }
                folders.push(Folder { name: name.to_vec(), parent, first_dir: 0, dir_count: 0 });
                index_of.insert(path, index);
            }
        }
        // The first_dir of a folder without children is the row that its first child would have, so that first_dir
        // never decreases.
        let mut next = 1;
        for folder in &mut folders {
            folder.first_dir = next;
            next += folder.dir_count;
        }
        Ok(Self { folders, index_of })
    }
}
