//! The names of devices and slices in the API: they are stable across restarts and reboots.

use crate::names::DRIVER;
use crate::resource::DeviceKey;

/// The longest name of a Kubernetes object, in bytes.
const OBJECT_NAME_BYTES: usize = 253;

/// The name of a device in its pool, a DNS label. The name of a GPU or slice is its UUID in lower case.
pub fn device(key: &DeviceKey) -> String {
    let (kind, uuid, prefix) = match key {
        DeviceKey::Gpu(uuid) => ("gpu", uuid, "GPU-"),
        DeviceKey::Slice(uuid) => ("mig", uuid, "MIG-"),
        DeviceKey::Hca(pci) => return format!("hca-{}", pci.to_string().replace([':', '.'], "-")),
    };
    let plain = |rest: &&str| {
        let is_ours = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        rest.len() <= 40
            && !rest.is_empty()
            && !rest.starts_with('-')
            && !rest.ends_with('-')
            && rest.bytes().all(is_ours)
    };
    match uuid.strip_prefix(prefix).filter(plain) {
        Some(rest) => format!("{kind}-{rest}"),
        // Not in NVIDIA's format, so the name is a hash. Its double dash cannot collide with a plain name, which has a
        // single dash here.
        None => format!("{kind}--{:016x}", hash(uuid)),
    }
}

/// The name of a node's slice.
pub fn slice(node: &str, number: usize) -> String {
    let name = format!("{node}-{DRIVER}-{number}");
    if name.len() <= OBJECT_NAME_BYTES { name } else { format!("{:016x}-{DRIVER}-{number}", hash(node)) }
}

/// FNV-1a, which is stable across Rust versions.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_of_their_own() {
        let uuid = "8f3e4c5a-0000-0000-0000-000000000001";
        let keys = [
            (DeviceKey::Gpu(format!("GPU-{uuid}")), format!("gpu-{uuid}")),
            (DeviceKey::Slice(format!("MIG-{uuid}")), format!("mig-{uuid}")),
            (DeviceKey::Hca("0000:3b:00.1".parse().unwrap()), "hca-0000-3b-00-1".to_owned()),
            // UUIDs of an old driver, in upper case, and malformed.
            (DeviceKey::Slice(format!("MIG-GPU-{uuid}/1/0")), "mig--91a9e3206ff8178b".to_owned()),
            (DeviceKey::Gpu("GPU-A".to_owned()), "gpu--c8a13d959296984b".to_owned()),
            (DeviceKey::Gpu("GPU-a".to_owned()), "gpu-a".to_owned()),
            (DeviceKey::Gpu("GPU--a".to_owned()), "gpu--81ccf72816ef0b9a".to_owned()),
            (DeviceKey::Gpu("a b".to_owned()), "gpu--e63f991904833892".to_owned()),
        ];
        for (key, name) in &keys {
            assert_eq!(device(key), *name);
            let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(name.len() <= 63 && name.bytes().all(is_label) && !name.ends_with('-'), "{name}");
        }
    }

    #[test]
    fn a_slice_has_the_name_of_its_node() {
        assert_eq!(slice("n1", 2), "n1-devices.larder.dev-2");
        let long = "n".repeat(253);
        assert!(slice(&long, 0).len() <= 253);
        assert_ne!(slice(&long, 0), slice(&format!("{}m", &long[1..]), 0));
    }
}
