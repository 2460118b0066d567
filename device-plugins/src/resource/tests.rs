pub(crate) mod machines;
mod random;

use super::*;
use crate::config::Config;
use crate::machine::{Machine, RdmaMode};
use machines::{eight, gpu, hca, machine, place, slice, virtual_function};

pub(crate) fn config(text: &str) -> Config {
    Config::parse("config.yaml", text).unwrap()
}

/// A resource a line, with its units; and what is excluded.
fn shown(assignment: &Assignment) -> String {
    let mut text = String::new();
    for resource in &assignment.resources {
        text += &format!("{}:", resource.config.name);
        for unit in &resource.units {
            let devices: Vec<String> = unit.devices.iter().map(DeviceKey::to_string).collect();
            text += &format!(" {}={}@{:?}", unit.id, devices.join("+"), unit.numa);
        }
        text += "\n";
    }
    for excluded in &assignment.excluded {
        text += &format!("- {}: {}\n", excluded.device, excluded);
    }
    text
}

#[track_caller]
fn assigns(machine: &Machine, text: &str, expected: &str) {
    assert_eq!(shown(&assign(machine, &config(text))), expected);
}

const RAIL: &str = "resources:\n- {name: a/rail, kind: rail}\n";

// SEMANTICS: D3
#[test]
fn a_rail_is_a_gpu_with_the_hca_on_its_switch() {
    // What is in a rail is in no other resource, wherever that stands in the file.
    let text = "\
resources:
- {name: a/gpu, kind: gpu}
- {name: a/hca, kind: rdma}
- {name: a/rail, kind: rail}
";
    assigns(
        &eight(),
        text,
        "\
a/gpu:
a/hca:
a/rail: GPU-0=GPU-0+0000:30:01.0@{0} GPU-1=GPU-1+0000:31:01.0@{0} GPU-2=GPU-2+0000:32:01.0@{0} GPU-3=GPU-3+0000:33:01.0@{0} \
         GPU-4=GPU-4+0001:30:01.0@{1} GPU-5=GPU-5+0001:31:01.0@{1} GPU-6=GPU-6+0001:32:01.0@{1} GPU-7=GPU-7+0001:33:01.0@{1}
",
    );
    assert_eq!(check(&eight(), &config(text)), Ok(()));
}

// SEMANTICS: D3
#[test]
fn the_rail_has_the_first_of_three_hcas_on_a_switch_by_address() {
    let hcas = || (1..4).map(|slot| hca(&format!("mlx5_{slot}"), place(0, 0, slot))).collect::<Vec<_>>();
    let machine = machine(vec![gpu("a", place(0, 0, 0))], hcas());
    assigns(
        &machine,
        "resources:\n- {name: a/rail, kind: rail}\n- {name: a/hca, kind: rdma}\n",
        "a/rail: GPU-a=GPU-a+0000:30:01.0@{0}\n\
         a/hca: 0000:30:02.0=0000:30:02.0@{0} 0000:30:03.0=0000:30:03.0@{0}\n",
    );
}

// SEMANTICS: D3
#[test]
fn where_hcas_are_few_the_nearest_gpus_have_them() {
    // One HCA on the second GPU's switch, one on a switch without GPUs; the third GPU is on another root.
    let gpus = vec![gpu("a", place(0, 0, 0)), gpu("b", place(0, 1, 0)), gpu("c", place(1, 0, 0))];
    let near = hca("near", place(0, 1, 1));
    let why = "a/rail does not offer it: no selected HCA is left on the GPU's PCIe switch or root complex";
    assigns(
        &machine(gpus.clone(), vec![near.clone()]),
        RAIL,
        &format!("a/rail: GPU-b=GPU-b+0000:31:01.0@{{0}}\n- GPU-a: {why}\n- GPU-c: {why}\n"),
    );
    assigns(
        &machine(gpus, vec![near, hca("far", place(0, 2, 1))]),
        RAIL,
        &format!("a/rail: GPU-a=GPU-a+0000:32:01.0@{{0}} GPU-b=GPU-b+0000:31:01.0@{{0}}\n- GPU-c: {why}\n",),
    );
}

// SEMANTICS: D4
#[test]
fn hcas_of_rails_wait_for_the_gpus_that_nvml_does_not_list_yet() {
    let gpus = [gpu("a", place(0, 0, 0)), gpu("b", place(0, 1, 0)), gpu("c", place(1, 0, 0))];
    let hcas = vec![
        hca("a", place(0, 0, 1)),
        hca("b", place(0, 1, 1)),
        hca("left", place(0, 2, 1)),
        hca("far", place(2, 0, 1)),
        hca("other", place(1, 0, 1)),
    ];
    let text = "resources:\n- {name: a/rail, kind: rail, select: {ifNames: [net-a, net-b, net-left, net-far]}}\n\
                - {name: a/hca, kind: rdma}\n- {name: a/gpu, kind: gpu}\n";
    let known = |count: usize| {
        let functions = gpus.iter().map(|gpu| gpu.place.clone()).collect();
        Machine { gpu_functions: functions, ..machine(gpus[..count].to_vec(), hcas.clone()) }
    };
    let waits = |hca: &str, gpu: &str| {
        format!(
            "- {hca}: a/hca does not offer it: a rail may need it for the GPU at {gpu}, which NVML does not list yet\n"
        )
    };
    // No rail selects the last one, and there is no GPU near the one before.
    let (a, b) = ("0000:30:00.0", "0000:31:00.0");
    let free = "a/hca: 0001:30:01.0=0001:30:01.0@{1} 0002:30:01.0=0002:30:01.0@{2}\n";
    assigns(
        &known(0),
        text,
        &format!(
            "a/rail:\n{free}a/gpu:\n{}{}{}",
            waits("0000:30:01.0", a),
            waits("0000:31:01.0", a),
            waits("0000:32:01.0", a)
        ),
    );
    assigns(
        &known(1),
        text,
        &format!(
            "a/rail: GPU-a=GPU-a+0000:30:01.0@{{0}}\n{free}a/gpu:\n{}{}",
            waits("0000:31:01.0", b),
            waits("0000:32:01.0", b)
        ),
    );
    let free = free.replace("a/hca:", "a/hca: 0000:32:01.0=0000:32:01.0@{0}");
    assigns(
        &known(2),
        text,
        &format!("a/rail: GPU-a=GPU-a+0000:30:01.0@{{0}} GPU-b=GPU-b+0000:31:01.0@{{0}}\n{free}a/gpu:\n"),
    );
}

#[test]
fn among_equal_pairings_the_first_gpu_has_the_nearer_hca() {
    let gpus = vec![gpu("a", place(0, 1, 0)), gpu("b", place(0, 1, 1))];
    assigns(
        &machine(gpus, vec![hca("far", place(0, 0, 0)), hca("near", place(0, 1, 2))]),
        RAIL,
        "a/rail: GPU-a=GPU-a+0000:31:02.0@{0} GPU-b=GPU-b+0000:30:00.0@{0}\n",
    );
}

// SEMANTICS: D3
#[test]
fn a_gpu_leaves_an_hca_to_another_that_could_have_no_other() {
    // The rail of A100s may only have the first HCA, which is on the switch of the H100.
    let mut old = gpu("old", place(0, 1, 0));
    old.model = "NVIDIA A100-SXM4-80GB".to_owned();
    let machine = machine(
        vec![gpu("new", place(0, 0, 0)), old],
        vec![hca("first", place(0, 0, 1)), hca("second", place(0, 2, 1))],
    );
    assigns(
        &machine,
        "resources:\n- {name: a/new, kind: rail, select: {models: [h100]}}\n\
         - {name: a/old, kind: rail, select: {models: [a100], ifNames: [net-first]}}\n",
        "a/new: GPU-new=GPU-new+0000:32:01.0@{0}\na/old: GPU-old=GPU-old+0000:30:01.0@{0}\n",
    );
}

// SEMANTICS: D4
#[test]
fn hcas_that_a_cni_plugin_must_move_are_not_offered() {
    let mut machine = machine(vec![gpu("a", place(0, 0, 0))], vec![hca("mlx5_0", place(0, 0, 1))]);
    machine.rdma_mode = RdmaMode::Exclusive;
    let assignment = assign(&machine, &config(RAIL));
    assert!(assignment.resources[0].units.is_empty());
    let text = shown(&assignment);
    assert!(
        text.contains("- 0000:30:01.0: a/rail does not offer it: RDMA devices belong to network namespaces"),
        "{text}"
    );
    assert!(text.contains("`rdma system set netns shared`"), "{text}");
    assert!(text.contains("- GPU-a: a/rail does not offer it: no selected HCA is left"), "{text}");
}

// SEMANTICS: D4
#[test]
fn a_gpu_in_mig_mode_is_offered_in_slices() {
    let mut cut = gpu("cut", place(0, 0, 0));
    cut.mig = Some(vec![slice("1", "1g.10gb"), slice("2", "1g.10gb"), slice("3", "3g.40gb")]);
    let whole = gpu("whole", place(0, 1, 0));
    assigns(
        &machine(vec![cut, whole], Vec::new()),
        "resources:\n- {name: a/gpu, kind: gpu}\n- {name: a/small, kind: mig, select: {models: [1G.10gb]}}\n\
         - {name: a/large, kind: mig, select: {uuids: [MIG-3]}}\n",
        "a/gpu: GPU-whole=GPU-whole@{0}\na/small: MIG-1=MIG-1@{0} MIG-2=MIG-2@{0}\na/large: MIG-3=MIG-3@{0}\n\
         - GPU-cut: a/gpu does not offer it: it is in MIG mode: offer its slices with `kind: mig`\n",
    );
}

// SEMANTICS: D4
#[test]
fn a_physical_function_gives_way_to_its_virtual_ones() {
    let mut physical = hca("pf", place(0, 0, 1));
    let functions = vec![virtual_function(&mut physical, "vf0"), virtual_function(&mut physical, "vf1")];
    let with = machine(vec![gpu("a", place(0, 0, 0))], [vec![physical.clone()], functions].concat());
    let why = "a/hca does not offer it: a/hca selects virtual functions of it; choose one or the other by `deviceIDs`";
    assigns(
        &with,
        "resources:\n- {name: a/hca, kind: rdma}\n",
        &format!("a/hca: 0000:30:01.1=0000:30:01.1@{{0}} 0000:30:01.2=0000:30:01.2@{{0}}\n- 0000:30:01.0: {why}\n"),
    );
    assigns(
        &with,
        "resources:\n- {name: a/hca, kind: rdma, select: {deviceIDs: ['1021']}}\n",
        "a/hca: 0000:30:01.0=0000:30:01.0@{0}\n",
    );
    // In the hands of one container they may be together.
    assigns(
        &with,
        "resources:\n- {name: a/hca, kind: rdma, give: all}\n",
        "a/hca: all=0000:30:01.0+0000:30:01.1+0000:30:01.2@{0}\n",
    );
    let why = why.replace("a/hca does", "a/rail does");
    assigns(
        &with,
        "resources:\n- {name: a/rail, kind: rail, select: {ifNames: [net-pf]}}\n\
         - {name: a/hca, kind: rdma, select: {deviceIDs: [101e]}}\n",
        &format!(
            "a/rail:\na/hca: 0000:30:01.1=0000:30:01.1@{{0}} 0000:30:01.2=0000:30:01.2@{{0}}\n- 0000:30:01.0: {why}\n\
             - GPU-a: a/rail does not offer it: no selected HCA is left on the GPU's PCIe switch or root complex\n"
        ),
    );
}

// SEMANTICS: D4
#[test]
fn devices_that_cannot_be_offered_are_excluded_with_the_reason() {
    let mut broken = hca("mlx5_0", place(0, 0, 1));
    broken.uverbs = None;
    let mut nameless = gpu("", place(0, 2, 0));
    nameless.uuid.clear();
    let long = gpu(&"x".repeat(60), place(0, 3, 0));
    let gpus = vec![gpu("a", place(0, 0, 0)), gpu("a", place(0, 1, 0)), nameless, long.clone()];
    let uuid = "a/gpu does not offer it: its UUID is not 1 to 57 printable characters";
    assigns(
        &machine(gpus, vec![broken]),
        "resources:\n- {name: a/gpu, kind: gpu}\n- {name: a/hca, kind: rdma}\n",
        &format!(
            "a/gpu: GPU-a=GPU-a@{{0}}\na/hca:\n- GPU-a: a/gpu does not offer it: another device is also called GPU-a\n\
             - : {uuid}\n- {}: {uuid}\n\
             - 0000:30:01.0: a/hca does not offer it: it has no uverbs device: load the module ib_uverbs\n",
            long.uuid
        ),
    );
}

// SEMANTICS: D1
#[test]
fn two_resources_that_select_one_device_are_refused_at_start_and_the_first_has_what_comes_later() {
    let text = "resources:\n- name: a/first\n  kind: rdma\n  select: {ifNames: [net-x, net-y]}\n\
                - name: a/second\n  kind: rdma\n  select: {drivers: [mlx5_core], ifNames: [net-y]}\n";
    let config = config(text);
    let machine = |name| machine(Vec::new(), vec![hca(name, place(0, 0, 1))]);
    assert_eq!(check(&machine("x"), &config), Ok(()));
    assert_eq!(
        check(&machine("y"), &config).unwrap_err().to_string(),
        "line 5: a/second and a/first (line 2) both select 0000:30:01.0: narrow the `select` of one of them"
    );
    assigns(
        &machine("y"),
        text,
        "a/first: 0000:30:01.0=0000:30:01.0@{0}\na/second:\n\
         - 0000:30:01.0: a/second does not offer it: a/first (line 2) also selects it and comes first\n",
    );
}

// SEMANTICS: D1
#[test]
fn two_rails_may_select_one_hca_but_not_one_gpu() {
    let rails = |first: &str, second: &str| {
        config(&format!(
            "resources:\n- {{name: a/one, kind: rail, select: {{uuids: [{first}]}}}}\n\
             - {{name: a/two, kind: rail, select: {{uuids: [{second}]}}}}\n"
        ))
    };
    assert_eq!(check(&eight(), &rails("GPU-0", "GPU-1")), Ok(()));
    let both = rails("GPU-0", "GPU-0, GPU-1");
    let error = check(&eight(), &both).unwrap_err();
    assert_eq!((error.line, error.why.contains("a/two and a/one (line 2) both select GPU-0")), (3, true), "{error}");
    let text = shown(&assign(&eight(), &both));
    assert!(text.contains("a/one: GPU-0=GPU-0+0000:30:01.0@{0}\na/two: GPU-1=GPU-1+0000:31:01.0@{0}\n"), "{text}");
    assert!(
        text.contains("- GPU-0: a/two does not offer it: a/one (line 2) also selects it and comes first\n"),
        "{text}"
    );
}

#[test]
fn selectors_narrow_each_other_and_their_items_do_not() {
    let mut roce = hca("roce", place(0, 1, 1));
    roce.ports[0].link_layer = crate::machine::LinkLayer::Ethernet;
    roce.driver = "bnxt_re".to_owned();
    roce.vendor = "14e4".to_owned();
    let machine = machine(Vec::new(), vec![hca("ib", place(0, 0, 1)), roce]);
    let (ib, roce) = ("0000:30:01.0", "0000:31:01.0");
    for (select, expected) in [
        ("{}", vec![ib, roce]),
        ("{vendors: [15B3]}", vec![ib]),
        ("{vendors: [15b3, '14e4']}", vec![ib, roce]),
        ("{vendors: [15b3], linkTypes: [ether]}", vec![]),
        ("{linkTypes: [infiniband]}", vec![ib]),
        ("{linkTypes: [Ethernet]}", vec![roce]),
        ("{deviceIDs: [0x1021]}", vec![ib, roce]),
        ("{drivers: [bnxt_re]}", vec![roce]),
        ("{ifNames: [net-ib, eth0]}", vec![ib]),
        ("{uuids: ['0002:C903:00A1:3101']}", vec![roce]),
    ] {
        let config = config(&format!("resources:\n- {{name: a/hca, kind: rdma, select: {select}}}\n"));
        let assignment = assign(&machine, &config);
        let units: Vec<&str> = assignment.resources[0].units.iter().map(|unit| unit.id.as_str()).collect();
        assert_eq!(units, expected, "{select}");
    }
}

// SEMANTICS: D5
#[test]
fn ids_stay_when_devices_are_renamed_or_come_in_another_order() {
    let config = config("resources:\n- {name: a/rail, kind: rail}\n- {name: a/hca, kind: rdma, share: 3}\n");
    let ids = |machine: &Machine| -> Vec<Vec<String>> {
        assign(machine, &config).resources.iter().map(|resource| resource.ids().collect()).collect()
    };
    let mut before = eight();
    before.gpus.truncate(3);
    let mut after = before.clone();
    for (nth, hca) in after.hcas.iter_mut().rev().enumerate() {
        hca.name = format!("rocep{nth}");
        hca.netdevs.clear();
    }
    after.hcas.reverse();
    after.gpus.reverse();
    assert_eq!(ids(&before), ids(&after));
    assert_eq!(ids(&before)[0], ["GPU-0", "GPU-1", "GPU-2"]);
    assert_eq!(ids(&before)[1][..4], ["0000:33:01.0::0", "0000:33:01.0::1", "0000:33:01.0::2", "0001:30:01.0::0"]);
}

// SEMANTICS: D2
#[test]
fn ids_of_all_devices_are_as_many_as_containers_may_have_them() {
    let json =
        r#"{"configList": [{"resourceName": "hca_shared", "rdmaHcaMax": 1000, "selectors": {"vendors": ["15b3"]}}]}"#;
    let assignment = assign(&eight(), &config(json));
    let resource = &assignment.resources[0];
    let ids: Vec<String> = resource.ids().collect();
    assert_eq!((ids.len(), ids[0].as_str(), ids[999].as_str()), (1000, "all::0", "all::999"));
    let unit = resource.unit_of("all::999").unwrap();
    assert_eq!((unit.devices.len(), unit.numa.len()), (8, 2));
    for foreign in ["all", "all::1000", "all::+1", "all::01", "all::", "::1", "", "all::1::1", "GPU-0"] {
        assert_eq!(resource.unit_of(foreign), None, "{foreign}");
    }
    // Without devices there is nothing to give.
    let nothing = assign(&Machine::default(), &config(json));
    assert_eq!(nothing.resources[0].ids().count(), 0);
    assert_eq!(nothing.excluded, []);
}
