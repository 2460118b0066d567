//! Performance defaults: whole CPUs that the kubelet's CPU manager can pin, shared memory for data-loader workers, and
//! huge pages. The JobType or a role's template can turn off each of them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, PodSpec, ResourceRequirements, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::job_type::checked::{CheckedPerformance, SharedMemory};
use larder_api::quantity::{amount, milli};
use larder_api::training_job::checked::Defaults;

const SHARED_MEMORY: &str = "/dev/shm";
const HUGEPAGES: &str = "/dev/hugepages";

type Amounts = BTreeMap<String, Quantity>;

/// Applies the defaults that neither the type nor the template turns off.
pub(super) fn apply(performance: &CheckedPerformance, defaults: Defaults, spec: &mut PodSpec) {
    let of_pod = spec.resources.clone().unwrap_or_default();
    if let Some(main) = spec.containers.first_mut() {
        fill(performance, &of_pod, main);
    }
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    if performance.guaranteed && defaults.guaranteed {
        containers.for_each(equal_requests);
    }
    if performance.whole_cpus && defaults.whole_cpus {
        spec.containers.iter_mut().for_each(whole_cpus);
    }
    if defaults.shared_memory {
        shared_memory(performance.shared_memory, spec);
    }
    if performance.hugepages && defaults.hugepages {
        hugepages(spec);
    }
}

/// Fills in resources of the first container that neither the container nor the pod requests.
fn fill(performance: &CheckedPerformance, of_pod: &ResourceRequirements, main: &mut Container) {
    let given = [
        ("cpu", performance.cpus.map(|cpus| cpus.to_string())),
        ("memory", performance.memory_bytes.map(|bytes| bytes.to_string())),
    ];
    for (name, value) in given {
        let Some(value) = value else { continue };
        let resources = main.resources.get_or_insert_default();
        let lists = [&resources.limits, &resources.requests, &of_pod.limits, &of_pod.requests];
        let asks = lists.into_iter().flatten().any(|list| list.contains_key(name));
        if !asks {
            resources.limits.get_or_insert_default().insert(name.to_owned(), Quantity(value.clone()));
            resources.requests.get_or_insert_default().insert(name.to_owned(), Quantity(value));
        }
    }
}

/// Where only a request or only a limit is set, sets the other one to the same amount. Two different amounts are left
/// as they are.
fn equal_requests(container: &mut Container) {
    let Some(resources) = &mut container.resources else { return };
    let missing = |from: &Option<Amounts>, to: &Option<Amounts>| -> Amounts {
        let there = |name: &str| to.as_ref().is_some_and(|to| to.contains_key(name));
        let all = from.iter().flatten().filter(|(name, _)| !there(name));
        all.map(|(name, amount)| (name.clone(), amount.clone())).collect()
    };
    let limits = missing(&resources.requests, &resources.limits);
    let requests = missing(&resources.limits, &resources.requests);
    if !limits.is_empty() {
        resources.limits.get_or_insert_default().extend(limits);
    }
    if !requests.is_empty() {
        resources.requests.get_or_insert_default().extend(requests);
    }
}

/// Rounds requests above one CPU up to whole CPUs. A fraction of one CPU is never pinned, so rounding it up would only
/// waste CPU.
fn whole_cpus(container: &mut Container) {
    let Some(resources) = &mut container.resources else { return };
    let of = |list: &Option<Amounts>| list.as_ref().and_then(|list| milli(&list.get("cpu")?.0));
    let (Some(limit), Some(request)) = (of(&resources.limits), of(&resources.requests)) else { return };
    if limit != request || limit <= 1_000 || limit % 1_000 == 0 {
        return;
    }
    let whole = Quantity((limit / 1_000 + 1).to_string());
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        list.insert("cpu".to_owned(), whole.clone());
    }
}

/// Sizes /dev/shm, unless the pod mounts a volume there.
fn shared_memory(size: SharedMemory, spec: &mut PodSpec) {
    let mounted = |container: &Container| {
        container.volume_mounts.iter().flatten().any(|mount| mount.mount_path.trim_end_matches('/') == SHARED_MEMORY)
    };
    if spec.containers.iter().any(mounted) {
        return;
    }
    let limit = spec.containers.first().and_then(|main| {
        let limits = main.resources.as_ref()?.limits.as_ref()?;
        amount("memory", limits.get("memory")?)
    });
    let bytes = match size {
        SharedMemory::Off => return,
        SharedMemory::Bytes(bytes) => Some(bytes),
        // If the memory is unlimited, the kubelet uses the node's memory as the limit.
        SharedMemory::Percent(percent) => limit.map(|limit| (u128::from(limit) * u128::from(percent) / 100) as u64),
    };
    add_memory(spec, "larder-shm", "Memory", bytes, SHARED_MEMORY, |_| true);
}

/// Mounts huge pages in the containers that request them.
fn hugepages(spec: &mut PodSpec) {
    let asked = |container: &Container| -> Vec<String> {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let names = limits.into_iter().flatten().filter_map(|(name, _)| name.strip_prefix("hugepages-"));
        names.map(str::to_owned).collect()
    };
    let mut sizes: Vec<_> = spec.containers.iter().flat_map(asked).collect();
    sizes.sort();
    sizes.dedup();
    for size in &sizes {
        let path = if sizes.len() == 1 { HUGEPAGES.to_owned() } else { format!("{HUGEPAGES}-{size}") };
        let volume = format!("larder-hugepages-{}", size.to_lowercase());
        add_memory(spec, &volume, &format!("HugePages-{size}"), None, &path, |container| {
            asked(container).contains(size)
        });
    }
}

fn add_memory(
    spec: &mut PodSpec,
    name: &str,
    medium: &str,
    bytes: Option<u64>,
    path: &str,
    is_for: impl Fn(&Container) -> bool,
) {
    spec.volumes.get_or_insert_default().push(Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some(medium.to_owned()),
            size_limit: bytes.map(|bytes| Quantity(bytes.to_string())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    });
    for container in spec.containers.iter_mut().filter(|container| is_for(container)) {
        container.volume_mounts.get_or_insert_default().push(VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            ..VolumeMount::default()
        });
    }
}
