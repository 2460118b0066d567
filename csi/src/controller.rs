//! The controller service: volumes for claims of a StorageClass. A volume is a name and its attributes, in a small file; it
//! has no bytes of its own, so making and deleting one touches no dataset.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use larder_csi_api::csi;
use larder_csi_api::csi::controller_service_capability::rpc::Type as Rpc;
use serde::{Deserialize, Serialize};
use tonic::{Request, Response, Status, async_trait};
use tracing::{info, info_span};

use crate::attributes::{AttributeError, Attributes, Rules, check_capability, check_volume_id, own_keys};
use crate::calls::{Calls, blocking};
use crate::json_dir::{JsonDir, hex_hash};

/// Longest id that CSI wants to see.
const ID_BYTES: usize = 128;

/// Why a volume could not be made, deleted or listed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The request is wrong.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The wanted size cannot be.
    #[error("capacity_range {0}")]
    Size(&'static str),
    /// It exists, but differs.
    #[error("a volume named {name} exists with another size or other parameters")]
    Exists {
        /// Its name.
        name: String,
    },
    /// It does not exist.
    #[error("there is no volume {id}")]
    Unknown {
        /// The id.
        id: String,
    },
    /// The list cannot go on there.
    #[error("starting_token is not one that an earlier answer gave")]
    Token,
    /// The disk failed.
    #[error("keep the volumes: {0}")]
    Disk(#[source] io::Error),
}

/// A volume, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Volume {
    id: String,
    name: String,
    capacity_bytes: i64,
    parameters: BTreeMap<String, String>,
    /// Volumes are listed in the order in which they were made, so that a list can go on whatever is deleted meanwhile.
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

/// All volumes, in memory and on disk. Calls block; the lock is held while one is written, as there are few.
#[derive(Debug)]
pub struct Volumes {
    dir: JsonDir,
    rules: Rules,
    by_number: Mutex<BTreeMap<u64, Volume>>,
}

impl Volumes {
    /// Loads them from `dir`, which is made.
    pub fn open(dir: &Path, rules: Rules) -> io::Result<Self> {
        let dir = JsonDir::open(dir)?;
        let all = dir.load::<Volume>()?;
        let by_number = Mutex::new(all.into_iter().map(|volume| (volume.number, volume)).collect());
        Ok(Self { dir, rules, by_number })
    }

    fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, VolumeError> {
        let name = request.name;
        if name.is_empty() || name.chars().any(char::is_control) {
            let what = "is missing or holds a control character".to_owned();
            return Err(AttributeError::Field { field: "name", what }.into());
        }
        check_capabilities(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            let what = "is not supported: a dataset is what its origin holds".to_owned();
            return Err(AttributeError::Field { field: "volume_content_source", what }.into());
        }
        if !request.mutable_parameters.is_empty() {
            let what = "are not supported".to_owned();
            return Err(AttributeError::Field { field: "mutable_parameters", what }.into());
        }
        let range = request.capacity_range.unwrap_or_default();
        let (required, limit) = (range.required_bytes, range.limit_bytes);
        if required < 0 || limit < 0 {
            return Err(VolumeError::Size("must not be negative"));
        }
        if limit != 0 && limit < required {
            return Err(VolumeError::Size("has a limit below what is required"));
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
        info!(volume = %volume.id, "made a volume");
        let answer = volume.to_wire();
        volumes.insert(number, volume);
        Ok(answer)
    }

    fn delete(&self, id: &str) -> Result<(), VolumeError> {
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

    fn validate(
        &self,
        request: csi::ValidateVolumeCapabilitiesRequest,
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse, VolumeError> {
        check_volume_id(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            let what = "are missing".to_owned();
            return Err(AttributeError::Field { field: "volume_capabilities", what }.into());
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

    fn list(&self, request: &csi::ListVolumesRequest) -> Result<csi::ListVolumesResponse, VolumeError> {
        let after = match request.starting_token.as_str() {
            "" => 0,
            token => token.parse::<u64>().map_err(|_| VolumeError::Token)?,
        };
        let most = match usize::try_from(request.max_entries) {
            Ok(0) => usize::MAX,
            Ok(most) => most,
            Err(_) => {
                let what = "must not be negative".to_owned();
                return Err(AttributeError::Field { field: "max_entries", what }.into());
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
        return Err(AttributeError::Field { field: "volume_capabilities", what: "are missing".to_owned() });
    }
    capabilities.iter().try_for_each(|capability| check_capability(Some(capability)))
}

/// The controller service on the wire.
#[derive(Clone, Debug)]
pub struct ControllerService {
    /// What it serves.
    pub volumes: Arc<Volumes>,
    /// What runs.
    pub calls: Calls,
}

fn unimplemented(call: &str) -> Status {
    Status::unimplemented(format!("{call} is not supported, and not among the capabilities"))
}

#[async_trait]
impl csi::controller_server::Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("create", volume = ?request.name);
        let volumes = Arc::clone(&self.volumes);
        let create = blocking(move || volumes.create(request));
        self.calls
            .run(span, async move { create.await.map(|volume| csi::CreateVolumeResponse { volume: Some(volume) }) })
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let span = info_span!("delete", volume = ?id);
        let volumes = Arc::clone(&self.volumes);
        let delete = blocking(move || volumes.delete(&id));
        self.calls.run(span, async move { delete.await.map(|()| csi::DeleteVolumeResponse {}) }).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("validate", volume = ?request.volume_id);
        let volumes = Arc::clone(&self.volumes);
        self.calls.run(span, blocking(move || volumes.validate(request))).await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let volumes = Arc::clone(&self.volumes);
        self.calls.run(info_span!("list"), blocking(move || volumes.list(&request.into_inner()))).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| {
            let rpc = csi::controller_service_capability::Rpc { r#type: rpc.into() };
            csi::ControllerServiceCapability { r#type: Some(csi::controller_service_capability::Type::Rpc(rpc)) }
        };
        let capabilities = [Rpc::CreateDeleteVolume, Rpc::ListVolumes].map(capability).into();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        Err(unimplemented("ControllerPublishVolume"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        Err(unimplemented("ControllerUnpublishVolume"))
    }

    async fn get_capacity(
        &self,
        _: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        Err(unimplemented("GetCapacity"))
    }

    async fn create_snapshot(
        &self,
        _: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        Err(unimplemented("CreateSnapshot"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        Err(unimplemented("DeleteSnapshot"))
    }

    async fn list_snapshots(
        &self,
        _: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        Err(unimplemented("ListSnapshots"))
    }

    async fn get_snapshot(
        &self,
        _: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        Err(unimplemented("GetSnapshot"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        Err(unimplemented("ControllerExpandVolume"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        Err(unimplemented("ControllerGetVolume"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        Err(unimplemented("ControllerModifyVolume"))
    }
}
