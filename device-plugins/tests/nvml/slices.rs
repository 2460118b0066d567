//! Slices of GPUs.

use larder_devices::machine::{Gpu, MigSlice};
use larder_devices::nvml::{DriverNews, RecoveryAction};
use larder_testkit::FakeNvml;
use larder_testkit::nvml::{Machine, Slice, Xid, code};

use crate::{Driver, says};

#[tokio::test]
async fn slices_are_reported_at_first_and_after_a_change() {
    let slice = |gi, ci, profile: &str| Slice {
        uuid: format!("MIG-{gi}-{ci}"),
        profile: profile.to_owned(),
        gpu_instance: gi,
        compute_instance: ci,
        memory_bytes: 10 << 30,
        error: None,
    };
    let mut machine = Machine::h100s(1);
    machine.gpus[0].mig = Some(true);
    machine.gpus[0].slices = vec![slice(9, 0, "1g.10gb"), slice(1, 1, "1c.3g.40gb")];
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let found = |slice: &Slice| MigSlice {
        uuid: slice.uuid.clone(),
        profile: slice.profile.clone(),
        gpu_instance: slice.gpu_instance,
        compute_instance: slice.compute_instance,
        memory_bytes: slice.memory_bytes,
    };
    let gpus = driver.gpus().await;
    let slices = &machine.gpus[0].slices;
    assert_eq!(gpus[0].mig.as_deref(), Some(&[found(&slices[1]), found(&slices[0])][..]));

    machine.gpus[0].slices.remove(0);
    nvml.set(&machine);
    assert_eq!(driver.gpus().await[0].slices(), [found(&slice(1, 1, "1c.3g.40gb"))]);
    // An Xid of a slice names the slice. An Xid of a GPU instance names only the instance.
    for compute_instance in [Some(1), None] {
        let gpu = machine.gpus[0].uuid.clone();
        machine.xids.push(Xid { gpu: gpu.clone(), xid: 94, gpu_instance: Some(1), compute_instance });
        nvml.set(&machine);
        assert_eq!(driver.xid().await, (gpu, Some((1, compute_instance)), 94));
    }
    driver.end().await;
}

// SEMANTICS: D16
#[tokio::test]
async fn a_slice_that_fails_stays_in_the_list_and_its_gpu_fails() {
    let slice = |gpu_instance| Slice { uuid: format!("MIG-{gpu_instance}"), gpu_instance, ..Slice::default() };
    let mut machine = Machine::h100s(2);
    machine.gpus[1].mig = Some(true);
    machine.gpus[1].slices = vec![slice(1), slice(2)];
    let cut = machine.gpus[1].uuid.clone();
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let slices = |gpus: &[Gpu]| gpus[1].slices().iter().map(|slice| slice.gpu_instance).collect::<Vec<_>>();
    assert_eq!(slices(&driver.gpus().await), [1, 2]);
    assert_eq!(driver.recovery(&cut).await, RecoveryAction::None);
    machine.gpus[1].slices[0].error = Some(code::UNKNOWN);
    nvml.set(&machine);
    let (gpu, why) = driver.failed_gpu().await;
    assert_eq!(gpu, cut);
    says(&why, &["slice 0: "]);
    driver.until(DriverNews::Answered).await;
    machine.gpus[1].slices[0].error = None;
    nvml.set(&machine);
    assert_eq!(driver.recovery(&cut).await, RecoveryAction::None);
    // A removed slice is not waited for. A slice that never answered is a warning.
    machine.gpus[1].slices[1] = Slice { error: Some(code::UNKNOWN), ..slice(3) };
    nvml.set(&machine);
    let (gpus, warnings) = driver
        .next(|news| match news {
            DriverNews::Gpus { gpus, warnings, .. } => Some((gpus.clone(), warnings.clone())),
            _ => None,
        })
        .await;
    assert_eq!((slices(&gpus), warnings.len()), (vec![1], 1));
    says(&warnings, &["slice 1 of", &cut]);
    driver.until(DriverNews::Answered).await;
    let failed = driver.seen.iter().filter(|news| matches!(news, DriverNews::GpuFailed { .. }));
    assert_eq!(failed.count(), 1);
    driver.end().await;
}
