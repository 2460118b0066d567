//! The volumes that claims of a StorageClass create. A volume is a name with attributes, stored in a small file. It has
//! no data of its own, so creating or deleting a volume does not affect the dataset.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use larder_csi_api::csi;
use larder_dataset::written::Rules;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::attributes::{AttributeError, Attributes, own_keys};
use crate::json_dir::{JsonDir, hex_hash};
use crate::volume_request::{check_capability, check_volume_id};

/// The longest volume ID that CSI recommends.
const ID_BYTES: usize = 128;

/// Why a volume could not be created, deleted or listed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The request is invalid.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The requested size is impossible.
    #[error("capacity_range {0}")]
    Size(&'static str),
    /// A volume of this name exists with other properties.
    #[error("a volume named {name} exists with another size or other parameters")]
    Exists {
        /// Its name.
        name: String,
    },
    /// The volume does not exist.
    #[error("volume {id} does not exist")]
    Unknown {
        /// The id.
        id: String,
    },
    /// The list cannot continue at this token.
    #[error("starting_token does not come from an earlier response")]
    Token,
    /// The disk failed.
    #[error("write the volumes: {0}")]
    Disk(#[source] io::Error),
}

/// A volume in its stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Volume {
    id: String,
    name: String,
    capacity_bytes: i64,
    parameters: BTreeMap<String, String>,
    /// Volumes are listed in the order of their creation, so that a paged list can continue even if volumes are deleted
    /// between pages.
    number: u64,
}

impl Volume {
    fn to_wire(&self) -> csi::Volume {
        csi::Volume {
            capacity_bytes: self.capacity_bytes,
            volume_id: self.id.clone(),
            volume_context: self.parameters.clone().into_iter().collect(),
            ..csi::Volume::default()
        }
    }
}

/// All volumes, in memory and on disk. Calls block. The lock is held while a volume is written, since there are few.
#[derive(Debug)]
pub struct Volumes {
    dir: JsonDir,
    rules: Rules,
    by_number: Mutex<BTreeMap<u64, Volume>>,
}

impl Volumes {
    /// Loads them from `dir`, which is created if missing.
    pub fn open(dir: &Path, rules: Rules) -> io::Result<Self> {
        let dir = JsonDir::open(dir)?;
        let all = dir.load::<Volume>().values;
        let by_number = Mutex::new(all.into_iter().map(|volume| (volume.number, volume)).collect());
        Ok(Self { dir, rules, by_number })
    }

    pub(crate) fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, VolumeError> {
        let name = request.name;
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(AttributeError::field("name", "is missing or contains a control character").into());
        }
        check_capabilities(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            let what = "is not supported: the content of a dataset comes from its origin";
            return Err(AttributeError::field("volume_content_source", what).into());
        }
        if !request.mutable_parameters.is_empty() {
            return Err(AttributeError::field("mutable_parameters", "are not supported").into());
        }
        let range = request.capacity_range.unwrap_or_default();
        let (required, limit) = (range.required_bytes, range.limit_bytes);
        if required < 0 || limit < 0 {
            return Err(VolumeError::Size("must not be negative"));
        }
        if limit != 0 && limit < required {
            return Err(VolumeError::Size("has a limit_bytes below its required_bytes"));
        }
        Attributes::parse(&request.parameters, &self.rules)?;
        let parameters: BTreeMap<String, String> =
            own_keys(&request.parameters).map(|key| (key.clone(), request.parameters[key].clone())).collect();

        let mut volumes = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(volume) = volumes.values().find(|volume| volume.name == name) {
            let fits = volume.capacity_bytes >= required && (limit == 0 || volume.capacity_bytes <= limit);
            if fits && volume.parameters == parameters {
                return Ok(volume.to_wire());
            }
            return Err(VolumeError::Exists { name });
        }
        let id = if name.len() <= ID_BYTES { name.clone() } else { format!("larder-{}", hex_hash(name.as_bytes())) };
        let number = volumes.last_key_value().map_or(1, |(last, _)| last + 1);
        let volume = Volume { id, name, capacity_bytes: required, parameters, number };
        self.dir.write(&volume.id, &volume).map_err(VolumeError::Disk)?;
        info!(volume = %volume.id, "created a volume");
        let answer = volume.to_wire();
        volumes.insert(number, volume);
        Ok(answer)
    }

    pub(crate) fn delete(&self, id: &str) -> Result<(), VolumeError> {
        check_volume_id(id)?;
        let mut volumes = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        let number = volumes.values().find(|volume| volume.id == id).map(|volume| volume.number);
        if let Some(number) = number {
            self.dir.remove(id).map_err(VolumeError::Disk)?;
            volumes.remove(&number);
            info!(volume = %id, "deleted a volume");
        }
        Ok(())
    }

    pub(crate) fn validate(
        &self,
        request: csi::ValidateVolumeCapabilitiesRequest,
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse, VolumeError> {
        check_volume_id(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(AttributeError::field("volume_capabilities", "are missing").into());
        }
        let volumes = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(volume) = volumes.values().find(|volume| volume.id == request.volume_id) else {
            return Err(VolumeError::Unknown { id: request.volume_id });
        };
        let differs =
            |asked: &HashMap<String, String>| own_keys(asked).any(|key| volume.parameters.get(key) != asked.get(key));
        let refused = |message: String| csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message };
        if differs(&request.volume_context) || differs(&request.parameters) {
            return Ok(refused("the volume has other attributes".to_owned()));
        }
        if let Err(error) = check_capabilities(&request.volume_capabilities) {
            return Ok(refused(error.to_string()));
        }
        let confirmed = csi::validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            ..Default::default()
        };
        Ok(csi::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }

    pub(crate) fn list(&self, request: &csi::ListVolumesRequest) -> Result<csi::ListVolumesResponse, VolumeError> {
        let after = match request.starting_token.as_str() {
            "" => 0,
            token => token.parse::<u64>().map_err(|_| VolumeError::Token)?,
        };
        let most = match usize::try_from(request.max_entries) {
            Ok(0) => usize::MAX,
            Ok(most) => most,
            Err(_) => {
                return Err(AttributeError::field("max_entries", "must not be negative").into());
            }
        };
        let volumes = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = volumes.range(after.saturating_add(1)..);
        let page: Vec<&Volume> = rest.by_ref().take(most).map(|(_, volume)| volume).collect();
        let next_token = match (rest.next(), page.last()) {
            (Some(_), Some(last)) => last.number.to_string(),
            _ => String::new(),
        };
        let entry =
            |volume: &Volume| csi::list_volumes_response::Entry { volume: Some(volume.to_wire()), status: None };
        Ok(csi::ListVolumesResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }
}

fn check_capabilities(capabilities: &[csi::VolumeCapability]) -> Result<(), AttributeError> {
    if capabilities.is_empty() {
        return Err(AttributeError::field("volume_capabilities", "are missing"));
    }
    capabilities.iter().try_for_each(|capability| check_capability(Some(capability)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_an_earlier_version_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = r#"{"id":"pvc-1","name":"pvc-1","capacity_bytes":5,"parameters":{"dataset":"imagenet"},"number":3}"#;
        std::fs::write(folder.path().join("volume.json"), text).expect("write");
        let volumes = Volumes::open(folder.path(), Rules::default()).expect("open");
        let listed = volumes.list(&csi::ListVolumesRequest::default()).expect("a list").entries;
        let expected = csi::Volume {
            capacity_bytes: 5,
            volume_id: "pvc-1".to_owned(),
            volume_context: [("dataset".to_owned(), "imagenet".to_owned())].into(),
            ..csi::Volume::default()
        };
        assert_eq!(listed, [csi::list_volumes_response::Entry { volume: Some(expected), status: None }]);
        let kept = volumes.by_number.lock().expect("no panic");
        assert_eq!(serde_json::to_string(&kept[&3]).expect("JSON"), text);
    }
}
