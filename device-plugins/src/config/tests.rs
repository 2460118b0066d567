use super::*;
use std::time::Duration;

use crate::machine::LinkLayer;

mod refused;

#[test]
fn every_setting_of_a_file_is_read() {
    let text = "\
resources:
  - name: nvidia.com/gpu
    kind: gpu
    select: {models: [H100], uuids: [GPU-1]}
    share: 4
  - name: rdma/hca
    kind: rdma
    select: {vendors: [15B3], deviceIDs: [1021, 0x1a2B], drivers: [mlx5_core], ifNames: [ens1], linkTypes: [InfiniBand, ether]}
    share: 256
    give: all
    mad: true
    limits: {hcaHandles: 2, hcaObjects: '2000', memlock: 64Mi, required: true}
  - {name: larder.dev/rail, kind: rail, mode: dra, limits: {memlock: unlimited}}
health:
  portDown: 250ms
  gpuQuiet: 2m
  xids: {13: watch, 31: restartWorker, 48: drainGpu, 79: drainNode, 43: ignore}
";
    let config = Config::parse("f", text).unwrap();
    let [gpu, rdma, rail] = &config.resources[..] else { panic!("{config:?}") };
    assert_eq!((gpu.name.as_str(), gpu.kind, gpu.share, gpu.line), ("nvidia.com/gpu", Kind::Gpu, 4, 2));
    assert_eq!((gpu.give, gpu.mode, gpu.mad, gpu.limits), (Give::One, Mode::Plugin, false, None));
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(gpu.select, Select { models: owned(&["H100"]), uuids: owned(&["GPU-1"]), ..Select::default() });
    assert_eq!(
        rdma.select,
        Select {
            vendors: owned(&["15b3"]),
            device_ids: owned(&["1021", "1a2b"]),
            drivers: owned(&["mlx5_core"]),
            if_names: owned(&["ens1"]),
            link_types: vec![LinkLayer::InfiniBand, LinkLayer::Ethernet],
            ..Select::default()
        }
    );
    assert_eq!((rdma.share, rdma.give, rdma.mad, rdma.line), (256, Give::All, true, 6));
    let limits = Limits { hca_handles: Some(2), hca_objects: Some(2000), memlock: Some(64 << 20), required: true };
    assert_eq!(rdma.limits, Some(limits));
    assert_eq!((rail.mode, rail.share, rail.line), (Mode::Dra, 1, 13));
    assert_eq!(rail.limits.and_then(|limits| limits.memlock), Some(u64::MAX));
    assert_eq!(
        config.health,
        HealthConfig {
            port_down: Duration::from_millis(250),
            gpu_quiet: Duration::from_secs(120),
            xids: vec![
                (13, XidAction::Watch),
                (31, XidAction::RestartWorker),
                (48, XidAction::DrainGpu),
                (79, XidAction::DrainNode),
                (43, XidAction::Ignore)
            ],
            ..HealthConfig::default()
        }
    );
}

/// The example of its README, with tabs, and what operators generate from empty values.
// SEMANTICS: D2
#[test]
fn a_file_of_mellanoxs_plugin_is_read_as_it_is() {
    let text = "{
\t\"periodicUpdateInterval\": 300,
\t\"configList\": [{
\t\t\"resourceName\":\"hca_shared_devices_a\",
\t\t\"resourcePrefix\":\"example_prefix\",
\t\t\"rdmaHcaMax\":1000,
\t\t\"devices\":[\"ib0\",\"ib1\"]
\t},
\t{
\t\t\"resourceName\": \"hca_shared_devices_b\",\"resourcePrefix\":\"\",
\t\t\"rdmaHcaMax\": 500,
\t\t\"devices\": [],
\t\t\"selectors\": {\"vendors\": [\"15b3\"], \"deviceIDs\": [\"1017\"], \"drivers\": [], \"ifNames\": [\"ib3\", \"ib4\"], \"linkTypes\": [\"ether\"]}
\t}]
}
"
    .replace("example_prefix", "example.com");
    let config = Config::parse("config.json", &text).unwrap();
    let [a, b] = &config.resources[..] else { panic!("{config:?}") };
    assert_eq!((a.name.as_str(), a.share, a.line), ("example.com/hca_shared_devices_a", 1000, 3));
    assert_eq!(a.select.if_names, ["ib0", "ib1"]);
    assert_eq!((b.name.as_str(), b.share, b.line), ("rdma/hca_shared_devices_b", 500, 9));
    assert_eq!(
        (&b.select.vendors[..], &b.select.link_types[..]),
        (&["15b3".to_owned()][..], &[LinkLayer::Ethernet][..])
    );
    for resource in [a, b] {
        assert_eq!((resource.kind, resource.give, resource.mode), (Kind::Rdma, Give::All, Mode::Plugin));
        assert_eq!((resource.mad, resource.limits), (false, None));
    }
    assert_eq!(config.health, HealthConfig::default());
}

#[test]
fn the_shipped_configuration_is_valid() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/components/devices/base/config.yaml");
    let config = Config::parse(path, &super::read(Path::new(path)).unwrap()).unwrap();
    let names: Vec<&str> = config.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["larder.dev/rail", "larder.dev/gpu", "larder.dev/mig", "larder.dev/hca"]);
    assert_eq!(config.health, HealthConfig::default());
}

// SEMANTICS: D1
#[test]
fn a_missing_file_is_named() {
    let error = super::read(Path::new("/nowhere/devices.yaml")).unwrap_err().to_string();
    assert!(error.starts_with("read /nowhere/devices.yaml: No such file"), "{error}");
}

#[test]
fn an_endless_file_is_read_up_to_the_size_limit() {
    let error = super::read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(error, format!("read /dev/zero: it is larger than {} bytes", super::FILE_BYTES_MOST));
}
