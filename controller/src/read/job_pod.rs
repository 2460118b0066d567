//! Reads the fields of a pod that its TrainingJob needs.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, ResourceStatus};
use larder_api::TrainingJob;
use larder_api::names::{JOB_FLAVOR_LABEL, JOB_LABEL, JOB_QUEUE_LABEL, JOB_SERVING_LABEL, JOB_UID_LABEL};

use crate::objects::{Devices, JobPod, Key, PodStage};
use crate::time::Seconds;
use larder_kube::fields::{controller, label};
use larder_kube::pod::requests::has_devices;
use larder_kube::pod::{bound_at, condition, is_refused, node, phase};

/// The prefix of the resources that larder-devices offers by default.
const LARDERS: &str = "larder.dev/";

/// Reads the fields of a pod that its TrainingJob needs; `None` if it belongs to no TrainingJob.
pub(super) fn job_pod(pod: &Pod) -> Option<JobPod> {
    let job = label(pod, JOB_LABEL)?;
    let owner = controller::<TrainingJob>(pod).filter(|owner| owner.name == job).map(|owner| owner.uid.as_str());
    // Pods of earlier versions have no such label.
    let uid = label(pod, JOB_UID_LABEL).or(owner)?;
    let stage = match phase(pod) {
        "Succeeded" => PodStage::Succeeded,
        "Failed" => PodStage::Failed,
        "Running" if condition(pod, "Ready", "True").is_some() => PodStage::Ready,
        _ if node(pod).is_empty() => PodStage::Pending,
        _ => PodStage::Bound,
    };
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let message = |there: &PodCondition| there.message.clone().unwrap_or_default();
    let reason = |there: &PodCondition| there.reason.clone().unwrap_or_default();
    Some(JobPod {
        job: Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), job),
        uid: uid.to_owned(),
        is_orphan: owner != Some(uid),
        queue: label(pod, JOB_QUEUE_LABEL).unwrap_or_default().to_owned(),
        flavor: label(pod, JOB_FLAVOR_LABEL).unwrap_or_default().to_owned(),
        stage,
        bound_at: Seconds(bound_at(pod)),
        leaving: pod.metadata.deletion_timestamp.as_ref().map(|time| Seconds(time.0.as_second())),
        is_refused: is_refused(pod),
        unscheduled: condition(pod, "PodScheduled", "False").map(message).unwrap_or_default(),
        disruption: condition(pod, "DisruptionTarget", "True").map(reason).unwrap_or_default(),
        devices: devices(pod, containers.clone()),
        exit_code: exit_code(pod),
        restarts: restarts(pod),
        result: result(pod),
        never_ran: containers.count() == 0,
        serves: label(pod, JOB_SERVING_LABEL).is_some(),
        reason: pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default(),
    })
}

/// The longest number that is kept.
const NUMBER_CHARS: usize = 32;

/// The exit code of the last program that ended with an error: that of the pod's first container, or else of another.
fn exit_code(pod: &Pod) -> Option<u8> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let failed = all.filter_map(|container| {
        let mut states = [&container.state, &container.last_state].into_iter().flatten();
        let code = states.find_map(|state| state.terminated.as_ref())?.exit_code;
        (code != 0).then(|| (!is_main(pod, container), u8::try_from(code).unwrap_or(u8::MAX)))
    });
    failed.min_by_key(|(is_other, _)| *is_other).map(|(_, code)| code)
}

/// How often the kubelet has restarted containers of a pod. Sidecars do not count: they restart whatever the pod's
/// policy.
fn restarts(pod: &Pod) -> u32 {
    let first = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars = first.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let sidecars: Vec<&str> = sidecars.map(|container| container.name.as_str()).collect();
    let statuses = pod.status.iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let counts = statuses
        .filter(|container| !sidecars.contains(&container.name.as_str()))
        .map(|container| u32::try_from(container.restart_count).unwrap_or(0));
    counts.fold(0, u32::saturating_add)
}

/// The number in the termination message of the first container of a pod that has succeeded.
fn result(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref().filter(|_| phase(pod) == "Succeeded")?;
    let main = status.container_statuses.iter().flatten().find(|container| is_main(pod, container))?;
    let text = main.state.as_ref()?.terminated.as_ref()?.message.as_deref()?.trim();
    let is_number = text.len() <= NUMBER_CHARS && text.parse::<f64>().is_ok_and(f64::is_finite);
    is_number.then(|| text.to_owned())
}

/// True for the first container of a pod.
fn is_main(pod: &Pod, container: &ContainerStatus) -> bool {
    let main = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    main.is_some_and(|main| main.name == container.name)
}

/// The health of a pod's devices, which the kubelet reports per container and resource.
fn devices<'p>(pod: &Pod, containers: impl Iterator<Item = &'p ContainerStatus>) -> Devices {
    let reported = containers.flat_map(|container| container.allocated_resources_status.iter().flatten());
    let mut reported =
        reported.filter(|of| of.resources.as_ref().is_some_and(|devices| !devices.is_empty())).peekable();
    if reported.peek().is_none() {
        let has_devices = pod.spec.as_ref().is_some_and(has_devices);
        return if has_devices { Devices::Unreported } else { Devices::None };
    }
    let is_unhealthy = |of: &&ResourceStatus| {
        of.resources.iter().flatten().any(|device| device.health.as_deref() == Some("Unhealthy"))
    };
    let unhealthy: Vec<bool> = reported.filter(is_unhealthy).map(|of| of.name.starts_with(LARDERS)).collect();
    match &unhealthy[..] {
        [] => Devices::Well,
        are_larders if are_larders.iter().all(|is_larders| *is_larders) => Devices::UnhealthyToLarder,
        _ => Devices::Unhealthy,
    }
}
