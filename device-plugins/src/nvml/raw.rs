//! The functions of NVML that `nvml-wrapper` leaves out, or wraps so that something is lost: it frees the event set of a GPU that
//! cannot be registered, and it drops the slice of an Xid and the types of events that it does not know.
#![expect(unsafe_code, reason = "functions of a C library")]

use std::ptr;
use std::time::Duration;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, EventSet};
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventTypeGpuRecoveryAction, nvmlEventTypeXidCriticalError,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as REMOTE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as REMOTE_SWITCH,
};

const XID: u64 = nvmlEventTypeXidCriticalError as u64;
const RECOVERY_ACTION: u64 = nvmlEventTypeGpuRecoveryAction as u64;

/// An event of a GPU.
pub(super) enum Event {
    /// An Xid, with the GPU instance and compute instance that it concerns.
    Xid { xid: u64, slice: Option<(u32, Option<u32>)> },
    /// Anything else: the GPU's recovery action has changed.
    Other,
}

/// The event types to register for a GPU: Xids, and changes of its recovery action if it supports them.
pub(super) fn event_types(device: &Device<'_>) -> Result<u64, NvmlError> {
    let supported = nvml_sym(device.nvml().lib().nvmlDeviceGetSupportedEventTypes.as_ref())?;
    let mut types = 0;
    // SAFETY: the handle is that of a device of a live session, and `types` outlives the call.
    nvml_try(unsafe { supported(device.handle(), &raw mut types) })?;
    if types & XID == 0 { Err(NvmlError::NotSupported) } else { Ok(types & (XID | RECOVERY_ACTION)) }
}

/// Registers these events of the GPU with the set. After a failure the set is undefined and must be freed.
pub(super) fn register(device: &Device<'_>, types: u64, set: &EventSet<'_>) -> Result<(), NvmlError> {
    let register = nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: both handles are of the same live session. Whether this fails or not, the set stays its owner's to free.
    nvml_try(unsafe { register(device.handle(), types, set.handle()) })
}

/// What a device is called in this session.
pub(super) fn handle(device: &Device<'_>) -> usize {
    // SAFETY: the handle is looked at as a number, and outlives nothing.
    unsafe { device.handle() }.addr()
}

/// Waits for the set's next event; `None` after the timeout.
pub(super) fn wait<'nvml>(
    set: &EventSet<'nvml>,
    timeout: Duration,
) -> Result<Option<(Device<'nvml>, Event)>, NvmlError> {
    let wait = nvml_sym(set.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    let (none, timeout_ms) = (u32::MAX, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1));
    let mut event = nvmlEventData_t {
        device: ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: none,
        computeInstanceId: none,
    };
    // SAFETY: the set is of a live session and only this thread uses it; `event` outlives the call.
    match nvml_try(unsafe { wait(set.handle(), &raw mut event, timeout_ms) }) {
        Err(NvmlError::Timeout) => return Ok(None),
        result => result?,
    }
    // SAFETY: NVML gives a handle of the set's session with each event.
    let device = unsafe { Device::new(event.device, set.nvml) };
    if event.eventType != XID {
        return Ok(Some((device, Event::Other)));
    }
    let instance = |id: u32| (id != none).then_some(id);
    let slice = instance(event.gpuInstanceId).map(|gpu| (gpu, instance(event.computeInstanceId)));
    Ok(Some((device, Event::Xid { xid: event.eventData, slice })))
}

/// The GPU instance and compute instance of a slice.
pub(super) fn instances(slice: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = slice.nvml().lib();
    let gpu_of = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_of = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute) = (0, 0);
    // SAFETY: the handle is that of a device of a live session, and `gpu` outlives the call.
    nvml_try(unsafe { gpu_of(slice.handle(), &raw mut gpu) })?;
    // SAFETY: as above, with `compute`.
    nvml_try(unsafe { compute_of(slice.handle(), &raw mut compute) })?;
    Ok((gpu, compute))
}

/// What is at the other end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    Gpu,
    Switch,
    Other,
}

/// What is at the other end of an active NVLink.
pub(super) fn remote(device: &Device<'_>, link: u32) -> Result<Remote, NvmlError> {
    let remote = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = 0;
    // SAFETY: the handle is that of a device of a live session, and `kind` outlives the call.
    nvml_try(unsafe { remote(device.handle(), link, &raw mut kind) })?;
    Ok(match kind {
        REMOTE_GPU => Remote::Gpu,
        REMOTE_SWITCH => Remote::Switch,
        _ => Remote::Other,
    })
}
