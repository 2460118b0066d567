//! The name of a mount: hex digits that larderd derives from a snapshot and its origin.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a mount: 1 to 64 lower-case hex digits, so it is safe as a folder name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct MountId(String);

impl TryFrom<String> for MountId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.is_empty() || text.len() > 64 || !text.bytes().all(is_hex) {
            return Err("the name of a mount must be 1 to 64 lower-case hex digits");
        }
        Ok(Self(text))
    }
}

impl MountId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
