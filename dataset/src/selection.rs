//! Selects files of a snapshot by the lines of a list: paths, folders and patterns.
//!
//! A line is a path below the root of the dataset. A folder stands for all files below it. If no file or folder has
//! that name, the line is a pattern: `*` is any part of a name, `?` one character, `[a-z]` one of these, `[!a-z]` none
//! of these, and the name `**` any number of folders. Blank lines and lines that begin with `#` select nothing and
//! count for nothing.
//!
//! [`Selected`] walks the manifest as far as its caller asks, in memory that the depth of the tree bounds.

use crate::manifest::{DirIndex, Entry, FileIndex, Manifest, ManifestBytes, ManifestError};

/// The path or pattern of a line; `None` for a comment and for a blank line.
pub fn path_of_line(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    (!line.starts_with(b"#") && !line.trim_ascii().is_empty()).then_some(line)
}

/// The files that a path or pattern selects. None at all if it is unknown.
#[derive(Debug)]
pub struct Selected<'m, B> {
    manifest: &'m Manifest<B>,
    parts: Vec<Part>,
    /// From the root to where the walk is.
    folders: Vec<Folder>,
    /// A path that names a file needs no walk.
    file: Option<FileIndex>,
}

/// A condition on the name of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Name(Vec<u8>),
    Pattern(Vec<u8>),
    /// Any number of folders.
    Deep,
}

/// A folder that is being walked.
#[derive(Clone, Copy, Debug)]
struct Folder {
    dir: DirIndex,
    /// The part that its children must match; if there is none, all are selected.
    part: usize,
    /// The step that comes next.
    next: u32,
}

impl<'m, B: ManifestBytes> Selected<'m, B> {
    /// Selects by `path`. Errors: the manifest is damaged.
    pub fn new(manifest: &'m Manifest<B>, path: &[u8]) -> Result<Self, ManifestError> {
        let mut selected = Self { manifest, parts: Vec::new(), folders: Vec::new(), file: None };
        let names = || path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        let plain = names().collect::<Vec<_>>().join(&b'/');
        let root = match manifest.resolve(&plain)? {
            Some(Entry::File(file)) => {
                selected.file = Some(file);
                return Ok(selected);
            }
            Some(Entry::Dir(dir)) => dir,
            None if plain.iter().any(|byte| b"*?[".contains(byte)) => {
                selected.parts = names().map(Part::of).collect();
                selected.parts.dedup_by(|a, b| *a == Part::Deep && *b == Part::Deep);
                // All that is below a folder.
                selected.parts.pop_if(|last| *last == Part::Deep);
                DirIndex(0)
            }
            None => return Ok(selected),
        };
        selected.folders.push(Folder { dir: root, part: 0, next: 0 });
        Ok(selected)
    }

    fn step(&mut self) -> Result<Option<FileIndex>, ManifestError> {
        let manifest = self.manifest;
        while let Some(&mut Folder { dir, part, ref mut next }) = self.folders.last_mut() {
            let at = *next;
            *next += 1;
            let row = manifest.dir(dir)?;
            let last = part + 1 == self.parts.len();
            let mut enter = None;
            match self.parts.get(part) {
                Some(Part::Deep) if at == 0 => enter = Some((dir, part + 1)),
                Some(Part::Deep) if at <= row.dir_count => enter = Some((DirIndex(row.first_dir + at - 1), part)),
                Some(Part::Name(name)) if at == 0 => match manifest.lookup(&row, name)? {
                    Some(Entry::File(file)) if last => return Ok(Some(file)),
                    Some(Entry::Dir(dir)) => enter = Some((dir, part + 1)),
                    _ => {}
                },
                Some(Part::Pattern(_)) if !last && at < row.file_count => *next = row.file_count,
                pattern @ (None | Some(Part::Pattern(_))) if at < row.file_count => {
                    let file = FileIndex(row.first_file + at);
                    if is_match(pattern, manifest.file(file)?.name) {
                        return Ok(Some(file));
                    }
                }
                pattern @ (None | Some(Part::Pattern(_))) if at - row.file_count < row.dir_count => {
                    let dir = DirIndex(row.first_dir + at - row.file_count);
                    if is_match(pattern, manifest.dir(dir)?.name) {
                        enter = Some((dir, (part + 1).min(self.parts.len())));
                    }
                }
                _ => {
                    self.folders.pop();
                }
            }
            if let Some((dir, part)) = enter {
                self.folders.push(Folder { dir, part, next: 0 });
            }
        }
        Ok(None)
    }
}

impl<B: ManifestBytes> Iterator for Selected<'_, B> {
    type Item = Result<FileIndex, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(file) = self.file.take() {
            return Some(Ok(file));
        }
        let step = self.step();
        if step.is_err() {
            self.folders.clear();
        }
        step.transpose()
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
}

fn is_match(pattern: Option<&Part>, name: &[u8]) -> bool {
    match pattern {
        Some(Part::Pattern(pattern)) => matches(pattern, name),
        _ => true,
    }
}

/// True if the whole name matches. Takes time in proportion to the product of the lengths at most.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, name);
    // Behind the last star: the pattern, and the name without what the star has taken so far.
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

/// Matches one character: what is left of pattern and name behind it.
fn one<'p, 'n>(pattern: &'p [u8], name: &'n [u8]) -> Option<(&'p [u8], &'n [u8])> {
    let (first, rest) = pattern.split_first()?;
    let (byte, left) = name.split_first()?;
    match first {
        b'?' => {
            let more = left.iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
            Some((rest, &left[if *byte < 0x80 { 0 } else { more }..]))
        }
        b'[' => {
            // A bracket that is never closed, or that nothing is in, is itself. The first byte may be a closing one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ManifestBuilder, PlainFile};
    use crate::{NameRules, VersionTag};

    fn manifest() -> Manifest<Vec<u8>> {
        let mut builder = ManifestBuilder::new();
        for path in
            ["a.jpg", "b.png", "odd[1].jpg", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg", "train/w.jpg", "ü.jpg"]
        {
            let version = VersionTag::MtimeSize { mtime_ns: 0, size: 1 };
            let file = PlainFile { path: path.as_bytes(), size: 1, mtime_ns: 0, version };
            builder.push(&file, NameRules::FOLDER).unwrap();
        }
        Manifest::open(builder.finish("n", "file:///n", 0).unwrap().to_bytes()).unwrap()
    }

    fn selected(path: &str) -> Vec<String> {
        let manifest = manifest();
        let files = Selected::new(&manifest, path.as_bytes()).unwrap().map(|file| {
            let file = manifest.file(file.unwrap()).unwrap();
            String::from_utf8(manifest.file_path(&file).unwrap()).unwrap()
        });
        files.collect()
    }

    #[test]
    fn a_path_a_folder_and_a_pattern_select_what_they_name_and_an_unknown_one_nothing() {
        let all =
            ["a.jpg", "b.png", "odd[1].jpg", "ü.jpg", "train/w.jpg", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg"];
        for (path, files) in [
            ("a.jpg", &["a.jpg"][..]),
            ("./train//1/x.jpg", &["train/1/x.jpg"]),
            ("train/1", &["train/1/x.jpg", "train/1/y.txt"]),
            ("train/2/", &["train/2/z.jpg"]),
            ("odd[1].jpg", &["odd[1].jpg"]),
            ("*.jpg", &["a.jpg", "odd[1].jpg", "ü.jpg"]),
            ("?.jpg", &["a.jpg", "ü.jpg"]),
            ("[!b-z].*", &["a.jpg"]),
            ("train/*/*.jpg", &["train/1/x.jpg", "train/2/z.jpg"]),
            ("train/*", &["train/w.jpg", "train/1/x.jpg", "train/1/y.txt", "train/2/z.jpg"]),
            ("**/x.jpg", &["train/1/x.jpg"]),
            ("train/**/**/*.jpg", &["train/w.jpg", "train/1/x.jpg", "train/2/z.jpg"]),
            ("**/1/**", &["train/1/x.jpg", "train/1/y.txt"]),
            ("**", &all),
            ("/", &all),
            ("nothing", &[]),
            ("../a.jpg", &[]),
            ("a.jpg/b", &[]),
            ("*.gif", &[]),
            ("train/*/w.jpg", &[]),
        ] {
            assert_eq!(selected(path), files, "{path}");
        }
    }

    #[test]
    fn stars_and_brackets_match_as_in_a_shell() {
        for (pattern, name, is) in [
            ("*", "", true),
            ("a*b*c", "axxbxbc", true),
            ("a*b*c", "axxbxb", false),
            ("*aab", "aaaaaab", true),
            ("[]]", "]", true),
            ("[", "[", true),
            ("[a-", "[a-", true),
            ("[a-c-]x", "-x", true),
            ("x[!a-c]", "xb", false),
            ("??", "aü", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is, "{pattern} {name}");
        }
    }

    #[test]
    fn comments_and_blank_lines_are_no_paths() {
        for (line, path) in [("# a", None), ("", None), (" \t", None), ("a\r", Some("a")), (" a", Some(" a"))] {
            assert_eq!(path_of_line(line.as_bytes()), path.map(str::as_bytes), "{line:?}");
        }
    }
}
