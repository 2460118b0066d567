//! The fields that every request about a volume has: its id and its capability, checked, and a hash of the arguments.

use std::collections::BTreeMap;

use larder_csi_api::csi;
use larder_csi_api::csi::volume_capability::AccessType;
use larder_csi_api::csi::volume_capability::access_mode::Mode;

use crate::attributes::{AttributeError, printable};
use crate::json_dir::hex_hash;
use crate::pod_identity::TOKENS;

/// The longest volume ID. It is generous: CSI allows 128 bytes, and the kubelet creates IDs of 68.
const ID_BYTES: usize = 256;

/// Mount flags that are accepted because every mount has them anyway.
const HARMLESS_FLAGS: [&str; 5] = ["ro", "noatime", "nodiratime", "nodev", "nosuid"];

/// Checks the id of a volume.
pub fn check_volume_id(id: &str) -> Result<(), AttributeError> {
    if id.is_empty() {
        return Err(AttributeError::field("volume_id", "is missing"));
    }
    if id.len() > ID_BYTES || id.chars().any(char::is_control) {
        return Err(AttributeError::field("volume_id", "is too long or contains a control character"));
    }
    Ok(())
}

/// Checks the volume capability: it must request a file system mount. Every access mode is accepted, and the mount is
/// always read-only.
pub fn check_capability(capability: Option<&csi::VolumeCapability>) -> Result<(), AttributeError> {
    let refuse = |what: &str| Err(AttributeError::field("volume_capability", what));
    let Some(capability) = capability else { return refuse("is missing") };
    let mount = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => return refuse("asks for a block device; Larder serves directories"),
        None => return refuse("has no access type"),
    };
    let mode = capability.access_mode.as_ref().map(|mode| Mode::try_from(mode.mode));
    match mode {
        Some(Ok(
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::MultiNodeReaderOnly
            | Mode::MultiNodeSingleWriter
            | Mode::MultiNodeMultiWriter
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter,
        )) => {}
        Some(Ok(Mode::Unknown) | Err(_)) | None => return refuse("has no known access mode"),
    }
    if let Some(flag) = mount.mount_flags.iter().find(|flag| !HARMLESS_FLAGS.contains(&flag.as_str())) {
        let known = HARMLESS_FLAGS.join(", ");
        return refuse(&format!("asks for the mount flag `{}`; known are {known}", printable(flag)));
    }
    // Provisioners fill in `ext4` by default. There is nothing to format, so any short name is accepted.
    if mount.fs_type.len() > 64 {
        return refuse("has an overlong file system type");
    }
    Ok(())
}

/// A hash of all arguments that must be equal in a repeated publish call. Service account tokens are left out, since
/// they are secret and change over time.
pub fn arguments_hash(request: &csi::NodePublishVolumeRequest) -> String {
    let context: BTreeMap<_, _> = request.volume_context.iter().filter(|(key, _)| *key != TOKENS).collect();
    let capability = request.volume_capability.as_ref();
    let mode = capability.and_then(|capability| capability.access_mode.as_ref()).map(|mode| mode.mode);
    let mount = capability.and_then(|capability| match &capability.access_type {
        Some(AccessType::Mount(mount)) => Some((&mount.fs_type, &mount.mount_flags)),
        Some(AccessType::Block(_)) | None => None,
    });
    let all = serde_json::json!({ "context": context, "readonly": request.readonly, "mode": mode, "mount": mount });
    hex_hash(all.to_string().as_bytes())
}
