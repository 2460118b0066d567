//! Reads the device names in CDI files that other programs wrote.

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

/// The qualified names of a CDI file's devices, such as `nvidia.com/gpu=GPU-8f3`. Empty if it cannot be read: the runtime would
/// not find its devices either.
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
    let devices = file.get("devices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let name = |device: &Value| match device.get("name")? {
        Value::String(name) => Some(format!("{kind}={name}")),
        Value::Number(number) => Some(format!("{kind}={number}")),
        _ => None,
    };
    if kind.is_empty() { Vec::new() } else { devices.iter().filter_map(name).take(NAMES_MOST).collect() }
}
