//! The CDI file of a claim. It is the only stored state of the claim: an annotation of the file holds the answer to the
//! kubelet. Pure.
//!
//! Invariant: a damaged file is ignored as a whole, and its claim is prepared again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::claim::Allocated;
use crate::cdi::{self, Format};
use crate::names::{CDI_CLAIM, CDI_VENDOR};

/// The annotation that holds the prepared claim.
const PREPARED: &str = "devices.larder.dev/prepared";

/// The request name that stands for the whole claim; no real request can have it. The kubelet passes its devices to
/// containers that use the whole claim, and not to containers that use one request.
pub const WHOLE: &str = "*";

/// A claim as it was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The claim's namespace and name, for log lines.
    pub claim: String,
    pub devices: Vec<PreparedDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedDevice {
    /// The name of the request, or [`WHOLE`].
    pub request: String,
    /// The device's name in the pool.
    pub device: String,
    /// The ID of the share, if several claims can share the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// True for admin access, which does not exclude other claims from the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
    /// The CDI names. The first is the device's name, under which the kubelet reports its health. The name of its
    /// request follows.
    pub cdi: Vec<String>,
}

impl Prepared {
    /// True if the prepared devices are the allocated devices.
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
    /// The file of a claim. `environments` has the variables that each CDI name adds to a container.
    pub fn new(prepared: &Prepared, environments: BTreeMap<String, Vec<String>>) -> Self {
        let annotation = serde_json::to_string(prepared).unwrap_or_default();
        let edited = |(name, env)| Edited { name, container_edits: Edits { env } };
        Self {
            // The lowest version that supports annotations.
            cdi_version: "0.6.0".to_owned(),
            kind: kind(),
            annotations: BTreeMap::from([(PREPARED.to_owned(), annotation)]),
            devices: environments.into_iter().map(edited).collect(),
        }
    }

    /// Encodes the file.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Decodes a file; `None` if it is damaged, or not written by this program.
    pub fn decode(bytes: &[u8]) -> Option<Prepared> {
        let file: Self = serde_json::from_slice(bytes).ok()?;
        let prepared: Prepared = serde_json::from_str(file.annotations.get(PREPARED)?).ok()?;
        let names = cdi::names(bytes, Format::Json);
        let is_sound = file.kind == kind()
            && file.devices.iter().all(|edited| edited.container_edits.are_allowed())
            && prepared.devices.iter().all(|device| device.is_named_by(&names));
        is_sound.then_some(prepared)
    }
}

impl Edits {
    /// True if CDI allows them. The runtime ignores a file with others.
    fn are_allowed(&self) -> bool {
        !self.env.is_empty() && self.env.iter().all(|line| line.find('=').is_some_and(|at| at > 0))
    }
}

impl PreparedDevice {
    /// True if a container can get the device from a file with these names. If the runtime does not find a CDI name, it
    /// does not start the container. Without the request's name, a container would start without its environment.
    fn is_named_by(&self, names: &[String]) -> bool {
        let [own, request] = &self.cdi[..] else { return false };
        names.contains(request) && (names.contains(own) || !own.starts_with(&qualified("")))
    }
}

/// The qualified CDI name of a device in the file.
pub fn qualified(name: &str) -> String {
    format!("{}={name}", kind())
}

fn kind() -> String {
    format!("{CDI_VENDOR}/{CDI_CLAIM}")
}
