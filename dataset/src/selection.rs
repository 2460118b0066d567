//! Selects files of a snapshot by the lines of a list: paths, folders and patterns.
//!
//! A line is a path below the root of the dataset. A folder selects all files below it. If no file or folder has that
//! name, the line is a pattern: `*` matches any part of a name, `?` one character, `[a-z]` one of these characters,
//! `[!a-z]` none of them, and the name `**` any number of folders. Blank lines and lines that begin with `#` are
//! ignored. A path may lead through symbolic links. Below a folder, and with patterns, only files are selected, not the
//! links to them.
//!
//! [`Selected`] walks the manifest only as far as its caller requests. It enters each folder at most once, with the set
//! of conditions that remain for the folder's entries. The time for a line is at most proportional to the product of
//! the dataset's entries and the line's parts. The memory is proportional to the depth of the tree and the number of
//! parts.

#[cfg(test)]
mod tests;

use crate::manifest::{DirIndex, Entry, FileIndex, Manifest, ManifestBytes, ManifestError};

/// The path or pattern in a line. `None` for a comment or a blank line.
pub fn path_of_line(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    (!line.starts_with(b"#") && !line.trim_ascii().is_empty()).then_some(line)
}

/// The files that a path or pattern selects. Empty if nothing matches.
#[derive(Debug)]
pub struct Selected<'m, B> {
    manifest: &'m Manifest<B>,
    parts: Vec<Part>,
    /// The folders from the root to the current position of the walk.
    folders: Vec<Folder>,
    /// The selected file, if the path names a file. No walk is needed then.
    file: Option<FileIndex>,
}

/// A condition on the name of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Name(Vec<u8>),
    Pattern(Vec<u8>),
    /// Matches any number of folders.
    Deep,
}

/// A folder that is being walked.
#[derive(Debug)]
struct Folder {
    dir: DirIndex,
    /// The indices of the parts that the folder's entries may match, in ascending order. If it contains only the number
    /// of parts, everything below the folder is selected.
    live: Vec<usize>,
    /// The next step of the walk.
    next: u32,
}

/// How far a walk got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// The walk found a selected file.
    File(FileIndex),
    /// The walk took as many steps as were allowed.
    Paused,
    /// The walk reached the end.
    End,
}

impl<'m, B: ManifestBytes> Selected<'m, B> {
    /// Starts a selection by `path`. Errors: the manifest is damaged.
    pub fn new(manifest: &'m Manifest<B>, path: &[u8]) -> Result<Self, ManifestError> {
        let mut selected = Self { manifest, parts: Vec::new(), folders: Vec::new(), file: None };
        let names = || path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        let plain = names().collect::<Vec<_>>().join(&b'/');
        let root = match manifest.follow(&plain)? {
            Some(Entry::File(file)) => {
                selected.file = Some(file);
                return Ok(selected);
            }
            Some(Entry::Dir(dir)) => dir,
            Some(Entry::Link(_)) => return Ok(selected),
            None if plain.iter().any(|byte| b"*?[".contains(byte)) => {
                selected.parts = names().map(Part::of).collect();
                selected.parts.dedup_by(|a, b| *a == Part::Deep && *b == Part::Deep);
                // `folder/**` selects everything below the folder, as `folder` does.
                selected.parts.pop_if(|last| *last == Part::Deep);
                DirIndex(0)
            }
            None => return Ok(selected),
        };
        let live = selected.live([0].into_iter());
        selected.folders.push(Folder { dir: root, live, next: 0 });
        Ok(selected)
    }

    /// Continues the walk to the next selected file, for at most `steps` steps. Each entry that is visited is a step.
    /// After an error, the walk is at its end.
    pub fn advance(&mut self, steps: usize) -> Result<Advance, ManifestError> {
        if let Some(file) = self.file.take() {
            return Ok(Advance::File(file));
        }
        for _ in 0..steps {
            match self.step() {
                Ok(None) if self.folders.is_empty() => return Ok(Advance::End),
                Ok(None) => {}
                Ok(Some(file)) => return Ok(Advance::File(file)),
                Err(error) => {
                    self.folders.clear();
                    return Err(error);
                }
            }
        }
        Ok(Advance::Paused)
    }

    /// These parts, and the parts that can be reached from them without consuming a name.
    fn live(&self, parts: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut live = Vec::new();
        for mut part in parts {
            live.push(part);
            while self.parts.get(part) == Some(&Part::Deep) {
                part += 1;
                live.push(part);
            }
        }
        live.sort_unstable();
        live.dedup();
        if live.last() == Some(&self.parts.len()) { vec![self.parts.len()] } else { live }
    }

    /// The parts that remain for the entries below a folder with this name.
    fn below(&self, live: &[usize], name: &[u8]) -> Vec<usize> {
        let next = |&part: &usize| match self.parts.get(part) {
            None | Some(Part::Deep) => Some(part),
            Some(condition) => condition.is_met(name).then_some(part + 1),
        };
        self.live(live.iter().filter_map(next))
    }

    fn step(&mut self) -> Result<Option<FileIndex>, ManifestError> {
        let manifest = self.manifest;
        let Some(Folder { dir, live, next }) = self.folders.last_mut() else { return Ok(None) };
        let at = *next;
        *next += 1;
        let row = manifest.dir(*dir)?;
        // A file can match only the last part.
        let last = live.last().and_then(|&part| Some((part, self.parts.get(part)?)));
        let last = last.filter(|(part, _)| part + 1 == self.parts.len()).map(|(_, condition)| condition);
        let files = match last {
            Some(Part::Name(_)) => 1,
            Some(_) => row.file_count,
            None if live[..] == [self.parts.len()] => row.file_count,
            None => 0,
        };
        if at < files {
            if let Some(Part::Name(name)) = last {
                return Ok(match manifest.lookup(&row, name)? {
                    Some(Entry::File(file)) => Some(file),
                    _ => None,
                });
            }
            let file = FileIndex(row.first_file + at);
            let is_met = match last {
                Some(condition) => condition.is_met(manifest.file(file)?.name),
                None => true,
            };
            return Ok(is_met.then_some(file));
        }
        let at = at - files;
        let one = match live[..] {
            [part] => self.parts.get(part),
            _ => None,
        };
        let dir = match one {
            Some(Part::Name(name)) if at == 0 => match manifest.lookup(&row, name)? {
                Some(Entry::Dir(dir)) => Some(dir),
                _ => None,
            },
            Some(Part::Name(_)) => return self.leave(),
            _ if at < row.dir_count => Some(DirIndex(row.first_dir + at)),
            _ => return self.leave(),
        };
        if let Some(dir) = dir
            && let Some(folder) = self.folders.last()
        {
            let live = self.below(&folder.live, manifest.dir(dir)?.name);
            if !live.is_empty() {
                self.folders.push(Folder { dir, live, next: 0 });
            }
        }
        Ok(None)
    }

    fn leave(&mut self) -> Result<Option<FileIndex>, ManifestError> {
        self.folders.pop();
        Ok(None)
    }
}

impl<B: ManifestBytes> Iterator for Selected<'_, B> {
    type Item = Result<FileIndex, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.advance(usize::MAX) {
                Ok(Advance::File(file)) => return Some(Ok(file)),
                Ok(Advance::Paused) => {}
                Ok(Advance::End) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Part {
    fn of(name: &[u8]) -> Self {
        match name {
            b"**" => Self::Deep,
            name if name.iter().any(|byte| b"*?[".contains(byte)) => Self::Pattern(name.to_vec()),
            name => Self::Name(name.to_vec()),
        }
    }

    /// True if an entry with this name meets the condition.
    fn is_met(&self, name: &[u8]) -> bool {
        match self {
            Self::Name(wanted) => wanted == name,
            Self::Pattern(pattern) => matches(pattern, name),
            Self::Deep => true,
        }
    }
}

/// True if the whole name matches. Takes at most time proportional to the product of the lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, name);
    // The state after the last star: the rest of the pattern, and the rest of the name after what the star has matched
    // so far.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(behind) = rest.strip_prefix(b"*") {
            (rest, star) = (behind, Some((behind, left)));
            continue;
        }
        if left.is_empty() && rest.is_empty() {
            return true;
        }
        match one(rest, left) {
            Some(behind) => (rest, left) = behind,
            None => {
                let Some((behind, [_, shorter @ ..])) = star else { return false };
                (rest, left, star) = (behind, shorter, Some((behind, shorter)));
            }
        }
    }
}

/// Matches one character. Returns the rest of the pattern and of the name.
fn one<'p, 'n>(pattern: &'p [u8], name: &'n [u8]) -> Option<(&'p [u8], &'n [u8])> {
    let (first, rest) = pattern.split_first()?;
    let (byte, left) = name.split_first()?;
    match first {
        b'?' => {
            let more = left.iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
            Some((rest, &left[if *byte < 0x80 { 0 } else { more }..]))
        }
        b'[' => {
            // A bracket that is never closed, or that contains nothing, stands for itself. A closing bracket as the
            // first character is an ordinary one.
            let negated = rest.starts_with(b"!");
            let class = &rest[usize::from(negated)..];
            let Some(end) = class.iter().skip(1).position(|byte| *byte == b']').map(|at| at + 1) else {
                return (byte == first).then_some((rest, left));
            };
            (in_class(&class[..end], *byte) != negated).then_some((&class[end + 1..], left))
        }
        _ => (byte == first).then_some((rest, left)),
    }
}

fn in_class(mut class: &[u8], byte: u8) -> bool {
    loop {
        class = match class {
            [] => return false,
            [low, b'-', high, ..] if (*low..=*high).contains(&byte) => return true,
            [_, b'-', _, rest @ ..] => rest,
            [one, ..] if *one == byte => return true,
            [_, rest @ ..] => rest,
        };
    }
}
