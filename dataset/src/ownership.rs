//! The owner and the modes that a mount shows for all its files.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The permission bits that a mode may have. Mounts are read-only.
const MODE_BITS: u16 = 0o555;

/// The largest user or group ID. The next number means "none" to the kernel.
const ID_MAX: u32 = u32::MAX - 1;

/// The owner and the modes that a mount shows. A field that is `None` uses the mount's default.
///
/// ```
/// use larder_dataset::ownership::{Ownership, parse_mode};
///
/// let shown = Ownership { uid: Some(1000), file_mode: parse_mode("0440").ok(), ..Ownership::default() };
/// assert_eq!(shown.to_string(), "uid=1000 fileMode=440");
/// assert!(parse_mode("0644").is_err(), "mounts are read-only");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ownership {
    /// The user that owns all files and folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Their group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The permission bits of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u16>,
    /// The permission bits of folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir_mode: Option<u16>,
}

impl Ownership {
    /// True if all defaults apply.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The values that are set, such as `uid=1000 fileMode=440`.
impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = [("uid", self.uid), ("gid", self.gid)];
        let modes = [("fileMode", self.file_mode), ("dirMode", self.dir_mode)];
        let ids = ids.iter().filter_map(|(name, id)| Some(format!("{name}={}", (*id)?)));
        let modes = modes.iter().filter_map(|(name, mode)| Some(format!("{name}={:o}", (*mode)?)));
        f.write_str(&ids.chain(modes).collect::<Vec<_>>().join(" "))
    }
}

/// Parses the ID of a user or group. Errors: what it must be.
pub fn parse_id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|id| *id <= ID_MAX && text.bytes().all(|byte| byte.is_ascii_digit()));
    id.ok_or_else(|| format!("must be a number from 0 to {ID_MAX}"))
}

/// Parses permission bits in octal, such as `0440`. Errors: what they must be.
pub fn parse_mode(text: &str) -> Result<u16, String> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u16::from_str_radix(text, 8).ok().filter(|_| is_octal);
    match mode.ok_or_else(|| "must be three or four octal digits, such as 0440".to_owned())? {
        mode if mode & !0o777 != 0 => Err("has setuid, setgid or sticky bits, which no mount shows".to_owned()),
        mode if mode & !MODE_BITS != 0 => Err("has write bits, and mounts are read-only: use 4, 5, 1 or 0".to_owned()),
        mode => Ok(mode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_would_promise_a_write_is_refused() {
        assert_eq!([parse_mode("0440"), parse_mode("555"), parse_mode("000")], [Ok(0o440), Ok(0o555), Ok(0)]);
        for (text, said) in [
            ("0644", "write bits"),
            ("222", "write bits"),
            ("4555", "setuid"),
            ("1555", "sticky"),
            ("44", "octal"),
            ("0o444", "octal"),
            ("00444", "octal"),
            ("888", "octal"),
            ("+444", "octal"),
            ("", "octal"),
        ] {
            let error = parse_mode(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn an_id_is_a_number_that_the_kernel_takes() {
        assert_eq!([parse_id("0"), parse_id("4294967294")], [Ok(0), Ok(ID_MAX)]);
        for text in ["-1", "4294967295", "root", "", "+1", "1.0"] {
            assert!(parse_id(text).unwrap_err().contains("4294967294"), "{text}");
        }
    }

    #[test]
    fn only_what_is_set_is_shown() {
        let all = Ownership { uid: Some(0), gid: Some(5), file_mode: Some(0o440), dir_mode: Some(0o550) };
        assert_eq!(all.to_string(), "uid=0 gid=5 fileMode=440 dirMode=550");
        assert!(Ownership::default().is_default() && Ownership::default().to_string().is_empty());
    }
}
