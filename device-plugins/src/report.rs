//! The report of all devices of the node, which `GET /devices` serves: a [`View`] and the pods in the words of
//! [`larder_devices_api::report`].

use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use larder_devices_api::report::{self as wire, DeviceKind, Report};

use crate::machine::{CharDevice, Gid, Gpu, Hca, Machine, MigSlice, Place, Port};
use crate::node::holders::Holder;
use crate::node::pods::Known;
use crate::resource::{DeviceKey, Resource};
use crate::view::View;

/// The report of a view.
pub fn of(node: &str, view: &View, known: &Known) -> Report {
    let Machine { gpus, hcas, gpu_driver, rdma_mode, warnings, gpu_warnings, .. } = &*view.machine;
    let mut devices = Vec::new();
    for gpu in gpus {
        let key = DeviceKey::Gpu(gpu.uuid.clone());
        devices.push(device(view, known, key, (format!("nvidia{}", gpu.minor), &gpu.place), of_gpu(gpu)));
        for slice in gpu.slices() {
            let key = DeviceKey::Slice(slice.uuid.clone());
            devices.push(device(view, known, key, (slice.profile.clone(), &gpu.place), of_slice(gpu, slice)));
        }
    }
    for hca in hcas {
        devices.push(device(view, known, DeviceKey::Hca(hca.place.pci), (hca.name.clone(), &hca.place), of_hca(hca)));
    }
    let excluded = view.excluded.iter().map(|it| wire::Excluded { device: it.device.to_string(), why: it.to_string() });
    let warnings = gpu_warnings.iter().chain(warnings);
    let missing = view.missing();
    Report {
        node: node.to_owned(),
        gpu_driver: gpu_driver.clone(),
        rdma_mode: rdma_mode.name().to_owned(),
        resources: view.resources.iter().map(resource).collect(),
        devices,
        excluded: excluded.collect(),
        warnings: warnings.map(|it| wire::Warning { at: it.at.clone(), why: it.why.clone() }).collect(),
        missing: missing.all().map(|(part, why)| (part.to_owned(), why.map(str::to_owned))).into(),
        refused_config: view.refused_config.as_deref().map(str::to_owned),
        pods_trouble: known.trouble.clone(),
    }
}

fn resource(resource: &Resource) -> wire::Resource {
    let config = &resource.config;
    wire::Resource {
        name: config.name.to_string(),
        kind: config.kind.name().to_owned(),
        mode: config.mode.name().to_owned(),
        devices: resource.devices().count() as u64,
        ids: resource.ids().count() as u64,
    }
}

fn device(
    view: &View,
    known: &Known,
    key: DeviceKey,
    (name, place): (String, &Place),
    kind: DeviceKind,
) -> wire::Device {
    let offers = view.resources.iter().flat_map(|resource| {
        let units = resource.units.iter().filter(|unit| unit.devices.contains(&key));
        units.map(|unit| wire::Offer {
            name: resource.config.name.to_string(),
            kind: resource.config.kind.name().to_owned(),
            mode: resource.config.mode.name().to_owned(),
            id: unit.id.clone(),
            share: resource.config.share,
        })
    });
    let fault = view.faults.get(&key).map(|fault| wire::Fault {
        reason: fault.reason.name().to_owned(),
        message: fault.message.clone(),
        since: rfc3339(fault.since),
        recovery: fault.recovery.clone(),
    });
    wire::Device {
        id: key.to_string(),
        name,
        place: location(place),
        kind,
        resources: offers.collect(),
        pods: known.held.by(&key).map(holder).collect(),
        fault,
    }
}

fn location(place: &Place) -> wire::Location {
    wire::Location {
        pci: place.pci.to_string(),
        root: place.root.clone(),
        numa: place.numa,
        switch: place.switch().map(|switch| switch.to_string()),
    }
}

fn holder(holder: &Holder) -> wire::Holder {
    let Holder { namespace, pod, container, resource, id, uid: _ } = holder.clone();
    wire::Holder { namespace, pod, container, resource, id }
}

fn of_gpu(gpu: &Gpu) -> DeviceKind {
    DeviceKind::Gpu(wire::Gpu {
        model: gpu.model.clone(),
        family: gpu.family.name().to_owned(),
        memory_bytes: gpu.memory_bytes,
        mig: gpu.mig.is_some(),
    })
}

fn of_slice(gpu: &Gpu, slice: &MigSlice) -> DeviceKind {
    DeviceKind::Mig(wire::Slice { gpu: gpu.uuid.clone(), memory_bytes: slice.memory_bytes })
}

fn of_hca(hca: &Hca) -> DeviceKind {
    DeviceKind::Hca(wire::Hca {
        node_guid: hca.node_guid.clone(),
        link_layer: hca.ports.first().map(|port| port.link_layer).unwrap_or_default().name().to_owned(),
        rate_gbps: hca.ports.iter().map(|port| port.rate_gbps).fold(0.0, f64::max),
        driver: hca.driver.clone(),
        netdevs: hca.netdevs.clone(),
        physical_function: hca.physical_function.map(|function| function.to_string()),
        ports: hca.ports.iter().map(port).collect(),
    })
}

fn port(port: &Port) -> wire::Port {
    wire::Port {
        number: port.number,
        link_layer: port.link_layer.name().to_owned(),
        state: port.state.to_string(),
        phys_state: port.phys_state.to_string(),
        rate_gbps: port.rate_gbps,
        lid: port.lid,
        gids: port.gids.iter().map(gid).collect(),
        umad: port.umad.as_ref().map(char_device),
        issm: port.issm.as_ref().map(char_device),
    }
}

fn gid(gid: &Gid) -> wire::Gid {
    let groups = gid.gid.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    wire::Gid {
        index: gid.index,
        gid: groups.collect::<Vec<_>>().join(":"),
        gid_type: gid.gid_type.name().to_owned(),
        netdev: gid.netdev.clone(),
    }
}

fn char_device(device: &CharDevice) -> wire::CharDevice {
    wire::CharDevice { name: device.name.clone(), numbers: device.numbers }
}

/// A time in whole seconds. A time outside the calendar is 1970.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or_default();
    i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::config::{Kind, ResourceName};
    use crate::health::capabilities::Capabilities;
    use crate::health::{Fault, Reason};
    use crate::machine::{CharDevice, Gid, Warning};
    use crate::node::holders::Held;
    use crate::node::holders::tests::listed;
    use crate::node::samples;
    use crate::node::uids::Uids;
    use crate::resource::{Excluded, Exclusion};

    fn shown(view: &View, known: &Known) -> Value {
        serde_json::to_value(of("n1", view, known)).unwrap()
    }

    #[test]
    fn a_device_is_reported_with_its_location_resource_and_fault() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_500);
        let fault = Fault {
            reason: Reason::PortDown,
            message: "port 1 is DOWN".into(),
            since,
            recovery: "port 1 is ACTIVE for 30 s".into(),
        };
        let mut view = samples::view();
        view.faults = Arc::new([(samples::hca(1), fault)].into());
        let report = shown(&view, &Known::default());
        let ids: Vec<&str> =
            report["devices"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["GPU-0", "GPU-1", "0000:20:00.0", "0000:21:00.0"]);
        let gpu = &report["devices"][0];
        let expected = json!({
            "id": "GPU-0", "name": "nvidia0", "kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "family": "other",
            "memoryBytes": 81559_u64 << 20, "mig": false, "fault": null, "pods": [],
            "place": {"pci": "0000:10:00.0", "root": "pci0000:10", "numa": 0},
            "resources": [{"name": "larder.dev/gpu", "kind": "gpu", "mode": "plugin", "id": "GPU-0", "share": 1}],
        });
        assert_eq!(*gpu, expected);
        let hca = &report["devices"][3];
        assert_eq!(
            (&hca["kind"], &hca["linkLayer"], &hca["rateGbps"]),
            (&json!("hca"), &json!("InfiniBand"), &json!(400.0))
        );
        assert_eq!((&hca["resources"][0]["share"], &hca["ports"][0]["state"]), (&json!(2), &json!("ACTIVE")));
        let fault = json!({
            "reason": "PortDown", "message": "port 1 is DOWN", "since": "1970-01-01T00:16:40Z",
            "ends": "port 1 is ACTIVE for 30 s"
        });
        assert_eq!(hca["fault"], fault);
    }

    #[test]
    fn exclusions_warnings_missing_components_and_a_refused_configuration_are_reported() {
        let mut view = samples::view();
        let slices = vec![MigSlice { uuid: "MIG-1".into(), profile: "1g.10gb".into(), ..MigSlice::default() }];
        let mut machine = (*view.machine).clone();
        machine.gpus[0].mig = Some(slices);
        machine.warnings = vec![Warning { at: "class/infiniband/mlx5_9".into(), why: "a dangling link".into() }];
        view.machine = Arc::new(machine);
        view.excluded = Arc::new([excluded()]);
        view.capabilities = Capabilities { nri: Some("it is away".into()), ..view.capabilities };
        view.refused_config = Some("line 3".into());
        let known = Known { trouble: Some("no kubelet".into()), ..Known::default() };
        let report = shown(&view, &known);
        let slice = &report["devices"][1];
        assert_eq!(
            (&slice["kind"], &slice["gpu"], &slice["name"]),
            (&json!("mig"), &json!("GPU-0"), &json!("1g.10gb"))
        );
        assert_eq!(report["withheld"], json!([{"device": "0000:20:00.0", "why": excluded().to_string()}]));
        assert_eq!(report["oddities"][0]["why"], "a dangling link");
        assert_eq!(report["missing"], json!({"controller": null, "hook": null, "nri": "it is away"}));
        assert_eq!((&report["refusedConfig"], &report["podsTrouble"]), (&json!("line 3"), &json!("no kubelet")));
    }

    #[test]
    fn each_resource_is_reported_with_its_number_of_devices_even_if_none() {
        let mut resources = samples::view().resources.to_vec();
        resources.push(samples::resource("larder.dev/mig", Kind::Mig, 1, &[]));
        let view = View { resources: resources.into(), ..samples::view() };
        let of = |name: &str, kind: &str, devices: u64, ids: u64| json!({"name": name, "kind": kind, "mode": "plugin", "devices": devices, "ids": ids});
        let expected =
            [of("larder.dev/gpu", "gpu", 2, 2), of("larder.dev/hca", "rdma", 2, 4), of("larder.dev/mig", "mig", 0, 0)];
        assert_eq!(shown(&view, &Known::default())["resources"], json!(expected));
    }

    #[test]
    fn only_components_that_the_limits_need_are_missing() {
        let mut view = samples::view();
        view.capabilities = Capabilities::default();
        let missing = |view: &View| shown(view, &Known::default())["missing"].clone();
        assert_eq!(missing(&view)["nri"], "NRI is not known yet");
        let mut resources = view.resources.to_vec();
        if let Some(limits) = &mut resources[1].config.limits {
            (limits.hca_handles, limits.memlock) = (Some(2), None);
        }
        view.resources = resources.clone().into();
        assert_eq!(
            (&missing(&view)["nri"], &missing(&view)["hook"]),
            (&Value::Null, &json!("the hook is not known yet"))
        );
        resources[1].units.clear();
        view.resources = resources.into();
        assert_eq!(missing(&view), json!({"controller": null, "hook": null, "nri": null}));
    }

    #[test]
    fn addresses_are_texts_as_sysfs_writes_them() {
        let report = shown(&full(), &Known::default());
        let hca = &report["devices"][3];
        assert_eq!(hca["nodeGuid"], "0c42:a103:0065:1a2b");
        assert_eq!(hca["ports"][0]["gids"][0]["gid"], "fe80:0000:0000:0000:0000:0000:0000:1a2b");
        assert_eq!((&hca["ports"][0]["state"], &hca["ports"][0]["physState"]), (&json!("ACTIVE"), &json!("LinkUp")));
    }

    fn excluded() -> Excluded {
        let resource = ResourceName::new("larder.dev/rail").unwrap();
        Excluded { device: samples::hca(0), resource, why: Exclusion::NoUverbs }
    }

    /// A view whose report has every key.
    fn full() -> View {
        let mut view = samples::view();
        let machine = Arc::make_mut(&mut view.machine);
        machine.gpus[0].mig =
            Some(vec![MigSlice { uuid: "MIG-1".into(), profile: "1g.10gb".into(), ..MigSlice::default() }]);
        machine.warnings = vec![Warning { at: "a".into(), why: "b".into() }];
        let hca = &mut machine.hcas[0];
        hca.node_guid = "0c42:a103:0065:1a2b".into();
        hca.place.bridges = (1..4).map(|n| format!("0000:0{n}:00.0").parse().unwrap()).collect();
        let node = |name: &str| Some(CharDevice { name: name.into(), numbers: (231, 0) });
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[14], gid[15]) = (0xfe, 0x80, 0x1a, 0x2b);
        let port = &mut hca.ports[0];
        port.gids = vec![Gid { index: 3, gid, netdev: "ib0".into(), ..Gid::default() }];
        (port.umad, port.issm) = (node("umad0"), node("issm0"));
        let fault = Fault {
            reason: Reason::PortDown,
            message: "port 1 is DOWN".into(),
            since: SystemTime::UNIX_EPOCH,
            recovery: "port 1 is ACTIVE for 30 s".into(),
        };
        view.faults = Arc::new([(samples::hca(0), fault)].into());
        view.excluded = Arc::new([excluded()]);
        view
    }

    /// The paths of all keys, such as `devices[].place.pci`; not of objects.
    fn paths(of: &Value, at: &str, to: &mut BTreeSet<String>) {
        match of {
            Value::Object(keys) => keys.iter().for_each(|(key, value)| {
                let dot = if at.is_empty() { "" } else { "." };
                paths(value, &format!("{at}{dot}{key}"), to);
            }),
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), to));
            }
            _ => to.extend([at.to_owned()]),
        }
    }

    /// The paths of the table of docs/DEVICES.md. A row tells of one key, or of several of an object: `a[]`: `b`, `c`.
    fn documented() -> BTreeSet<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/DEVICES.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, table) = text.split_once("| field of the JSON | meaning |\n|---|---|\n").unwrap();
        let mut documented = BTreeSet::new();
        for row in table.lines().take_while(|line| line.starts_with('|')) {
            let cell = row.split('|').nth(1).unwrap();
            let mut words = cell.split('`').skip(1).step_by(2);
            let first = words.next().unwrap();
            let count = documented.len();
            documented.extend(words.map(|key| format!("{first}.{key}")));
            if documented.len() == count {
                documented.insert(first.to_owned());
            }
        }
        documented
    }

    #[test]
    fn the_documented_table_has_every_key_and_no_other() {
        let view = full();
        let listed = listed(&[("a", "larder.dev/hca", &["0000:20:00.0::0"])]);
        let held = Held::of(&view.resources, &listed, &Uids::default());
        let known = Known { held, ..Known::default() };
        let mut printed = BTreeSet::new();
        paths(&shown(&view, &known), "", &mut printed);
        // Of a device in service and of one that is not, and of one that nobody holds.
        for empty in ["devices[].fault", "devices[].pods", "devices[].resources", "devices[].ports[].gids"] {
            printed.remove(empty);
        }
        assert_eq!(documented(), printed);
    }

    /// The JSON is a promise to programs that read it: its bytes change only on purpose. With `LARDER_WRITE_GOLDEN=1` the file is
    /// replaced.
    #[test]
    fn the_json_of_a_full_report_is_the_golden_file() {
        let view = full();
        let listed = listed(&[("a", "larder.dev/hca", &["0000:20:00.0::0"])]);
        let held = Held::of(&view.resources, &listed, &Uids::default());
        let known = Known { held, trouble: Some("no kubelet".into()), ..Known::default() };
        let text = serde_json::to_string_pretty(&of("n1", &view, &known)).unwrap() + "\n";
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("api/golden/report.json");
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&golden, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(golden).unwrap());
    }

    #[test]
    fn equal_nodes_give_equal_bytes_and_times_outside_the_calendar_are_1970() {
        let text = || serde_json::to_string(&of("n1", &samples::view(), &Known::default())).unwrap();
        assert_eq!(text(), text());
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 50)), "1970-01-01T00:00:00Z");
    }
}
