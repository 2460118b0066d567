use super::world::{World, hca, machine, pci};
use crate::config::{Give, HealthConfig};
use crate::health::{Event, Mark, Reason, fault_of};
use crate::machine::{Hca, Place};
use crate::resource::Unit;

use std::time::Duration;

// SEMANTICS: D14
#[test]
fn an_hca_leaves_after_five_seconds_without_a_port_and_is_back_after_thirty_with_one() {
    let mut world = World::new();
    world.ports(1, &[false, false]);
    assert_eq!(world.next(), Some(5.0));
    world.pass(4.9);
    // A repeated reading changes nothing.
    world.ports(1, &[false, false]);
    assert_eq!(world.out(), []);
    world.pass(0.1);
    assert_eq!(world.out(), [(hca(1), Reason::PortDown)], "the other HCA stays");
    assert_eq!(world.message(&hca(1)), "no port is up: port 1 is DOWN and Polling, port 2 is DOWN and Polling");
    assert_eq!(world.health.faults()[&hca(1)].since, world.start.wall, "since the port went down");
    world.pass(95.0);
    // The other port counts equally.
    world.ports(1, &[false, true]);
    assert_eq!(world.next(), Some(130.0));
    world.pass(29.9);
    assert_eq!(world.out(), [(hca(1), Reason::PortDown)]);
    assert!(world.message(&hca(1)).starts_with("not up for long enough"), "{}", world.message(&hca(1)));
    world.pass(0.1);
    assert_eq!((world.out(), world.next()), (vec![], None));
}

// SEMANTICS: D14
#[test]
fn blips_take_no_hca_out_and_give_none_back() {
    let mut world = World::new();
    for _ in 0..100 {
        world.ports(1, &[false, false]);
        world.pass(4.0);
        world.ports(1, &[true, false]);
        world.pass(1.0);
        assert_eq!(world.out(), []);
    }
    world.ports(1, &[false, false]);
    world.pass(5.0);
    for _ in 0..100 {
        world.ports(1, &[true, false]);
        world.pass(29.0);
        world.ports(1, &[false, false]);
        world.pass(1.0);
        assert_eq!(world.out(), [(hca(1), Reason::PortDown)]);
    }
}

// SEMANTICS: D14
#[test]
fn two_hcas_and_two_ports_each_have_their_own_time() {
    let mut world = World::new();
    world.ports(1, &[false, false]);
    world.pass(3.0);
    world.ports(2, &[false, false]);
    world.pass(2.0);
    assert_eq!(world.out(), [(hca(1), Reason::PortDown)]);
    // One port takes over from the other: the HCA was never down.
    world.ports(2, &[false, true]);
    world.pass(60.0);
    world.ports(2, &[true, false]);
    world.pass(60.0);
    assert_eq!(world.out(), [(hca(1), Reason::PortDown)]);
}

// SEMANTICS: D14
#[test]
fn a_late_tick_applies_everything_that_is_due() {
    let mut world = World::new();
    world.ports(1, &[false, false]);
    // No tick for 20 s; the next event reports the port as up.
    world.now.instant += Duration::from_secs(20);
    world.ports(1, &[true, false]);
    assert_eq!(world.out(), [(hca(1), Reason::PortDown)]);
}

// SEMANTICS: D14
#[test]
fn the_first_reading_decides_so_a_restart_costs_nothing() {
    let mut world = World::new();
    let mut seen = machine();
    let cabled = |bus: u8, ports: &[bool]| Hca {
        ports: if ports.is_empty() { vec![] } else { machine().hcas[0].ports.clone() },
        place: Place { pci: pci(bus), ..Place::default() },
        ..Hca::default()
    };
    seen.hcas.extend([cabled(3, &[true]), cabled(4, &[])]);
    let mut dark = cabled(5, &[true]);
    dark.ports[0] = dark.ports[1].clone();
    seen.hcas.push(dark);
    world.see(Event::Machine(seen));
    assert_eq!(world.out(), [(hca(4), Reason::PortDown), (hca(5), Reason::PortDown)]);
    assert_eq!(world.message(&hca(4)), "it has no port");
}

// SEMANTICS: D18
#[test]
fn an_hca_that_is_gone_stays_known_and_returns_under_any_name() {
    let mut world = World::new();
    let gone_at = world.now.wall;
    world.ports(1, &[false, false]);
    world.machine_without(&[hca(1)]);
    assert_eq!(world.out(), [(hca(1), Reason::Gone)]);
    assert_eq!(world.health.machine().hcas.len(), 2, "the kubelet goes on counting it");
    world.pass(3600.0);
    world.machine_without(&[hca(1), hca(2)]);
    assert_eq!(world.out(), [(hca(1), Reason::Gone), (hca(2), Reason::Gone)]);
    assert_eq!((world.health.faults()[&hca(1)].since, world.next()), (gone_at, None));
    let mut renamed = machine();
    renamed.hcas[0].name = "rocep1s0".to_owned();
    world.see(Event::Machine(renamed));
    assert_eq!(world.out(), []);
    assert_eq!(world.health.machine().hcas[0].name, "rocep1s0");
    assert_eq!(world.health.machine().hcas.len(), 2);
}

// SEMANTICS: D18
#[test]
fn a_virtual_function_that_is_taken_away_is_forgotten_and_one_that_goes_with_its_card_is_not() {
    let mut world = World::new();
    let mut seen = machine();
    let mut function = seen.hcas[0].clone();
    function.place.pci.function = 1;
    function.physical_function = Some(pci(1));
    seen.hcas.push(function);
    world.see(Event::Machine(seen));
    assert_eq!(world.health.machine().hcas.len(), 3);
    world.machine_without(&[hca(1)]);
    assert_eq!(world.health.machine().hcas.len(), 3);
    assert_eq!(world.out().len(), 2);
    world.machine_without(&[]);
    assert_eq!((world.health.machine().hcas.len(), world.out()), (2, vec![]));
}

// SEMANTICS: D14
#[test]
fn new_settings_apply_to_pending_changes() {
    let mut world = World::new();
    world.ports(1, &[false, false]);
    world.pass(4.0);
    let config = HealthConfig { port_down: Duration::from_secs(60), ..HealthConfig::default() };
    world.health.configure(config.clone(), world.now);
    world.pass(50.0);
    assert_eq!((world.out(), world.next()), (vec![], Some(60.0)));
    world.health.configure(HealthConfig { port_down: Duration::from_secs(10), ..config }, world.now);
    assert_eq!(world.out(), [(hca(1), Reason::PortDown)]);
}

// SEMANTICS: D3
#[test]
fn conditions_from_outside_hold_until_they_are_lifted_and_a_rail_needs_both_devices() {
    let mut world = World::new();
    let gpu = super::world::gpu(0);
    let rail = Unit { id: "GPU-0".to_owned(), devices: vec![gpu.clone(), hca(1)], numa: [].into() };
    assert_eq!(fault_of(Give::One, &rail, world.health.faults()), None);
    world.marks(Mark::LimitsMissing, &[hca(1), hca(2), hca(9)]);
    assert_eq!(world.out(), [(hca(1), Reason::LimitsMissing), (hca(2), Reason::LimitsMissing)]);
    let (device, fault) = fault_of(Give::One, &rail, world.health.faults()).unwrap();
    assert_eq!((device, fault.reason), (&hca(1), Reason::LimitsMissing));
    assert_eq!(fault_of(Give::All, &rail, world.health.faults()), None, "the GPU is in service");
    let since = fault.since;
    world.pass(10.0);
    world.marks(Mark::LimitsMissing, &[hca(1)]);
    assert_eq!(world.health.faults()[&hca(1)].since, since, "not since it was said again");
    world.marks(Mark::HeldElsewhere, &[hca(1)]);
    world.marks(Mark::LimitsMissing, &[]);
    assert_eq!(world.out(), [(hca(1), Reason::HeldElsewhere)]);
    world.marks(Mark::HeldElsewhere, std::slice::from_ref(&gpu));
    assert_eq!(fault_of(Give::One, &rail, world.health.faults()).unwrap().0, &gpu);
    world.marks(Mark::HeldElsewhere, &[]);
    assert_eq!(world.out(), []);
}
