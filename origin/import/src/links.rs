//! The symbolic links of a listing, followed within it.
//!
//! - [`Links`] collects the links of all pages.
//! - [`Links::follow`] follows each link by the names of the other links alone, to a path without links.
//! - [`Ends`] sees the folders and files of a manifest in the order of their rows, which shows which of these paths
//!   exist.
//!
//! Invariant: no link is followed at the origin. A link leads to a file or folder of the same listing, or is left out
//! with the reason. The result does not depend on the order in which links arrive. Memory is bounded.

use std::cmp::Ordering;

use larder_dataset::LinkTarget;
use larder_dataset::manifest::BuildError;
use larder_dataset::name::{self, PATH_MAX};

/// The most links on the way of one link, as in Linux.
const HOPS_MOST: usize = 40;
/// The most parts of paths on the way of one link, so that hostile links do not delay an import.
const PARTS_MOST: usize = 512;
/// The most memory for all links of a listing.
const BYTES_MOST: usize = 128 << 20;
/// The memory for a link beyond its name and its target.
const LINK_BYTES: usize = 200;

/// Why a link is left out.
const NO_PATH: &str = "a symbolic link that contains no path";
const OUTSIDE: &str = "a symbolic link out of the dataset";
const CIRCLE: &str = "a symbolic link in a circle, or through more than 40 others";
const NOWHERE: &str = "a symbolic link to nothing in the dataset";
const TAKEN: &str = "a symbolic link with the name of a file or folder";
/// The reason for all links of a listing that has too many.
pub(crate) const TOO_MANY: &str = "a symbolic link, of which the dataset has too many (more than 128 MiB)";

/// A link as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    path: Vec<u8>,
    target: Vec<u8>,
    mtime_ns: i64,
}

/// Collects the links of a listing.
#[derive(Debug, Default)]
pub(crate) struct Links {
    listed: Vec<Listed>,
    bytes: usize,
}

impl Links {
    /// Adds a link under a clean path. False if there are too many: then no link of the listing is followed.
    pub(crate) fn push(&mut self, path: &[u8], target: &[u8], mtime_ns: i64) -> bool {
        self.bytes = self.bytes.saturating_add(path.len() + target.len() + LINK_BYTES);
        let is_kept = self.bytes <= BYTES_MOST;
        if is_kept {
            self.listed.push(Listed { path: path.to_vec(), target: target.to_vec(), mtime_ns });
        }
        is_kept
    }

    /// Follows all links. Errors: `ChangedWhileListed` if one path was listed with two targets.
    pub(crate) fn follow(self) -> Result<Ends, BuildError> {
        let Self { mut listed, bytes } = self;
        listed.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        listed.dedup();
        if let Some(pair) = listed.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(BuildError::ChangedWhileListed { path: pair[0].path.escape_ascii().to_string() });
        }
        let end = |link| if bytes <= BYTES_MOST { end_of(&listed, link) } else { Err(TOO_MANY) };
        let ends: Vec<_> = listed.iter().map(end).collect();
        let links: Vec<_> = listed.into_iter().zip(ends).map(|(link, end)| Followed::new(link, end)).collect();
        let mut looks: Vec<Look> = Vec::new();
        for (nth, link) in (0..).zip(&links) {
            if let Ok(end) = &link.end {
                let kinds = [Kind::Folder, Kind::FileOfName, Kind::FolderOfName, Kind::FileAtEnd, Kind::FolderAtEnd];
                let kinds = kinds.into_iter().filter(|kind| *kind != Kind::FileAtEnd || !end.is_empty());
                looks.extend(kinds.map(|kind| Look { link: nth, kind }));
            }
        }
        looks.sort_unstable_by(|a, b| in_order(place_of(&links, *a), place_of(&links, *b)));
        Ok(Ends { links, looks, next: 0 })
    }
}

/// The path without links that a link leads to. `links` are all links, sorted by their paths.
fn end_of(links: &[Listed], link: &Listed) -> Result<Vec<u8>, &'static str> {
    let mut at = name::split(&link.path).0.to_vec();
    // The parts that remain, in reverse order.
    let mut ahead: Vec<&[u8]> = Vec::new();
    let mut entered = Some(link);
    let (mut hops, mut parts) = (0, 0);
    loop {
        if let Some(link) = entered.take() {
            hops += 1;
            match link.target.first() {
                None => return Err(NO_PATH),
                Some(b'/') => return Err(OUTSIDE),
                Some(_) if link.target.contains(&0) || link.target.len() > PATH_MAX => return Err(NO_PATH),
                Some(_) if hops > HOPS_MOST => return Err(CIRCLE),
                Some(_) => ahead.extend(link.target.rsplit(|&byte| byte == b'/')),
            }
        }
        let Some(part) = ahead.pop() else { return Ok(at) };
        parts += 1;
        if parts > PARTS_MOST {
            return Err(CIRCLE);
        }
        let folder_len = at.len();
        match part {
            b"" | b"." => {}
            b".." if at.is_empty() => return Err(OUTSIDE),
            b".." => at.truncate(name::split(&at).0.len()),
            part => {
                if folder_len > 0 {
                    at.push(b'/');
                }
                at.extend_from_slice(part);
                if at.len() > PATH_MAX {
                    return Err(NOWHERE);
                }
                if let Ok(found) = links.binary_search_by(|other| other.path.as_slice().cmp(&at)) {
                    at.truncate(folder_len);
                    entered = Some(&links[found]);
                }
            }
        }
    }
}

/// A link that was followed, and what the rows of the manifest show about it.
#[derive(Debug)]
struct Followed {
    path: Vec<u8>,
    mtime_ns: i64,
    end: Result<Vec<u8>, &'static str>,
    folder: Option<u32>,
    target: Option<LinkTarget>,
    is_taken: bool,
}

impl Followed {
    fn new(link: Listed, end: Result<Vec<u8>, &'static str>) -> Self {
        let Listed { path, mtime_ns, .. } = link;
        Self { path, mtime_ns, end, folder: None, target: None, is_taken: false }
    }

    fn reason(&self) -> Option<&'static str> {
        match &self.end {
            Err(reason) => Some(reason),
            Ok(_) if self.is_taken => Some(TAKEN),
            Ok(_) if self.target.is_none() => Some(NOWHERE),
            Ok(_) => None,
        }
    }
}

/// A folder or file that concerns a link if it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The link's own folder.
    Folder,
    /// A file with the link's path.
    FileOfName,
    /// A folder with the link's path.
    FolderOfName,
    /// A file at the link's end.
    FileAtEnd,
    /// A folder at the link's end.
    FolderAtEnd,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    link: u32,
    kind: Kind,
}

/// A place in the order of a manifest's folders and files: the number of folders above a file, or including a folder
/// itself, and the path.
type Place<'a> = (usize, &'a [u8]);

fn place_of(links: &[Followed], look: Look) -> Place<'_> {
    let Followed { path, end, .. } = &links[look.link as usize];
    let path = match look.kind {
        Kind::Folder => name::split(path).0,
        Kind::FileOfName | Kind::FolderOfName => path,
        Kind::FileAtEnd | Kind::FolderAtEnd => end.as_deref().unwrap_or_default(),
    };
    let slashes = path.iter().filter(|&&byte| byte == b'/').count();
    match look.kind {
        Kind::FileOfName | Kind::FileAtEnd => (slashes, path),
        Kind::Folder | Kind::FolderOfName | Kind::FolderAtEnd => (slashes + usize::from(!path.is_empty()), path),
    }
}

/// The order of a manifest's rows: by depth, then by parts. The separator is `/` or, as in a sort key, 0.
fn in_order(a: Place<'_>, b: Place<'_>) -> Ordering {
    a.0.cmp(&b.0).then_with(|| bytes_of(a.1).cmp(bytes_of(b.1)))
}

fn bytes_of(path: &[u8]) -> impl Iterator<Item = u8> {
    path.iter().map(|&byte| if byte == b'/' { 0 } else { byte })
}

/// A link of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptLink {
    pub(crate) path: Vec<u8>,
    pub(crate) mtime_ns: i64,
    /// The row of the link's folder.
    pub(crate) folder: u32,
    pub(crate) target: LinkTarget,
}

impl KeptLink {
    /// The link's name without its folder.
    pub(crate) fn name(&self) -> &[u8] {
        name::split(&self.path).1
    }
}

/// The ends of all links, of which it is not known yet whether they exist.
#[derive(Debug)]
pub(crate) struct Ends {
    links: Vec<Followed>,
    looks: Vec<Look>,
    next: usize,
}

impl Ends {
    /// Takes note of a row. Rows come in the order of the manifest: each folder before its files. `depth` is the number
    /// of folders above a file, or including a folder itself.
    pub(crate) fn see(&mut self, depth: u16, path: &[u8], row: LinkTarget) {
        while let Some(&look) = self.looks.get(self.next) {
            match in_order(place_of(&self.links, look), (usize::from(depth), path)) {
                Ordering::Greater => break,
                Ordering::Less => {}
                Ordering::Equal => {
                    let link = &mut self.links[look.link as usize];
                    match (look.kind, row) {
                        (Kind::Folder, LinkTarget::Dir(folder)) => link.folder = Some(folder.0),
                        (Kind::FileOfName | Kind::FolderOfName, _) => link.is_taken = true,
                        (Kind::FileAtEnd | Kind::FolderAtEnd, _) => link.target = Some(row),
                        // A file has another place than every folder.
                        (Kind::Folder, LinkTarget::File(_)) => {}
                    }
                }
            }
            self.next += 1;
        }
    }

    /// The links of the manifest, in the order of their rows. Passes the others to `left_out`, with the reasons.
    pub(crate) fn finish(self, mut left_out: impl FnMut(Vec<u8>, &'static str)) -> Vec<KeptLink> {
        let mut kept = Vec::new();
        for link in self.links {
            let reason = link.reason();
            let Followed { path, mtime_ns, folder, target, .. } = link;
            match (reason, folder, target) {
                (None, Some(folder), Some(target)) => kept.push(KeptLink { path, mtime_ns, folder, target }),
                (reason, ..) => left_out(path, reason.unwrap_or(NOWHERE)),
            }
        }
        kept.sort_unstable_by(|a, b| (a.folder, a.name()).cmp(&(b.folder, b.name())));
        kept
    }
}

#[cfg(test)]
mod tests;
