//! Decides which origin keys can be file names, and why others cannot.
//!
//! A key becomes a path by splitting it at `/`. Keys are never repaired: a key that is not a clean relative path is
//! rejected. `larder import` lists it with the reason, and no path leads to it. Therefore no key can shadow or escape
//! another.

use std::fmt;

/// The maximum length of one path part in bytes (Linux's NAME_MAX).
pub const NAME_MAX: usize = 255;

/// The maximum length of a whole path in bytes (Linux's PATH_MAX without the final NUL).
pub const PATH_MAX: usize = 4095;

/// The reserved folder in the root of each mount. It describes the mount itself.
pub const RESERVED: &[u8] = b".larder";

/// The names that a kind of origin can express, in addition to the rules that apply to all origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRules {
    /// True if requests to the origin can contain a key with ASCII control characters.
    pub control_characters: bool,
}

impl NameRules {
    /// Object stores, whose requests cannot contain keys with control characters.
    pub const OBJECT_STORE: Self = Self { control_characters: false };
    /// Local folders, which allow every byte except `/` and NUL.
    pub const FOLDER: Self = Self { control_characters: true };
}

/// Why a key is not in the file tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rejection {
    /// The key has an empty part: a leading `/`, or `//`.
    EmptyPart,
    /// A part of the key is `.` or `..`.
    DotPart,
    /// A part of the key has more than 255 bytes.
    PartTooLong,
    /// The key has more than 4,095 bytes.
    PathTooLong,
    /// The key contains a NUL byte.
    Nul,
    /// The key contains an ASCII control character, and requests to the origin cannot contain it.
    ControlCharacter,
    /// The key is below the reserved folder `.larder` in the root.
    Reserved,
    /// A folder has the same name (`a` where `a/b` exists).
    ShadowedByFolder,
    /// The key is a folder marker (it ends in `/`), but its object is not empty.
    MarkerWithBytes,
}

impl Rejection {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::EmptyPart,
        Self::DotPart,
        Self::PartTooLong,
        Self::PathTooLong,
        Self::Nul,
        Self::ControlCharacter,
        Self::Reserved,
        Self::ShadowedByFolder,
        Self::MarkerWithBytes,
    ];

    /// The reason as text, as `larder import` prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EmptyPart => "empty path part (leading / or //)",
            Self::DotPart => "path part . or ..",
            Self::PartTooLong => "path part over 255 bytes",
            Self::PathTooLong => "path over 4095 bytes",
            Self::Nul => "NUL byte",
            Self::ControlCharacter => "control character",
            Self::Reserved => "below the reserved folder .larder",
            Self::ShadowedByFolder => "a folder has the same name",
            Self::MarkerWithBytes => "folder marker that holds bytes",
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Rejection {}

/// Checks that `path` is a clean relative path. Errors: the first reason found.
///
/// ```
/// use larder_dataset::name::{NameRules, Rejection, check};
///
/// assert_eq!(check(b"train/cat.jpg", NameRules::OBJECT_STORE), Ok(()));
/// assert_eq!(check(b"train//cat.jpg", NameRules::OBJECT_STORE), Err(Rejection::EmptyPart));
/// ```
pub fn check(path: &[u8], rules: NameRules) -> Result<(), Rejection> {
    if path.len() > PATH_MAX {
        return Err(Rejection::PathTooLong);
    }
    for (nth, part) in path.split(|&byte| byte == b'/').enumerate() {
        match part {
            [] => return Err(Rejection::EmptyPart),
            b"." | b".." => return Err(Rejection::DotPart),
            RESERVED if nth == 0 => return Err(Rejection::Reserved),
            _ => {}
        }
        if part.contains(&0) {
            return Err(Rejection::Nul);
        }
        if part.len() > NAME_MAX {
            return Err(Rejection::PartTooLong);
        }
        if !rules.control_characters && part.iter().any(u8::is_ascii_control) {
            return Err(Rejection::ControlCharacter);
        }
    }
    Ok(())
}

/// Splits a clean path into its folder (empty for the root) and its last part, the name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_keys_are_rejected_with_their_reason() {
        let long = [b'x'; 256];
        let deep = [b"a/".repeat(2048), b"b".to_vec()].concat();
        let cases: &[(&[u8], Rejection)] = &[
            (b"", Rejection::EmptyPart),
            (b"/a", Rejection::EmptyPart),
            (b"a//b", Rejection::EmptyPart),
            (b"a/", Rejection::EmptyPart),
            (b"..", Rejection::DotPart),
            (b"a/../b", Rejection::DotPart),
            (b"./a", Rejection::DotPart),
            (&long, Rejection::PartTooLong),
            (&deep, Rejection::PathTooLong),
            (b"a\0b", Rejection::Nul),
            (b"a\nb", Rejection::ControlCharacter),
            (b".larder/stats.json", Rejection::Reserved),
            (b".larder", Rejection::Reserved),
        ];
        for (key, reason) in cases {
            assert_eq!(check(key, NameRules::OBJECT_STORE), Err(*reason), "{}", key.escape_ascii());
        }
    }

    #[test]
    fn odd_but_honest_names_are_kept() {
        for key in [&b"..a/b.."[..], b"a b/%2e%2e", &[0xff, 0xfe], &[b'x'; 255], b"a/.larder", "ä/💀".as_bytes()] {
            assert_eq!(check(key, NameRules::OBJECT_STORE), Ok(()), "{}", key.escape_ascii());
        }
        assert_eq!(check(b"a\nb", NameRules::FOLDER), Ok(()));
    }

    #[test]
    fn split_takes_the_last_part() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
    }
}
