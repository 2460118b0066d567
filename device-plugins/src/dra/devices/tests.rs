use serde_json::{Value, json};

use super::super::samples::{rails, view, with_faults};
use super::*;
use crate::node::{labels, samples};

fn told(view: &View) -> Value {
    serde_json::to_value(devices(view, &BTreeSet::new())).unwrap()
}

fn attribute<'v>(device: &'v Value, name: &str) -> &'v Value {
    &device["attributes"][name]["string"]
}

#[test]
fn a_device_has_its_place_its_kind_and_its_memory() {
    let devices = told(&view(Mode::Dra, Mode::Dra));
    let gpu = json!({
        "name": "gpu-0",
        "attributes": {
            "resource": {"string": "larder.dev/gpu"}, "kind": {"string": "gpu"}, "uuid": {"string": "GPU-0"},
            "model": {"string": "NVIDIA H100 80GB HBM3"}, "driverVersion": {"string": "570.86.15"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:10:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    });
    assert_eq!(devices[0], gpu);
    // Two containers may have the HCA.
    let hca = json!({
        "name": "hca-0000-20-00-0", "allowMultipleAllocations": true,
        "attributes": {
            "resource": {"string": "larder.dev/hca"}, "kind": {"string": "hca"}, "name": {"string": "mlx5_0"},
            "linkLayer": {"string": "InfiniBand"}, "rateGbps": {"int": 400},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:20:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
        "capacity": {"shares": {"value": "2", "requestPolicy": {"default": "1", "validValues": ["1"]}}},
    });
    assert_eq!(devices[2], hca);
    assert_eq!(devices.as_array().unwrap().len(), 4);
    assert_eq!(told(&view(Mode::Plugin, Mode::Plugin)), json!([]));
}

#[test]
fn an_hca_has_its_driver_and_the_rate_that_the_nodes_label_has() {
    let mut machine = (*samples::view().machine).clone();
    machine.hcas[0].driver = "mlx5_core".into();
    for (rate, whole) in [(2.5, json!({"int": 3})), (54.54, json!({"int": 55})), (0.4, Value::Null)] {
        machine.hcas.iter_mut().flat_map(|hca| &mut hca.ports).for_each(|port| port.rate_gbps = rate);
        let view = View { machine: machine.clone().into(), ..view(Mode::Dra, Mode::Dra) };
        let hca = &told(&view)[2];
        assert_eq!((attribute(hca, "kernelDriver"), &hca["attributes"]["rateGbps"]), (&json!("mlx5_core"), &whole));
        let label = labels::of(&machine).get(labels::FABRIC_RATE).and_then(|label| label.parse::<u32>().ok());
        assert_eq!(whole["int"], json!(label));
    }
}

#[test]
fn the_devices_of_a_rail_are_two_that_find_each_other() {
    let devices = told(&rails());
    let shown = |device: &Value| {
        let text = |name| attribute(device, name).as_str().unwrap_or_default().to_owned();
        format!("{} {} {} {}", device["name"].as_str().unwrap(), text("kind"), text("rail"), text("resource"))
    };
    let shown: Vec<String> = devices.as_array().unwrap().iter().map(shown).collect();
    let rail = "larder.dev/rail";
    let expected = [
        format!("gpu-0 gpu GPU-0 {rail}"),
        format!("gpu-1 gpu GPU-1 {rail}"),
        format!("hca-0000-20-00-0 hca GPU-0 {rail}"),
        format!("hca-0000-21-00-0 hca GPU-1 {rail}"),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_slice_has_the_location_of_its_gpu() {
    let mut machine = (*samples::view().machine).clone();
    machine.gpus[1].mig = Some(vec![MigSlice {
        uuid: "MIG-5".into(),
        profile: "1g.10gb".into(),
        memory_bytes: 10 << 30,
        ..MigSlice::default()
    }]);
    let mut resource = samples::resource("larder.dev/mig", Kind::Mig, 1, &[DeviceKey::Slice("MIG-5".into())]);
    resource.config.mode = Mode::Dra;
    let view = View { machine: machine.into(), resources: [resource].into(), ..View::default() };
    let devices = told(&view);
    assert_eq!((&devices[0]["name"], &devices[0]["capacity"]["memory"]["value"]), (&json!("mig-5"), &json!("10Gi")));
    for (name, value) in [("gpu", "GPU-1"), ("profile", "1g.10gb"), ("resource.kubernetes.io/pciBusID", "0000:11:00.0")]
    {
        assert_eq!(attribute(&devices[0], name), value);
    }
}

#[test]
fn a_device_out_of_service_is_tainted_and_one_that_is_held_is_left_out() {
    let faults = [(samples::gpu(0), Reason::GpuFault), (samples::gpu(1), Reason::HeldElsewhere)];
    let view = with_faults(view(Mode::Dra, Mode::Plugin), &faults);
    let devices = devices(&view, &BTreeSet::new());
    let taint = json!([{
        "key": "larder.dev/fault", "value": "GpuFault", "effect": "NoSchedule", "timeAdded": "1970-01-01T00:00:00Z"
    }]);
    assert_eq!(serde_json::to_value(&devices[0]).unwrap()["taints"], taint);
    // A device that is no longer held elsewhere is offered without a taint.
    assert_eq!(devices[1].taints, None);
    let names = |held_back: &[DeviceKey]| -> Vec<String> {
        let held_back = held_back.iter().cloned().collect();
        super::devices(&view, &held_back).into_iter().map(|device| device.name).collect()
    };
    assert_eq!(names(&[samples::gpu(1)]), ["gpu-0"]);
    assert_eq!(names(&[samples::gpu(0), samples::gpu(1)]), [""; 0]);
}

#[test]
fn unknown_attributes_are_omitted_and_long_ones_are_cut() {
    let mut machine = (*samples::view().machine).clone();
    machine.gpus[0].model = "ä".repeat(40);
    machine.gpus[0].place.root = String::new();
    machine.gpus[0].place.numa = None;
    machine.gpus[0].memory_bytes = 1;
    let view = View { machine: machine.into(), ..view(Mode::Dra, Mode::Plugin) };
    let device = &told(&view)[0];
    assert_eq!(attribute(device, "model"), &"ä".repeat(32));
    let names: Vec<&String> = device["attributes"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["driverVersion", "kind", "model", "resource", "resource.kubernetes.io/pciBusID", "uuid"]);
    assert_eq!(device["capacity"], Value::Null);
}

#[test]
fn amounts_of_memory_are_written_as_the_api_server_writes_them() {
    for (bytes, text) in [
        (1024, "1Ki"),
        (1536 << 10, "1536Ki"),
        (80 << 30, "80Gi"),
        (81559 << 20, "81559Mi"),
        ((81559 << 20) + 1, "81559Mi"),
        (1 << 60, "1024Pi"),
    ] {
        assert_eq!(binary(bytes).0, text);
    }
}
