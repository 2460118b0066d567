//! One round of queries: the GPUs, their slices and links, and which of them answer.

use std::collections::BTreeMap;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_RETIRED_PENDING,
};

use super::news::RecoveryAction;
use super::raw::{self, Remote};
use crate::machine::{Gpu, GpuFamily, MigSlice, PciAddress, Place, Warning};

/// The answers of a round.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// By PCI address. A GPU that fails is as last read.
    pub(super) gpus: Vec<Gpu>,
    /// By UUID: the recovery action, or why the GPU cannot be queried.
    pub(super) answers: BTreeMap<String, Result<RecoveryAction, String>>,
    pub(super) warnings: Vec<Warning>,
}

/// A failure of one GPU.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    #[error("{0:?} is not a PCI address")]
    Address(String),
    #[error("slice {0}: {1}")]
    Slice(u32, NvmlError),
}

/// Queries the health and the slices of every GPU, and all attributes of unknown GPUs or if `everything` is wanted.
///
/// # Errors
/// If the driver as a whole fails.
pub(super) fn read(nvml: &Nvml, known: &[Gpu], everything: bool) -> Result<Reading, NvmlError> {
    let mut reading = Reading::default();
    let mut unreachable = Vec::new();
    let mut links = BTreeMap::new();
    for index in 0..nvml.device_count()? {
        let device = match nvml.device_by_index(index).and_then(|device| Ok((device.uuid()?, device))) {
            Ok(device) => device,
            Err(error) => {
                unreachable.push((index, error.to_string()));
                continue;
            }
        };
        let (uuid, device) = device;
        let known = known.iter().find(|gpu| gpu.uuid == uuid);
        match gpu(&device, &uuid, (known, everything), &mut reading.warnings) {
            Ok((gpu, action)) => {
                if everything || known.is_none() {
                    links.insert(uuid.clone(), Links::of(&device));
                }
                reading.gpus.push(gpu);
                reading.answers.insert(uuid, Ok(action));
            }
            Err(trouble) => reading.fail(&uuid, known, trouble.to_string()),
        }
    }
    // Without a handle there is no UUID. If a known GPU is missing, the error is attributed to it.
    let missed = known.iter().filter(|gpu| !reading.answers.contains_key(&gpu.uuid)).collect::<Vec<_>>();
    let errors: Vec<String> = unreachable.iter().map(|(index, why)| format!("GPU {index}: {why}")).collect();
    if missed.is_empty() {
        let at = "nvmlDeviceGetHandleByIndex".to_owned();
        reading.warnings.extend(errors.into_iter().map(|why| Warning { at: at.clone(), why }));
    } else if !errors.is_empty() {
        for gpu in missed {
            reading.fail(&gpu.uuid, Some(gpu), errors.join("; "));
        }
    }
    reading.gpus.sort_by_key(|gpu| gpu.place.pci);
    reading.connect(&links);
    Ok(reading)
}

impl Reading {
    fn fail(&mut self, uuid: &str, known: Option<&Gpu>, why: String) {
        match known {
            Some(gpu) => self.gpus.push(gpu.clone()),
            None => self.warnings.push(Warning { at: uuid.to_owned(), why: why.clone() }),
        }
        self.answers.insert(uuid.to_owned(), Err(why));
    }

    /// Fills in the peers of each GPU in `links`.
    fn connect(&mut self, links: &BTreeMap<String, Links>) {
        let uuids: BTreeMap<PciAddress, String> =
            self.gpus.iter().map(|gpu| (gpu.place.pci, gpu.uuid.clone())).collect();
        for gpu in &mut self.gpus {
            let Some(own) = links.get(&gpu.uuid) else { continue };
            let direct = own.gpus.iter().filter_map(|(pci, count)| Some((uuids.get(pci)?.clone(), *count)));
            gpu.nvlinks = direct.collect();
            for (peer, theirs) in links.iter().filter(|(peer, _)| **peer != gpu.uuid) {
                let shared = own.switches.min(theirs.switches);
                if shared > 0 {
                    *gpu.nvlinks.entry(peer.clone()).or_default() += shared;
                }
            }
        }
    }
}

/// Reads a GPU. Attributes that hardly change come from the known one, unless `everything` is wanted.
fn gpu(
    device: &Device<'_>,
    uuid: &str,
    (known, everything): (Option<&Gpu>, bool),
    warnings: &mut Vec<Warning>,
) -> Result<(Gpu, RecoveryAction), Trouble> {
    // GPUs that share the CPU's memory do not report it. For all others this query reaches the GPU, so it shows that the GPU answers.
    let memory = optional(device.memory_info())?;
    let mut gpu = match known.filter(|_| !everything) {
        Some(known) => known.clone(),
        None => {
            let bus_id = device.pci_info()?.bus_id;
            let pci = bus_id.parse().map_err(|_| Trouble::Address(bus_id))?;
            let capability = device.cuda_compute_capability()?;
            Gpu {
                uuid: uuid.to_owned(),
                model: device.name()?,
                family: family(capability.major, capability.minor),
                minor: device.minor_number()?,
                memory_bytes: memory.map_or(0, |memory| memory.total),
                place: Place { pci, ..Place::default() },
                ..Gpu::default()
            }
        }
    };
    let is_mig = optional(device.mig_mode())?.is_some_and(|mode| mode.current == 1);
    gpu.mig = if is_mig { Some(slices(device, uuid, known, warnings)?) } else { None };
    Ok((gpu, recovery(device)?))
}

/// The answer, or `None` if this GPU or driver does not support the query.
fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    use NvmlError::{FailedToLoadSymbol, FunctionNotFound, InvalidArg, NotSupported, UnexpectedVariant};
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(FailedToLoadSymbol(_) | FunctionNotFound | InvalidArg | NotSupported | UnexpectedVariant(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn family(major: i32, minor: i32) -> GpuFamily {
    match (major, minor) {
        (8, 9) => GpuFamily::Ada,
        (8, _) => GpuFamily::Ampere,
        (9, _) => GpuFamily::Hopper,
        (10..=12, _) => GpuFamily::Blackwell,
        _ => GpuFamily::Other,
    }
}

/// The slices of a GPU, which fails if one of those that were known may have failed.
fn slices(
    device: &Device<'_>,
    uuid: &str,
    known: Option<&Gpu>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<MigSlice>, Trouble> {
    let (mut slices, mut failed) = (Vec::<MigSlice>::new(), Vec::new());
    for index in 0..device.mig_device_count()? {
        let found = match device.mig_device_by_index(index) {
            Err(NvmlError::NotFound) => continue,
            found => found,
        };
        let name = found.as_ref().ok().and_then(|found| found.uuid().ok());
        match found.and_then(|found| slice(&found)) {
            Ok(slice) => slices.push(slice),
            Err(error) => failed.push((index, name, error)),
        }
    }
    let is_missed = |known: &&MigSlice| !slices.iter().any(|slice| slice.uuid == known.uuid);
    let missed: Vec<&MigSlice> = known.into_iter().flat_map(|gpu| gpu.slices()).filter(is_missed).collect();
    for (index, name, error) in failed {
        if missed.iter().any(|missed| name.as_ref().is_none_or(|name| *name == missed.uuid)) {
            return Err(Trouble::Slice(index, error));
        }
        warnings.push(Warning { at: format!("slice {index} of {uuid}"), why: error.to_string() });
    }
    slices.sort_by_key(|slice| (slice.gpu_instance, slice.compute_instance));
    Ok(slices)
}

fn slice(device: &Device<'_>) -> Result<MigSlice, NvmlError> {
    let (gpu_instance, compute_instance) = raw::instances(device)?;
    let name = device.name()?;
    Ok(MigSlice {
        uuid: device.uuid()?,
        profile: profile(&name).to_owned(),
        gpu_instance,
        compute_instance,
        memory_bytes: device.memory_info()?.total,
    })
}

/// The profile in the name of a slice, such as `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
fn profile(name: &str) -> &str {
    name.rsplit_once(" MIG ").map_or(name, |(_, profile)| profile)
}

/// The GPU's recovery action. Older drivers only report that memory remapping waits for a reset.
fn recovery(device: &Device<'_>) -> Result<RecoveryAction, NvmlError> {
    let fields = [NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_RETIRED_PENDING];
    let samples = optional(device.field_values_for(&fields.map(FieldId)))?.unwrap_or_default();
    let mut values = Vec::new();
    for sample in samples {
        values.push(optional(sample.and_then(|sample| sample.value))?.map(number));
    }
    let waits = values.iter().skip(1).flatten().any(|value| *value != 0);
    Ok(match values.first().copied().flatten() {
        Some(action) => RecoveryAction::from(action),
        None if waits => RecoveryAction::GpuReset,
        None => RecoveryAction::Unsupported,
    })
}

fn number(value: nvml_wrapper::enums::device::SampleValue) -> u32 {
    use nvml_wrapper::enums::device::SampleValue::{F64, I64, U32, U64};
    match value {
        U32(value) => value,
        U64(value) => u32::try_from(value).unwrap_or(u32::MAX),
        I64(value) => u32::try_from(value).unwrap_or(u32::MAX),
        F64(value) => value as u32,
    }
}

/// The active NVLinks of a GPU.
#[derive(Debug, Default)]
struct Links {
    gpus: BTreeMap<PciAddress, u32>,
    switches: u32,
}

impl Links {
    /// A link that cannot be queried counts as none, which is also the answer of GPUs without links.
    fn of(device: &Device<'_>) -> Self {
        let mut links = Self::default();
        for link in 0..NVML_NVLINK_MAX_LINKS {
            let wrapper = device.link_wrapper_for(link);
            match wrapper.is_active() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => break,
            }
            match raw::remote(device, link) {
                Ok(Remote::Switch) => links.switches += 1,
                Ok(Remote::Gpu) => {
                    let pci = wrapper.remote_pci_info().ok().and_then(|info| info.bus_id.parse().ok());
                    if let Some(pci) = pci {
                        *links.gpus.entry(pci).or_default() += 1;
                    }
                }
                Ok(Remote::Other) | Err(_) => {}
            }
        }
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_follow_from_compute_capabilities() {
        let families = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 0)].map(|(a, b)| family(a, b));
        use GpuFamily::{Ada, Ampere, Blackwell, Hopper, Other};
        assert_eq!(families, [Other, Ampere, Ampere, Ada, Hopper, Blackwell, Blackwell]);
    }

    #[test]
    fn names_of_slices_end_with_their_profiles() {
        assert_eq!(profile("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"), "1c.3g.20gb");
        assert_eq!(profile("something else"), "something else");
    }
}
