//! The settings of `larder-devices`: which resources it offers, and which devices each consists of.
//!
//! The cast: [`Config`] is a valid file. `yaml` reads our own format, `mellanox` the `configList` of Mellanox's
//! k8s-rdma-shared-dev-plugin. Both are YAML, of which JSON is a part; `document` parses it with the line of each value, which a
//! refusal names.

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

/// The largest file: more than a ConfigMap holds.
pub(crate) const FILE_BYTES_MOST: usize = 1 << 20;

/// The text of a file. At most one byte more than the largest file is read.
///
/// # Errors
/// The file cannot be read, is too large, or is not UTF-8.
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
    /// Reads a text; errors name `file`. A text with the key `configList` is one of Mellanox's plugin, whatever the file's name.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let config = if document::has_config_list(text) { mellanox::read(file, text) } else { yaml::read(file, text) };
        config.map_err(|refusal| refusal.of(file))
    }
}
