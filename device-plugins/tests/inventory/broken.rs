//! Broken machines: an invalid entry loses one device or one attribute.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use larder_devices::machine::{Machine, PortState};
use larder_testkit::machine::{FakeMachine, HcaPlan, MachinePlan, PcieSlot, replace_entry};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{hca, read, warnings};

/// An intact machine with three HCAs, and its inventory.
fn sound() -> (FakeMachine, Machine) {
    let machine = FakeMachine::new(MachinePlan::three_hcas_on_a_switch()).unwrap();
    let read = read(&machine);
    assert_eq!(read.warnings, []);
    (machine, read)
}

/// A way to break an entry.
type Break = fn(&Path) -> io::Result<()>;

const MEGABYTE: Break = |path| fs::write(path, vec![b'4'; 1 << 20]);
const PIPE: Break = |path| Ok(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?);
const FOLDER: Break = |path| fs::create_dir(path);
const EMPTY: Break = |path| fs::write(path, "");
const BINARY: Break = |path| fs::write(path, [0xff, 0xfe, 0, b'\n', 0x80]);
const DANGLING: Break = |path| symlink("../nowhere", path);
const TO_ITSELF: Break = |path| symlink(path, path);
const OVERFLOW: Break = |path| fs::write(path, "99999999999999999999\n");
const SECRET: Break = |path| symlink("/etc/passwd", path);

/// The inventory and its warnings after an attribute of `mlx5_1` was broken in this way.
fn warning_of(attribute: &str, way: Break) -> (Machine, Vec<(String, String)>) {
    let (machine, _) = sound();
    replace_entry(&machine.hca_folder("mlx5_1").join(attribute), way).unwrap();
    let read = read(&machine);
    let warnings = warnings(&machine, &read);
    (read, warnings)
}

// SEMANTICS: D25
#[test]
fn no_entry_of_an_hca_can_harm_another_one() {
    let (machine, before) = sound();
    let mut entries = Vec::new();
    let function = machine.pci_folder(&machine.plan().hcas[1].slot.pci).canonicalize().unwrap();
    list(&function, &mut entries);
    assert!(entries.len() > 50, "{}", entries.len());
    entries.extend(
        ["infiniband/mlx5_1", "infiniband_verbs/uverbs1", "infiniband_mad/umad1", "net/ibp1s0", "misc/rdma_cm"]
            .map(|entry| machine.sysfs().join("class").join(entry)),
    );
    for entry in entries {
        for way in [MEGABYTE, PIPE, FOLDER, EMPTY, BINARY, DANGLING, TO_ITSELF, OVERFLOW, SECRET] {
            let aside = entry.with_file_name(".aside");
            fs::rename(&entry, &aside).unwrap();
            way(&entry).unwrap();
            let read = read(&machine);
            for name in ["mlx5_0", "mlx5_2"] {
                assert_eq!(hca(&read, name), hca(&before, name), "{}", entry.display());
            }
            assert_eq!(read.gpus, before.gpus, "{}", entry.display());
            replace_entry(&entry, |_| Ok(())).unwrap();
            fs::rename(&aside, &entry).unwrap();
        }
    }
    assert_eq!(read(&machine), before);
}

/// All files, links and folders below a folder; links are not followed.
fn list(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            list(&entry.path(), found);
        }
        found.push(entry.path());
    }
}

// SEMANTICS: D25
#[test]
fn an_unreadable_attribute_is_a_warning_and_left_out() {
    let at = "sys/class/infiniband/mlx5_1/ports/1/rate".to_owned();
    for (way, why) in [
        (MEGABYTE, "larger than 4096 bytes"),
        (PIPE, "not a regular file: Fifo"),
        (FOLDER, "not a regular file: Directory"),
        (EMPTY, "unexpected content: \"\""),
        (BINARY, "not UTF-8: \"\\xff\\xfe\\x00\\n\\x80\""),
        (DANGLING, "a link instead of a file"),
        (SECRET, "a link instead of a file"),
        (OVERFLOW, "unexpected content: \"99999999999999999999\""),
    ] {
        let (read, warnings) = warning_of("ports/1/rate", way);
        assert_eq!(warnings, [(at.clone(), why.to_owned())]);
        let port = &hca(&read, "mlx5_1").ports[0];
        assert_eq!((port.rate_gbps, port.lid, port.is_up()), (0.0, 0x21, true));
    }
}

#[test]
fn a_long_invalid_content_is_shortened_in_the_warning() {
    let (_, warnings) = warning_of("ports/1/lid", |path| fs::write(path, "x".repeat(4000)));
    assert_eq!(warnings[0].1, format!("unexpected content: \"{}\"…", "x".repeat(40)));
}

#[test]
fn firmware_without_a_numa_node_is_no_warning() {
    let mut plan = MachinePlan::three_hcas_on_a_switch();
    plan.hcas[0].slot.numa = -1;
    plan.gpus[0].slot.numa = -1;
    let read = read(&FakeMachine::new(plan).unwrap());
    assert_eq!((read.hcas[0].place.numa, read.gpus[0].place.numa, read.hcas[1].place.numa), (None, None, Some(0)));
    assert_eq!(read.warnings, []);
}

#[test]
fn a_numa_node_beyond_all_is_left_out() {
    let (read, warnings) = warning_of("device/numa_node", |path| fs::write(path, "4096\n"));
    assert_eq!(hca(&read, "mlx5_1").place.numa, None);
    assert_eq!(warnings[0].1, "unexpected content: \"4096\"");
}

// SEMANTICS: D25
#[test]
fn empty_gids_and_wrong_ones_are_left_out() {
    let (read, warnings) = warning_of("ports/1/gids/0", EMPTY);
    assert_eq!((hca(&read, "mlx5_1").ports[0].gids.len(), warnings.len()), (0, 0));
    let (read, warnings) = warning_of("ports/1/gids/0", |path| fs::write(path, "fe80::1\n"));
    assert_eq!((hca(&read, "mlx5_1").ports[0].gids.len(), warnings.len()), (0, 1));
}

#[test]
fn port_0_is_left_out() {
    let (machine, before) = sound();
    let ports = machine.hca_folder("mlx5_1").join("ports");
    for wrong in ["0", "256", "x", "-1"] {
        fs::create_dir(ports.join(wrong)).unwrap();
    }
    let read = read(&machine);
    assert_eq!(read.hcas, before.hcas);
    let expected: Vec<_> = ["-1", "0", "256", "x"]
        .map(|port| {
            (format!("sys/class/infiniband/mlx5_1/ports/{port}"), "left out: not the number of a port".to_owned())
        })
        .into();
    assert_eq!(warnings(&machine, &read), expected);
}

// SEMANTICS: D25
#[test]
fn an_hca_behind_a_dangling_link_is_left_out() {
    let class = "sys/class/infiniband/mlx5_1";
    for (link, at) in [("", class.to_owned()), ("device", format!("{class}/device"))] {
        let (machine, _) = sound();
        let path = if link.is_empty() {
            machine.sysfs().join("class/infiniband/mlx5_1")
        } else {
            machine.hca_folder("mlx5_1").join(link)
        };
        replace_entry(&path, DANGLING).unwrap();
        let read = read(&machine);
        assert_eq!(read.hcas.iter().map(|hca| hca.name.as_str()).collect::<Vec<_>>(), ["mlx5_0", "mlx5_2"]);
        let warnings = warnings(&machine, &read);
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].0, at);
        assert!(warnings[0].1.starts_with("dangling link"), "{warnings:?}");
    }
}

// SEMANTICS: D25
#[test]
fn links_out_of_the_tree_of_devices_are_not_followed() {
    let (read, warnings) = warning_of("device", |path| symlink("/", path));
    assert_eq!(read.hcas.len(), 2);
    assert_eq!(warnings[0].1, "the link leaves the device tree");
}

#[test]
fn an_hca_without_a_pci_function_of_its_own_is_left_out() {
    // A sub-function shares the PCI function of its HCA.
    let (machine, before) = sound();
    let class = machine.sysfs().join("class/infiniband");
    let function = machine.pci_folder(&machine.plan().hcas[0].slot.pci).canonicalize().unwrap();
    for (name, device) in [("mlx5_8", function.clone()), ("mlx5_9", function.join("mlx5_core.sf.4"))] {
        let folder = device.join("infiniband").join(name);
        fs::create_dir_all(folder.join("ports")).unwrap();
        fs::write(folder.join("node_guid"), "0c42:a103:0065:ffff\n").unwrap();
        symlink(&device, folder.join("device")).unwrap();
        symlink(&folder, class.join(name)).unwrap();
    }
    let read = read(&machine);
    assert_eq!(read.hcas, before.hcas);
    let shares = format!("left out: it shares the PCI function {} with mlx5_0", before.hcas[0].place.pci);
    let expected = [
        ("sys/class/infiniband/mlx5_9/device".to_owned(), "not a PCI function of its own".to_owned()),
        ("sys/class/infiniband/mlx5_8".to_owned(), shares),
    ];
    let mut warnings = warnings(&machine, &read);
    warnings.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(warnings, expected);
}

#[test]
fn an_hca_whose_name_cannot_stand_in_lists_is_left_out() {
    let mut plan = MachinePlan::three_hcas_on_a_switch();
    plan.hcas[1].name = "rail 1,x".to_owned();
    let machine = FakeMachine::new(plan).unwrap();
    let read = read(&machine);
    assert_eq!(read.hcas.len(), 2);
    assert!(warnings(&machine, &read).iter().any(|(at, _)| at == "sys/class/infiniband/rail 1,x"), "{read:?}");
}

#[test]
fn a_device_node_that_is_missing_or_another_one_is_left_out() {
    let (machine, _) = sound();
    let folder = machine.dev().join("infiniband");
    fs::remove_file(folder.join("uverbs0")).unwrap();
    replace_entry(&folder.join("umad1"), EMPTY).unwrap();
    replace_entry(&folder.join("issm2"), |path| fs::rename(folder.join("uverbs1"), path)).unwrap();
    let read = read(&machine);
    assert_eq!((&hca(&read, "mlx5_0").uverbs, &hca(&read, "mlx5_1").uverbs), (&None, &None));
    assert_eq!((&hca(&read, "mlx5_1").ports[0].umad, &hca(&read, "mlx5_2").ports[0].issm), (&None, &None));
    let expected = [
        ("dev/infiniband/uverbs0", "No such file or directory (os error 2)"),
        ("dev/infiniband/uverbs1", "No such file or directory (os error 2)"),
        ("dev/infiniband/umad1", "not a character device"),
        ("dev/infiniband/issm2", "its device number is 231:193, and sysfs reports another one"),
    ];
    let expected = expected.map(|(at, why)| (at.to_owned(), why.to_owned()));
    assert_eq!(warnings(&machine, &read), expected);
}

#[test]
fn an_unknown_port_state_counts_as_out_of_service() {
    let (read, warnings) = warning_of("ports/1/state", |path| fs::write(path, "9: SUPER\n"));
    let port = &hca(&read, "mlx5_1").ports[0];
    assert_eq!((port.state, port.is_up(), warnings.len()), (PortState::Nop, false, 1));
}

// SEMANTICS: D25
#[test]
fn the_list_of_warnings_is_bounded() {
    let (machine, before) = sound();
    let gids = machine.hca_folder("mlx5_1").join("ports/1/gids");
    for index in 0..5000 {
        fs::write(gids.join(format!("x{index}")), "").unwrap();
    }
    let read = read(&machine);
    assert_eq!((read.warnings.len(), hca(&read, "mlx5_2")), (256, hca(&before, "mlx5_2")));
}

#[test]
fn an_issm_of_roce_is_not_believed() {
    let slot = PcieSlot::on_root_port(0x10, 1, 0x11, 0);
    let plan = MachinePlan { hcas: vec![HcaPlan::infiniband(0, slot)], ..MachinePlan::default() };
    let machine = FakeMachine::new(plan).unwrap();
    assert!(hca(&read(&machine), "mlx5_0").ports[0].issm.is_some());
    fs::write(machine.hca_folder("mlx5_0").join("ports/1/link_layer"), "Ethernet\n").unwrap();
    assert_eq!(hca(&read(&machine), "mlx5_0").ports[0].issm, None);
}

// SEMANTICS: D25
#[test]
fn folders_without_end_are_read_in_part() {
    let (machine, before) = sound();
    let gids = machine.hca_folder("mlx5_1").join("ports/1/gids");
    for index in 0..1100 {
        fs::write(gids.join(index.to_string()), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
    }
    let net = machine.hca_folder("mlx5_1").join("device/net");
    for index in 0..4100 {
        fs::create_dir(net.join(format!("eth{index}"))).unwrap();
    }
    let read = read(&machine);
    assert_eq!(hca(&read, "mlx5_1").ports[0].gids.len(), 1024);
    assert_eq!(hca(&read, "mlx5_1").netdevs.len(), 4096);
    assert_eq!((read.warnings.len(), hca(&read, "mlx5_0")), (2, hca(&before, "mlx5_0")));
}

#[test]
fn a_gpu_whose_link_leads_to_another_function_has_no_place() {
    let (machine, before) = sound();
    let gpu = machine.pci_folder(&machine.plan().gpus[0].slot.pci);
    let other = machine.pci_folder(&machine.plan().gpus[1].slot.pci);
    replace_entry(&gpu, |path| symlink(&other, path)).unwrap();
    let read = read(&machine);
    assert_eq!((read.gpus[0].place.root.as_str(), &read.gpus[1]), ("", &before.gpus[1]));
    assert_eq!(read.gpus[0].place.pci, before.gpus[0].place.pci);
    assert_eq!(warnings(&machine, &read)[0].1, format!("the link leads to {}", before.gpus[1].place.pci));
}
