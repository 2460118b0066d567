//! Ports that change while they are polled.

use std::fs;

use larder_devices::inventory::ports::{Changes, PortWatch, Reading};
use larder_devices::machine::{PhysState, PortState};
use larder_testkit::machine::{FakeMachine, HcaPlan, MachinePlan, PORT_DOWN, PORT_UP, PcieSlot, replace_entry};

use crate::roots;

fn watched() -> (FakeMachine, PortWatch) {
    let machine = FakeMachine::new(MachinePlan::three_hcas_on_a_switch()).unwrap();
    let mut watch = PortWatch::new(&roots(&machine));
    assert_eq!(watch.poll().appeared.len(), 3);
    (machine, watch)
}

fn up(hca: &str) -> Reading {
    Reading { hca: hca.to_owned(), port: 1, state: PortState::Active, phys_state: PhysState::LinkUp }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn the_first_poll_finds_everything_and_the_next_nothing() {
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let mut watch = PortWatch::new(&roots(&machine));
    let all: Vec<String> = (0..8).map(|nth| format!("mlx5_{nth}")).collect();
    let ports: Vec<Reading> = all.iter().map(|name| up(name)).collect();
    assert_eq!(watch.poll(), Changes { vanished: Vec::new(), appeared: all, ports: ports.clone() });
    assert!(watch.poll().is_empty());
    assert!(watch.readings().eq(&ports));
}

// SEMANTICS: D14
#[test]
fn a_port_goes_down_and_comes_up() {
    let (mut machine, mut watch) = watched();
    for _ in 0..3 {
        machine.set_port("mlx5_1", 1, PORT_DOWN).unwrap();
        let down = Reading { state: PortState::Down, phys_state: PhysState::Disabled, ..up("mlx5_1") };
        assert_eq!(watch.poll(), Changes { ports: vec![down], ..Changes::default() });
        assert_eq!(watch.readings().filter(|reading| reading.is_up()).count(), 2);
        assert!(watch.poll().is_empty());
        machine.set_port("mlx5_1", 1, PORT_UP).unwrap();
        assert_eq!(watch.poll(), Changes { ports: vec![up("mlx5_1")], ..Changes::default() });
    }
    // A link without a subnet manager is not in service.
    machine.set_port("mlx5_1", 1, ("2: INIT", "5: LinkUp")).unwrap();
    assert!(!watch.poll().ports[0].is_up());
}

#[test]
fn an_hca_vanishes_and_comes_back() {
    let (mut machine, mut watch) = watched();
    let gone = machine.remove_hca("mlx5_1").unwrap();
    assert_eq!(watch.poll(), Changes { vanished: names(&["mlx5_1"]), ..Changes::default() });
    assert_eq!(watch.readings().count(), 2);
    machine.add_hca(gone).unwrap();
    let back = Changes { appeared: names(&["mlx5_1"]), ports: vec![up("mlx5_1")], ..Changes::default() };
    assert_eq!(watch.poll(), back);
}

// SEMANTICS: D18
#[test]
fn an_hca_that_came_back_between_two_polls_is_read_anew() {
    let (mut machine, mut watch) = watched();
    for (state, is_up) in [(PORT_DOWN, false), (PORT_UP, true)] {
        let mut gone = machine.remove_hca("mlx5_1").unwrap();
        (gone.ports[0].state, gone.ports[0].phys_state) = (state.0.to_owned(), state.1.to_owned());
        machine.add_hca(gone).unwrap();
        let changes = watch.poll();
        assert_eq!((&changes.vanished, &changes.appeared), (&names(&["mlx5_1"]), &names(&["mlx5_1"])));
        assert_eq!((changes.ports.len(), changes.ports[0].is_up()), (1, is_up));
    }
}

#[test]
fn an_hca_gets_another_name() {
    let (mut machine, mut watch) = watched();
    machine.rename_hca("mlx5_1", "rail1").unwrap();
    let changes = Changes { vanished: names(&["mlx5_1"]), appeared: names(&["rail1"]), ports: vec![up("rail1")] };
    assert_eq!(watch.poll(), changes);
    machine.set_port("rail1", 1, PORT_DOWN).unwrap();
    assert!(!watch.poll().ports[0].is_up());
}

#[test]
fn a_state_that_cannot_be_read_is_no_service_until_it_can() {
    let (mut machine, mut watch) = watched();
    let state = machine.hca_folder("mlx5_1").join("ports/1/state");
    let unread = Reading { state: PortState::Nop, ..up("mlx5_1") };
    for content in ["", "9: SUPER\n", "\u{0}", "4 ACTIVE"] {
        fs::write(&state, content).unwrap();
        assert_eq!(watch.poll(), Changes { ports: vec![unread.clone()], ..Changes::default() }, "{content}");
        machine.set_port("mlx5_1", 1, PORT_UP).unwrap();
        assert_eq!(watch.poll().ports, [up("mlx5_1")]);
    }
    let ports = state.parent().unwrap();
    replace_entry(ports, |path| fs::write(path, "")).unwrap();
    // Files of the fake sysfs still answer after their removal; the kernel's files do not.
    let mut anew = PortWatch::new(&roots(&machine));
    assert!(
        anew.poll()
            .ports
            .iter()
            .any(|reading| *reading == Reading { phys_state: PhysState::Unknown, ..unread.clone() })
    );
}

#[test]
fn ports_that_come_after_their_hca_are_found() {
    let (machine, _) = watched();
    let ports = machine.hca_folder("mlx5_1").join("ports");
    fs::rename(&ports, ports.with_file_name("later")).unwrap();
    let mut watch = PortWatch::new(&roots(&machine));
    assert_eq!((watch.poll().ports.len(), watch.poll().is_empty()), (2, true));
    fs::rename(ports.with_file_name("later"), &ports).unwrap();
    assert_eq!(watch.poll().ports, [up("mlx5_1")]);
}

#[test]
fn hundreds_of_hcas_leave_files_for_others() {
    let slot = PcieSlot::on_root_port(0x10, 1, 0x11, 0);
    let hca = |nth: u32| {
        let pci = format!("0000:{:02x}:{:02x}.{}", 0x11 + nth / 256, nth / 8 % 32, nth % 8);
        HcaPlan::infiniband(nth, PcieSlot { pci, ..slot.clone() })
    };
    let plan = MachinePlan { hcas: (0..150).map(hca).collect(), ..MachinePlan::default() };
    let mut machine = FakeMachine::new(plan).unwrap();
    let mut watch = PortWatch::new(&roots(&machine));
    assert_eq!(watch.poll().ports.len(), 150);
    let open = fs::read_dir("/proc/self/fd").unwrap().count();
    assert!((192..256).contains(&open), "{open} files are open");
    for name in ["mlx5_0", "mlx5_149", "mlx5_99"] {
        machine.set_port(name, 1, PORT_DOWN).unwrap();
        assert_eq!(watch.poll().ports.len(), 1);
    }
}

#[test]
fn a_machine_without_hcas_has_nothing_to_watch() {
    let mut machine = FakeMachine::new(MachinePlan::none()).unwrap();
    let mut watch = PortWatch::new(&roots(&machine));
    assert!(watch.poll().is_empty());
    machine.add_hca(HcaPlan::infiniband(0, PcieSlot::on_root_port(0x10, 1, 0x11, 0))).unwrap();
    assert_eq!(watch.poll().appeared, ["mlx5_0"]);
}
