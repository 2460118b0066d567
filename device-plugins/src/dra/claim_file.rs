//! The CDI file of a claim, which is all that is remembered of it: the kubelet's answer is in an annotation of the file. Pure.
//!
//! Invariant: of a file that was not read as it was written nothing is taken, and its claim is prepared anew.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::claim::Allocated;
use crate::names::{CDI_CLAIM, CDI_VENDOR};

/// The annotation of the file.
const PREPARED: &str = "devices.larder.dev/prepared";

/// Stands for all requests of a claim; no request is called so. The kubelet gives what is prepared for it to containers that use
/// the whole claim, and to no container that uses one request of it.
pub const WHOLE: &str = "*";

/// A claim as it was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Its namespace and name, for people.
    pub claim: String,
    /// What was prepared.
    pub devices: Vec<PreparedDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedDevice {
    /// The request that it is for.
    pub request: String,
    /// Its name in the pool.
    pub device: String,
    /// Which of several shares of the device it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// True if it is for an administrator, beside whoever has the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
    /// CDI names: first that of the device, by which the kubelet tells of its health, and then that of its request.
    pub cdi: Vec<String>,
}

impl Prepared {
    /// True if this is what the claim was given.
    pub fn is_of(&self, allocated: &[Allocated]) -> bool {
        let devices = self.devices.iter().filter(|device| device.request != WHOLE);
        let of = |device: &PreparedDevice| Allocated {
            request: device.request.clone(),
            device: device.device.clone(),
            share: device.share.clone(),
            admin: device.admin,
        };
        devices.map(of).eq(allocated.iter().cloned())
    }
}

/// The CDI file of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimFile {
    cdi_version: String,
    kind: String,
    annotations: BTreeMap<String, String>,
    devices: Vec<Edited>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Edited {
    name: String,
    container_edits: Edits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Edits {
    env: Vec<String>,
}

impl ClaimFile {
    /// The file of a claim, with the environment that each of its names brings.
    pub fn new(prepared: &Prepared, environments: BTreeMap<String, Vec<String>>) -> Self {
        let annotation = serde_json::to_string(prepared).unwrap_or_default();
        let edited = |(name, env)| Edited { name, container_edits: Edits { env } };
        Self {
            // The lowest that knows annotations.
            cdi_version: "0.6.0".to_owned(),
            kind: kind(),
            annotations: BTreeMap::from([(PREPARED.to_owned(), annotation)]),
            devices: environments.into_iter().map(edited).collect(),
        }
    }

    /// As bytes of a file.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// What the bytes of a file say of the claim; `None` if they are damaged, or none of ours.
    pub fn decode(bytes: &[u8]) -> Option<Prepared> {
        let file: Self = serde_json::from_slice(bytes).ok()?;
        let prepared: Prepared = serde_json::from_str(file.annotations.get(PREPARED)?).ok()?;
        let is_sound = file.kind == kind() && prepared.devices.iter().all(|device| file.brings(device));
        is_sound.then_some(prepared)
    }

    /// True if a container can get the device: a name that the runtime does not find starts none, and without the name of its
    /// request a container would start without its environment.
    fn brings(&self, device: &PreparedDevice) -> bool {
        let has = |name: &str| self.devices.iter().any(|edited| qualified(&edited.name) == name);
        let [own, request] = &device.cdi[..] else { return false };
        has(request) && (has(own) || !own.starts_with(&qualified("")))
    }
}

/// What the runtime calls a name of the file.
pub fn qualified(name: &str) -> String {
    format!("{}={name}", kind())
}

fn kind() -> String {
    format!("{CDI_VENDOR}/{CDI_CLAIM}")
}
