//! The report of a node's devices as text: a row for each device, followed by a sentence for each problem.

use std::fmt::Write;

use larder_dataset::size::show_bytes;
use larder_devices_api::report::{Device, DeviceKind, Report};

use crate::output::{self, cell};

/// A cell of at most `most` characters.
fn short(text: &str, most: usize) -> String {
    let text = cell(text);
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text,
    }
}

/// The first of several texts, followed by the number of the others.
fn first(mut texts: impl Iterator<Item = String>, most: usize) -> String {
    let Some(first) = texts.next() else { return "-".to_owned() };
    match texts.count() {
        0 => short(&first, most),
        more => {
            let more = format!(" +{more}");
            short(&first, most - more.len()) + &more
        }
    }
}

fn row(device: &Device) -> [String; 8] {
    let what = match &device.kind {
        DeviceKind::Hca(hca) => {
            let layer = if hca.link_layer == "Ethernet" { "RoCE" } else { &hca.link_layer };
            format!("{layer} {}G", hca.rate_gbps)
        }
        DeviceKind::Mig(slice) => show_bytes(slice.memory_bytes),
        DeviceKind::Gpu(gpu) => gpu.model.trim_start_matches("NVIDIA ").to_owned(),
        DeviceKind::Other => String::new(),
    };
    let offers = device.resources.iter().map(|offer| match offer.share {
        0 | 1 => offer.name.clone(),
        share => format!("{} x{share}", offer.name),
    });
    let mut pods: Vec<String> = device.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.pod)).collect();
    pods.dedup();
    [
        short(&device.name, 10),
        short(&device.place.pci, 13),
        short(device.place.switch.as_deref().unwrap_or("-"), 13),
        device.place.numa.map_or("-".to_owned(), |numa| numa.to_string()),
        short(&what, 18),
        first(offers, 18),
        first(pods.into_iter(), 17),
        device.fault.as_ref().map_or("ok".to_owned(), |fault| short(&fault.reason, 13)),
    ]
}

pub(super) fn of(report: &Report) -> String {
    let mut text = String::new();
    let driver = report.gpu_driver.as_deref().unwrap_or("none");
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "node {}, GPU driver {}, RDMA {}", cell(&report.node), cell(driver), cell(&report.rdma_mode));
    if report.devices.is_empty() {
        text += "no GPUs or HCAs\n";
    } else {
        let rows: Vec<_> = report.devices.iter().map(row).collect();
        let head = ["DEVICE", "PCI", "SWITCH", "NUMA", "WHAT", "RESOURCE", "POD", "HEALTH"];
        text += &output::table(head, &rows);
    }
    let mut note = |about: &str, what: String| {
        let _ = writeln!(text, "{}: {}", cell(about), cell(&what));
    };
    for resource in &report.resources {
        let count = match resource.devices {
            0 => "no devices on this node".to_owned(),
            devices if resource.ids == devices => output::count(devices, "device"),
            // A rail has two devices, and a shared device several IDs.
            devices => format!("capacity {} from {}", resource.ids, output::count(devices, "device")),
        };
        note(&format!("resource {}", resource.name), count);
    }
    for device in &report.devices {
        if let Some(fault) = &device.fault {
            let name = format!("{} ({})", device.name, device.id);
            note(
                &name,
                format!("{}, since {}; it returns to service once {}", fault.message, fault.since, fault.recovery),
            );
        }
    }
    for excluded in &report.excluded {
        note(&excluded.device, format!("not offered: {}", excluded.why));
    }
    for (part, why) in &report.missing {
        if let Some(why) = why {
            note(part, format!("limits cannot be kept: {why}"));
        }
    }
    for warning in &report.warnings {
        note(&warning.at, warning.why.clone());
    }
    if let Some(why) = &report.refused_config {
        note("configuration", format!("the newest one is refused and the previous one stays in force: {why}"));
    }
    if let Some(why) = &report.pods_trouble {
        note("pods", format!("may be out of date: {why}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(report: serde_json::Value) -> String {
        of(&serde_json::from_value(report).unwrap())
    }

    #[test]
    fn each_device_is_a_row_and_each_fault_a_sentence() {
        let pod =
            |name: &str| json!({"namespace": "team-a", "pod": name, "container": "main", "resource": "r", "id": "i"});
        let text = shown(json!({
            "node": "n1", "gpuDriver": "570.86.15", "rdmaMode": "shared",
            "resources": [
                {"name": "larder.dev/rail", "devices": 2, "ids": 1}, {"name": "larder.dev/gpu", "devices": 1, "ids": 1},
                {"name": "larder.dev/mig", "devices": 0, "ids": 0}
            ],
            "devices": [
                {
                    "id": "GPU-1", "name": "nvidia0", "kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "fault": null,
                    "place": {"pci": "0000:13:00.0", "switch": "0000:11:00.0", "numa": 0, "root": "pci0000:10"},
                    "resources": [{"name": "larder.dev/rail", "share": 1}], "pods": [pod("train-0")]
                },
                {
                    "id": "0000:14:00.0", "name": "mlx5_0", "kind": "hca", "linkLayer": "InfiniBand", "rateGbps": 400.0,
                    "place": {"pci": "0000:14:00.0"}, "resources": [{"name": "larder.dev/hca", "share": 64}],
                    "pods": [pod("a"), pod("a"), pod("b")],
                    "fault": {
                        "reason": "PortDown", "message": "port 1 is DOWN", "since": "2026-01-31T09:00:00Z",
                        "ends": "port 1 is ACTIVE for 30 s"
                    }
                }
            ],
            "withheld": [{"device": "0000:15:00.0", "why": "no GPU is near"}],
            "missing": {"hook": null, "nri": "it is away"},
            "oddities": [], "newer": 1
        }));
        let expected = "\
node n1, GPU driver 570.86.15, RDMA shared
DEVICE   PCI           SWITCH        NUMA  WHAT             RESOURCE            POD             HEALTH
nvidia0  0000:13:00.0  0000:11:00.0  0     H100 80GB HBM3   larder.dev/rail     team-a/train-0  ok
mlx5_0   0000:14:00.0  -             -     InfiniBand 400G  larder.dev/hca x64  team-a/a +1     PortDown
resource larder.dev/rail: capacity 1 from 2 devices
resource larder.dev/gpu: 1 device
resource larder.dev/mig: no devices on this node
mlx5_0 (0000:14:00.0): port 1 is DOWN, since 2026-01-31T09:00:00Z; it returns to service once port 1 is ACTIVE for 30 s
0000:15:00.0: not offered: no GPU is near
nri: limits cannot be kept: it is away
";
        assert_eq!(text, expected);
    }

    /// The golden file of the report that `larder-devices` serves.
    #[test]
    fn the_golden_report_is_shown_with_every_device() {
        let golden = include_str!("../../../../device-plugins/api/golden/report.json");
        let text = of(&serde_json::from_str(golden).unwrap());
        let names: Vec<&str> = text.lines().skip(2).take(5).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names, ["nvidia0", "1g.10gb", "nvidia1", "mlx5_0", "mlx5_1"], "{text}");
        assert!(text.contains("mlx5_0 (0000:20:00.0): port 1 is DOWN, since"), "{text}");
    }

    #[test]
    fn rows_fit_120_columns_with_names_of_any_length() {
        let long = "x".repeat(200);
        let device = json!({
            "id": long, "name": long, "kind": "gpu", "model": long, "place": {"pci": long, "switch": long, "numa": 99},
            "resources": [{"name": long, "share": 256}, {"name": long}], "pods": [{"namespace": long, "pod": long}],
            "fault": {"reason": "LimitsMissing"}
        });
        let text = shown(json!({"devices": [device]}));
        let widest = text.lines().skip(1).take(2).map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 120, "{widest}: {text}");
    }

    #[test]
    fn a_node_without_devices_says_so() {
        assert_eq!(
            shown(json!({"node": "n1", "rdmaMode": "none"})),
            "node n1, GPU driver none, RDMA none\nno GPUs or HCAs\n"
        );
    }
}
