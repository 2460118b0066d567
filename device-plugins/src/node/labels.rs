//! The labels of a node: which GPUs it has and what fabric it is on, so that a pod can ask for them.

use std::collections::BTreeMap;

use crate::machine::{LinkLayer, Machine, Port};

/// What the keys of all labels begin with; no other label is ever changed.
pub const PREFIX: &str = "device.larder.dev/";

/// How many GPUs there are.
pub const GPU_COUNT: &str = "device.larder.dev/gpu-count";
/// Their driver.
pub const GPU_DRIVER: &str = "device.larder.dev/gpu-driver";
/// The memory of one, in MiB; of the smallest if they differ.
pub const GPU_MEMORY: &str = "device.larder.dev/gpu-memory-mib";
/// Their model, or `mixed`.
pub const GPU_MODEL: &str = "device.larder.dev/gpu-model";
/// `InfiniBand` if an HCA is on such a fabric, else `RoCE`.
pub const FABRIC: &str = "device.larder.dev/fabric";
/// The rate of the fastest port on that fabric, in Gbit/s.
pub const FABRIC_RATE: &str = "device.larder.dev/fabric-gbps";

/// The longest value of a label.
const VALUE_BYTES: usize = 63;

/// The labels of a node with these devices. A port that is down changes none of them while another one has its rate.
pub fn of(machine: &Machine) -> BTreeMap<&'static str, String> {
    let mut labels = BTreeMap::new();
    let mut put = |key, value: &str| {
        if let Some(value) = sanitized(value) {
            labels.insert(key, value);
        }
    };
    if let Some(first) = machine.gpus.first() {
        let is_same = machine.gpus.iter().all(|gpu| gpu.model == first.model);
        let memory = machine.gpus.iter().map(|gpu| gpu.memory_bytes >> 20).min().unwrap_or_default();
        put(GPU_COUNT, &machine.gpus.len().to_string());
        put(GPU_MODEL, if is_same { &first.model } else { "mixed" });
        put(GPU_MEMORY, &memory.to_string());
        put(GPU_DRIVER, machine.gpu_driver.as_deref().unwrap_or_default());
    }
    if let Some((layer, gbps)) = fabric(machine) {
        put(FABRIC, layer);
        if gbps > 0 {
            put(FABRIC_RATE, &gbps.to_string());
        }
    }
    labels
}

/// The fabric and its rate.
fn fabric(machine: &Machine) -> Option<(&'static str, u32)> {
    let rate_of = |layer| {
        let ports = machine.hcas.iter().flat_map(|hca| &hca.ports).filter(|port| port.link_layer == layer);
        // Integers compare with `Gt`.
        ports.map(Port::whole_gbps).max()
    };
    rate_of(LinkLayer::InfiniBand)
        .map(|rate| ("InfiniBand", rate))
        .or_else(|| rate_of(LinkLayer::Ethernet).map(|rate| ("RoCE", rate)))
}

/// A text as the value of a label: whatever is not allowed becomes `-`. `None` if nothing is left.
fn sanitized(text: &str) -> Option<String> {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let mut value = String::new();
    for c in text.trim().chars().map(allowed) {
        // One for a run of several.
        if c != '-' || !value.ends_with('-') {
            value.push(c);
        }
    }
    let ends = |c: char| !c.is_ascii_alphanumeric();
    let value = value.trim_start_matches(ends);
    let value = value[..value.len().min(VALUE_BYTES)].trim_end_matches(ends);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Gpu, Hca};

    fn gpu(model: &str, mib: u64) -> Gpu {
        Gpu { model: model.to_owned(), memory_bytes: mib << 20, ..Gpu::default() }
    }

    fn hca(ports: &[(LinkLayer, f64)]) -> Hca {
        let port = |(link_layer, rate_gbps): &(LinkLayer, f64)| Port {
            link_layer: *link_layer,
            rate_gbps: *rate_gbps,
            ..Port::default()
        };
        Hca { ports: ports.iter().map(port).collect(), ..Hca::default() }
    }

    fn shown(machine: &Machine) -> Vec<String> {
        of(machine).iter().map(|(key, value)| format!("{}={value}", key.strip_prefix(PREFIX).unwrap())).collect()
    }

    #[test]
    fn a_node_is_labelled_by_its_gpus_and_its_fabric() {
        let machine = Machine {
            gpus: vec![gpu("NVIDIA H100 80GB HBM3", 81559), gpu("NVIDIA H100 80GB HBM3", 81550)],
            gpu_driver: Some("570.86.15".to_owned()),
            hcas: vec![
                hca(&[(LinkLayer::Ethernet, 800.0)]),
                hca(&[(LinkLayer::InfiniBand, 10.0)]),
                hca(&[(LinkLayer::InfiniBand, 400.0)]),
            ],
            ..Machine::default()
        };
        let expected = [
            "fabric=InfiniBand",
            "fabric-gbps=400",
            "gpu-count=2",
            "gpu-driver=570.86.15",
            "gpu-memory-mib=81550",
            "gpu-model=NVIDIA-H100-80GB-HBM3",
        ];
        assert_eq!(shown(&machine), expected);
    }

    #[test]
    fn a_node_has_no_label_of_what_it_lacks() {
        assert_eq!(shown(&Machine::default()), [""; 0]);
        let odd = Machine {
            gpus: vec![gpu("A", 1), gpu("B", 2)],
            hcas: vec![hca(&[(LinkLayer::Unknown, 100.0)]), hca(&[(LinkLayer::Ethernet, 0.0)])],
            ..Machine::default()
        };
        assert_eq!(shown(&odd), ["fabric=RoCE", "gpu-count=2", "gpu-memory-mib=1", "gpu-model=mixed"]);
    }

    #[test]
    fn any_text_becomes_a_value_that_kubernetes_accepts() {
        for (text, value) in [
            ("NVIDIA  A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
            (" Tesla/T4 (rev a1) ", "Tesla-T4-rev-a1"),
            ("_.x._", "x"),
            ("Größe", "Gr-e"),
        ] {
            assert_eq!(sanitized(text).as_deref(), Some(value));
        }
        for nothing in ["", " ", "---", "\u{1b}\n", "äöü"] {
            assert_eq!(sanitized(nothing), None, "{nothing:?}");
        }
        // The cut leaves no dash at the end.
        assert_eq!(sanitized(&format!("{}-{}", "x".repeat(62), "y")).unwrap(), "x".repeat(62));
        assert_eq!(sanitized(&"x".repeat(500)).unwrap().len(), 63);
    }
}
