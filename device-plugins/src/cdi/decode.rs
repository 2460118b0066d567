//! Reads the device names in CDI files.

use std::collections::BTreeSet;

use serde_json::Value;

/// The format of a CDI file, given by its file name extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.json`
    Json,
    /// `.yaml`
    Yaml,
}

/// Larger files are not read.
pub(super) const BYTES_MOST: usize = 4 << 20;

/// At most this many device names are read from one file.
pub(super) const NAMES_MOST: usize = 4096;

/// The qualified names of a CDI file's devices, such as `nvidia.com/gpu=GPU-8f3`. Empty if it cannot be read, or if CDI
/// does not allow one of the names or a name occurs twice: the runtime would not find its devices either.
pub fn names(bytes: &[u8], format: Format) -> Vec<String> {
    if bytes.len() > BYTES_MOST {
        return Vec::new();
    }
    let file: Option<Value> = match format {
        Format::Json => serde_json::from_slice(bytes).ok(),
        Format::Yaml => serde_saphyr::from_slice(bytes).ok(),
    };
    let file = file.unwrap_or_default();
    let kind = file.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !kind.split_once('/').is_some_and(|(vendor, class)| is_kind_part(vendor) && is_kind_part(class)) {
        return Vec::new();
    }
    let devices = file.get("devices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let qualified = |device: &Value| {
        let name = match device.get("name")? {
            Value::String(name) => name.clone(),
            Value::Number(number) => number.to_string(),
            _ => return None,
        };
        is_device(&name).then(|| format!("{kind}={name}"))
    };
    let names: Vec<String> = devices.iter().take(NAMES_MOST).map(qualified).collect::<Option<_>>().unwrap_or_default();
    let are_different = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    if are_different { names } else { Vec::new() }
}

/// Whether CDI allows this vendor or class, the two parts of a kind.
fn is_kind_part(part: &str) -> bool {
    part.starts_with(|first: char| first.is_ascii_alphabetic()) && is_made_of(part, "_-.")
}

/// Whether CDI allows this name of a device within its kind.
fn is_device(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && is_made_of(name, "_-.:")
}

/// Whether a name ends with a letter or digit and has only these and `marks`.
fn is_made_of(name: &str, marks: &str) -> bool {
    name.ends_with(|last: char| last.is_ascii_alphanumeric())
        && name.chars().all(|each| each.is_ascii_alphanumeric() || marks.contains(each))
}
