//! Which containers hold which devices, from the kubelet's list and the node's resources. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::uids::Uids;
use crate::resource::{DeviceKey, Resource};
use larder_kubelet::podresources::ListPodResourcesResponse;

/// A container, and an ID of a resource that it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    pub namespace: String,
    pub pod: String,
    /// The pod's uid; empty if it is not known.
    pub uid: String,
    pub container: String,
    pub resource: String,
    pub id: String,
}

/// The containers that hold each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held(BTreeMap<DeviceKey, BTreeSet<Holder>>);

impl Held {
    /// Reads the kubelet's answer. IDs of no resource are skipped: their devices are gone or belong to another plugin.
    /// `resources` may have a resource twice, in its former and in its current state.
    pub fn of(resources: &[Resource], listed: &ListPodResourcesResponse, uids: &Uids) -> Self {
        let mut held = Self::default();
        for pod in &listed.pod_resources {
            for container in &pod.containers {
                for given in &container.devices {
                    let same = |it: &&Resource| it.config.name.as_str() == given.resource_name;
                    for id in &given.device_ids {
                        let holder = Holder {
                            namespace: pod.namespace.clone(),
                            pod: pod.name.clone(),
                            uid: uids.of(&given.resource_name, id).unwrap_or_default().to_owned(),
                            container: container.name.clone(),
                            resource: given.resource_name.clone(),
                            id: id.clone(),
                        };
                        let units = resources.iter().filter(same).filter_map(|resource| resource.unit_of(id));
                        for device in units.flat_map(|unit| &unit.devices) {
                            held.0.entry(device.clone()).or_default().insert(holder.clone());
                        }
                    }
                }
            }
        }
        held
    }

    /// The containers that hold a device, sorted.
    pub fn by(&self, device: &DeviceKey) -> impl Iterator<Item = &Holder> {
        self.0.get(device).into_iter().flatten()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use larder_kubelet::podresources::{ContainerDevices, ContainerResources, PodResources};

    use super::*;
    use crate::config::Give;
    use crate::node::samples;
    use crate::resource::Unit;

    pub(crate) fn listed(pods: &[(&str, &str, &[&str])]) -> ListPodResourcesResponse {
        let pod = |(name, resource, ids): &(&str, &str, &[&str])| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            let given = ContainerDevices { resource_name: (*resource).to_owned(), device_ids: ids, topology: None };
            let container =
                ContainerResources { name: "main".into(), devices: vec![given], ..ContainerResources::default() };
            PodResources { name: (*name).to_owned(), namespace: "team-a".into(), containers: vec![container] }
        };
        ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() }
    }

    fn names(held: &Held, device: &DeviceKey) -> Vec<String> {
        held.by(device).map(|holder| format!("{}/{}/{}", holder.namespace, holder.pod, holder.container)).collect()
    }

    #[test]
    fn a_container_holds_the_devices_of_its_ids() {
        let (view, uids) = (samples::view(), Uids::default());
        let listed = listed(&[
            ("b", "larder.dev/hca", &["0000:20:00.0::1"]),
            ("a", "larder.dev/hca", &["0000:20:00.0::0", "0000:21:00.0::1"]),
            ("c", "larder.dev/gpu", &["GPU-1"]),
            ("d", "larder.dev/gpu", &["GPU-9"]),
            ("e", "nvidia.com/gpu", &["GPU-0"]),
        ]);
        let held = Held::of(&view.resources, &listed, &uids);
        assert_eq!(names(&held, &samples::hca(0)), ["team-a/a/main", "team-a/b/main"]);
        assert_eq!(names(&held, &samples::hca(1)), ["team-a/a/main"]);
        assert_eq!(names(&held, &samples::gpu(1)), ["team-a/c/main"]);
        assert_eq!(names(&held, &samples::gpu(0)), [""; 0]);
    }

    #[test]
    fn one_id_of_a_resource_that_gives_all_holds_all() {
        let mut resources = samples::view().resources.to_vec();
        let all = Unit { id: Unit::ALL.into(), devices: vec![samples::hca(0), samples::hca(1)], numa: [].into() };
        (resources[1].config.give, resources[1].units) = (Give::All, vec![all]);
        let held = Held::of(&resources, &listed(&[("a", "larder.dev/hca", &["all::1"])]), &Uids::default());
        for device in [samples::hca(0), samples::hca(1)] {
            assert_eq!(names(&held, &device), ["team-a/a/main"]);
        }
        let held = Held::of(&resources, &listed(&[("a", "larder.dev/hca", &["0000:99:00.0::1"])]), &Uids::default());
        assert_eq!(held, Held::default());
    }

    #[test]
    fn a_holder_has_the_uid_of_its_pod() {
        let view = samples::view();
        let checkpoint = br#"{"Data": {"PodDeviceEntries": [
            {"PodUID": "u1", "ContainerName": "main", "ResourceName": "larder.dev/gpu", "DeviceIDs": {"0": ["GPU-1"]}}]}}"#;
        let listed = listed(&[("c", "larder.dev/gpu", &["GPU-1", "GPU-0"])]);
        let held = Held::of(&view.resources, &listed, &Uids::parse(checkpoint).unwrap());
        let uid = |device| held.by(&device).next().unwrap().uid.clone();
        assert_eq!((uid(samples::gpu(1)), uid(samples::gpu(0))), ("u1".to_owned(), String::new()));
    }
}
