//! The uids of pods that hold devices, which `kubectl describe` finds events by. The pod resources API leaves them out, and the
//! program may read no pods at the API server; the kubelet's own checkpoint of device plugins has them. That is no API: whatever
//! cannot be read is left out, and events of such pods lack the uid.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The file in the kubelet's folder of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// The uids of pods by what they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uids(BTreeMap<(String, String), Option<String>>);

#[derive(Deserialize)]
struct Checkpoint {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    resource_name: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl Uids {
    /// Reads the file's bytes. `None` if it is another one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let checkpoint: Checkpoint = serde_json::from_slice(bytes).ok()?;
        let mut uids = BTreeMap::new();
        for entry in checkpoint.data.entries.unwrap_or_default() {
            let ids = entry.device_ids.unwrap_or_default().into_values().flatten().flatten();
            for id in ids {
                let uid = uids.entry((entry.resource_name.clone(), id)).or_insert_with(|| Some(entry.pod_uid.clone()));
                // Of two pods one is gone, and nobody knows which.
                if uid.as_deref() != Some(&entry.pod_uid) {
                    *uid = None;
                }
            }
        }
        Some(Self(uids))
    }

    /// The uid of the pod that holds an ID of a resource.
    pub fn of(&self, resource: &str, id: &str) -> Option<&str> {
        self.0.get(&(resource.to_owned(), id.to_owned()))?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_by_what_it_holds_unless_two_do() {
        // As kubelet 1.36 writes it.
        let file = include_bytes!("../../golden/checkpoint.node");
        let uids = Uids::parse(file).unwrap();
        let found = [("r/a", "x"), ("r/a", "z"), ("r/b", "x"), ("r/a", "y"), ("r/b", "z"), ("r/c", "x")];
        let found = found.map(|(resource, id)| uids.of(resource, id));
        assert_eq!(found, [Some("u1"), Some("u2"), Some("u1"), None, None, None]);
    }

    #[test]
    fn another_file_is_not_a_checkpoint() {
        for other in ["", "{}", "[]", r#"{"Data": {"PodDeviceEntries": [{"PodUID": 1}]}}"#, "\u{0}"] {
            assert_eq!(Uids::parse(other.as_bytes()), None, "{other}");
        }
        let empty = Uids::parse(br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#);
        assert_eq!(empty, Some(Uids::default()));
    }
}
