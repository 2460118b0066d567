//! Reads bytes as what others write on a node and `larder-devices` only reports: the kubelet's checkpoint of devices, a cgroup's
//! `rdma.current`, and its path as the runtime names it.
//!
//! Invariant under test: no panic; who holds an ID is named in the file, each count is a number of its line, and no path leaves the
//! folder of cgroups.
#![no_main]

// Included rather than linked: the crate would compile kube and NVML, with the fuzzer's flags.
#[path = "../../../device-plugins/src"]
mod devices {
    pub(crate) mod node {
        pub(crate) mod uids;
    }
    pub(crate) mod usage {
        pub(super) mod cgroup;

        pub(crate) fn counts(line: &str) -> Vec<(&str, &'static str, u64)> {
            cgroup::counts(line).collect()
        }

        pub(crate) fn path(name: &str) -> Option<String> {
            cgroup::path(name)
        }
    }
}

use std::path::{Component, Path};

use devices::node::uids::Uids;
use devices::usage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // What the checkpoint has beside the entries may be no Unicode: nobody reads it.
    if let (Some(uids), Ok(file)) = (Uids::parse(data), serde_json::from_slice(data)) {
        held(&uids, &file);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    for line in text.lines() {
        for (hca, object, count) in usage::counts(line) {
            assert!(line.contains(hca) && line.contains(object) && line.contains(&count.to_string()), "{line}");
        }
        let Some(path) = usage::path(line) else { continue };
        assert!(Path::new(&path).components().all(|part| part != Component::ParentDir), "{line}: {path}");
        assert!(path.starts_with('/'), "{line}: {path}");
    }
});

/// Asks for all that the file names, and finds uids that it names.
fn held(uids: &Uids, file: &serde_json::Value) {
    let entries = file["Data"]["PodDeviceEntries"].as_array().into_iter().flatten();
    for entry in entries {
        let resource = entry["ResourceName"].as_str().unwrap_or_default();
        let ids = entry["DeviceIDs"].as_object().into_iter().flatten().flat_map(|(_, ids)| ids.as_array());
        for id in ids.flatten().filter_map(serde_json::Value::as_str) {
            if let Some(uid) = uids.of(resource, id) {
                assert!(entry["PodUID"] == uid, "{resource} {id} is held by {uid}");
            }
        }
    }
}
