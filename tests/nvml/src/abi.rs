//! The functions of `nvml.h` that this library implements, as C calls them.
#![expect(unsafe_code, reason = "symbols of a C library, which write where their callers say")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventTypeGpuRecoveryAction, nvmlEventTypeXidCriticalError, nvmlFieldValue_t, nvmlMemory_v2_t,
    nvmlPciInfo_t,
};

use crate::machine::{Gpu, Link, Machine, code};
use crate::session::{self, Device};

/// A caller's pointer for a result.
#[repr(transparent)]
struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    fn put(&self, at: usize, value: T) -> Result<(), u32> {
        if self.0.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: callers of NVML pass pointers to as many values as they say there are.
        unsafe { self.0.add(at).write(value) };
        Ok(())
    }

    fn get(&self, at: usize) -> Result<T, u32> {
        if self.0.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: as above, and the functions that use this are passed initialized values.
        Ok(unsafe { self.0.add(at).read() })
    }
}

fn put_text(to: &Out<c_char>, room: c_uint, text: &str) -> Result<(), u32> {
    if text.len() >= room as usize {
        return Err(code::INSUFFICIENT_SIZE);
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        to.put(at, byte as c_char)?;
    }
    Ok(())
}

fn answer(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(code::SUCCESS)
}

/// Runs a query of the driver. Returns NVML's return code.
fn of_driver(query: impl FnOnce(&Machine) -> Result<(), u32>) -> u32 {
    answer(session::machine().and_then(|machine| query(&machine)))
}

/// Runs a query of a GPU or a slice. Returns NVML's return code.
fn of_device(handle: usize, query: impl FnOnce(Device<'_>) -> Result<(), u32>) -> u32 {
    of_driver(|machine| {
        let device = session::device(machine, handle)?;
        let (Device::Gpu(gpu) | Device::Slice(gpu, _)) = device;
        session::reach(machine, gpu)?;
        match device {
            Device::Slice(_, slice) => slice.error.map_or(Ok(()), Err)?,
            Device::Gpu(_) => {}
        }
        query(device)
    })
}

/// Runs a query of a GPU. Returns NVML's return code.
fn of_gpu(handle: usize, query: impl FnOnce(&Gpu) -> Result<(), u32>) -> u32 {
    of_device(handle, |device| match device {
        Device::Gpu(gpu) => query(gpu),
        Device::Slice(..) => Err(code::INVALID_ARGUMENT),
    })
}

fn of_link(handle: usize, link: c_uint, query: impl FnOnce(Option<&Link>) -> Result<(), u32>) -> u32 {
    of_gpu(handle, |gpu| match gpu.links.is_empty() {
        true => Err(code::NOT_SUPPORTED),
        false if link >= 18 => Err(code::INVALID_ARGUMENT),
        false => query(gpu.links.get(link as usize)),
    })
}

fn pci_info(address: &str) -> Result<nvmlPciInfo_t, u32> {
    let parts: Vec<u32> = address.split([':', '.']).filter_map(|part| u32::from_str_radix(part, 16).ok()).collect();
    let &[domain, bus, device, function] = parts.as_slice() else { return Err(code::UNKNOWN) };
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain,
        bus,
        device,
        pciDeviceId: 0x2330_10de,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    let text = format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}");
    for (to, byte) in info.busId.iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    for (to, byte) in info.busIdLegacy.iter_mut().zip(text[4..].bytes()) {
        *to = byte as c_char;
    }
    Ok(info)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    answer(session::begin())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    answer(session::end())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: Out<c_char>, room: c_uint) -> u32 {
    of_driver(|machine| put_text(&version, room, &machine.driver))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> u32 {
    of_driver(|machine| count.put(0, machine.gpus.len() as c_uint))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: Out<usize>) -> u32 {
    of_driver(|machine| {
        let gpu = machine.gpus.get(index as usize).ok_or(code::INVALID_ARGUMENT)?;
        gpu.handle_error.map_or(Ok(()), Err)?;
        handle.put(0, session::handle(&gpu.uuid))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(handle: usize, uuid: Out<c_char>, room: c_uint) -> u32 {
    of_driver(|machine| match session::device(machine, handle)? {
        Device::Gpu(gpu) => put_text(&uuid, room, &gpu.uuid),
        Device::Slice(_, slice) => put_text(&uuid, room, &slice.uuid),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(handle: usize, name: Out<c_char>, room: c_uint) -> u32 {
    of_device(handle, |device| match device {
        Device::Gpu(gpu) => put_text(&name, room, &gpu.name),
        Device::Slice(gpu, slice) => put_text(&name, room, &format!("{} MIG {}", gpu.name, slice.profile)),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(handle: usize, minor: Out<c_uint>) -> u32 {
    of_gpu(handle, |gpu| minor.put(0, gpu.minor))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumaNodeId(handle: usize, node: Out<c_uint>) -> u32 {
    of_gpu(handle, |gpu| node.put(0, gpu.numa.ok_or(code::NOT_SUPPORTED)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(handle: usize, info: Out<nvmlPciInfo_t>) -> u32 {
    of_gpu(handle, |gpu| info.put(0, pci_info(&gpu.pci)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(handle: usize, major: Out<c_int>, minor: Out<c_int>) -> u32 {
    of_gpu(handle, |gpu| {
        major.put(0, gpu.compute_capability.0)?;
        minor.put(0, gpu.compute_capability.1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: usize, info: Out<nvmlMemory_v2_t>) -> u32 {
    of_device(handle, |device| {
        let wanted = info.get(0)?;
        if wanted.version != (size_of::<nvmlMemory_v2_t>() | 2 << 24) as c_uint {
            return Err(code::INVALID_ARGUMENT);
        }
        let total = match device {
            Device::Gpu(gpu) => gpu.memory_bytes,
            Device::Slice(_, slice) => slice.memory_bytes,
        };
        info.put(0, nvmlMemory_v2_t { total, free: total, reserved: 0, used: 0, ..wanted })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(handle: usize, count: c_int, fields: Out<nvmlFieldValue_t>) -> u32 {
    of_gpu(handle, |gpu| {
        for at in 0..usize::try_from(count).map_err(|_| code::INVALID_ARGUMENT)? {
            let mut field = fields.get(at)?;
            let value = match field.fieldId {
                230 => gpu.recovery_action,
                144 => Some(u32::from(gpu.remapping_pending)),
                _ => None,
            };
            field.nvmlReturn = if value.is_some() { code::SUCCESS } else { code::NOT_SUPPORTED };
            field.valueType = 1;
            field.value.uiVal = value.unwrap_or(0);
            fields.put(at, field)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(handle: usize, current: Out<c_uint>, pending: Out<c_uint>) -> u32 {
    of_gpu(handle, |gpu| {
        let mode = u32::from(gpu.mig.ok_or(code::NOT_SUPPORTED)?);
        current.put(0, mode)?;
        pending.put(0, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(handle: usize, count: Out<c_uint>) -> u32 {
    of_gpu(handle, |_| count.put(0, 7))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(handle: usize, index: c_uint, slice: Out<usize>) -> u32 {
    of_gpu(handle, |gpu| {
        let found = gpu.slices.get(index as usize).ok_or(code::NOT_FOUND)?;
        slice.put(0, session::handle(&found.uuid))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(handle: usize, id: Out<c_uint>) -> u32 {
    of_device(handle, |device| match device {
        Device::Gpu(_) => Err(code::NOT_SUPPORTED),
        Device::Slice(_, slice) => id.put(0, slice.gpu_instance),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeInstanceId(handle: usize, id: Out<c_uint>) -> u32 {
    of_device(handle, |device| match device {
        Device::Gpu(_) => Err(code::NOT_SUPPORTED),
        Device::Slice(_, slice) => id.put(0, slice.compute_instance),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkState(handle: usize, link: c_uint, active: Out<c_uint>) -> u32 {
    of_link(handle, link, |other| active.put(0, u32::from(other.is_some())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(handle: usize, link: c_uint, kind: Out<c_uint>) -> u32 {
    of_link(handle, link, |other| match other {
        Some(Link::Gpu(_)) => kind.put(0, 0),
        Some(Link::Switch) => kind.put(0, 2),
        None => Err(code::NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: usize, link: c_uint, info: Out<nvmlPciInfo_t>) -> u32 {
    of_link(handle, link, |other| match other {
        Some(Link::Gpu(pci)) => info.put(0, pci_info(pci)?),
        Some(Link::Switch) | None => Err(code::NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(handle: usize, types: Out<c_ulonglong>) -> u32 {
    let known = nvmlEventTypeXidCriticalError | nvmlEventTypeGpuRecoveryAction;
    of_gpu(handle, |gpu| types.put(0, if gpu.events { known.into() } else { 0 }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(handle: usize, types: c_ulonglong, set: usize) -> u32 {
    of_gpu(handle, |gpu| match gpu.events && types & u64::from(nvmlEventTypeXidCriticalError) != 0 {
        true => session::register(set, gpu),
        false => Err(code::NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: Out<usize>) -> u32 {
    of_driver(|_| set.put(0, session::make_set()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: usize) -> u32 {
    answer(session::free_set(set))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(set: usize, event: Out<nvmlEventData_t>, timeout_ms: c_uint) -> u32 {
    answer(session::wait(set, Duration::from_millis(timeout_ms.into())).and_then(|next| {
        event.put(
            0,
            nvmlEventData_t {
                device: std::ptr::without_provenance_mut(next.device),
                eventType: nvmlEventTypeXidCriticalError.into(),
                eventData: next.xid,
                gpuInstanceId: next.gpu_instance.unwrap_or(u32::MAX),
                computeInstanceId: next.compute_instance.unwrap_or(u32::MAX),
            },
        )
    }))
}
