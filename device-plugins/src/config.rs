//! The settings of `larder-devices`: which resources it offers, and of which devices each is made.
//!
//! The cast: [`Config`] is a file that was found to be sound. `yaml` reads ours, `mellanox` the `configList` of Mellanox's
//! k8s-rdma-shared-dev-plugin; both are read as YAML, of which JSON is a part, and `document` knows the line of each of its
//! values, for refusals.

mod document;
mod mellanox;
mod refusal;
mod settings;
#[cfg(test)]
mod tests;
mod values;
mod yaml;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use refusal::{ConfigError, Refusal};
pub use settings::{Config, Give, HealthConfig, Kind, Limits, Mode, ResourceConfig, ResourceName, Select, XidAction};

use document::Document;

/// The most bytes of a file: more than a ConfigMap holds.
pub(crate) const FILE_BYTES_MOST: usize = 1 << 20;

/// The text of a file, of which no more is read than may be in it.
///
/// # Errors
/// The file cannot be read, is too large, or is no text.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let read = || {
        let mut text = String::new();
        let bytes = File::open(path)?.take(FILE_BYTES_MOST as u64 + 1).read_to_string(&mut text)?;
        if bytes > FILE_BYTES_MOST {
            return Err(io::Error::other(format!("it is larger than {FILE_BYTES_MOST} bytes")));
        }
        Ok(text)
    };
    read().map_err(|source| ConfigError::Read { file: path.display().to_string(), source })
}

impl Config {
    /// Reads a text; `file` is named in errors. A text with the key `configList` is one of Mellanox's plugin, whatever its file is
    /// called.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let document = Document(text);
        let is_mellanox = document.root().key("configList").is_there();
        let config = if is_mellanox { mellanox::read(file, document) } else { yaml::read(file, document) };
        config.map_err(|refusal| refusal.of(file))
    }
}
