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

use std::path::Path;

pub use refusal::{ConfigError, Refusal};
pub use settings::{Config, Give, HealthConfig, Kind, Limits, Mode, ResourceConfig, ResourceName, Select, XidAction};

use document::Document;

/// The most bytes of a file: more than a ConfigMap holds.
const FILE_BYTES_MOST: usize = 1 << 20;

impl Config {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&file, &text),
            Err(source) => Err(ConfigError::Read { file, source }),
        }
    }

    /// Reads a text; `file` is named in errors. A text with the key `configList` is one of Mellanox's plugin, whatever its file is
    /// called.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let read = || {
            if text.len() > FILE_BYTES_MOST {
                return Err(Refusal { line: 1, why: format!("a configuration has {FILE_BYTES_MOST} bytes at most") });
            }
            let document = Document(text);
            if document.root().key("configList").is_there() { mellanox::read(document) } else { yaml::read(document) }
        };
        read().map_err(|refusal| refusal.of(file))
    }
}
