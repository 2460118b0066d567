//! Random events: a device is never in service while it has a problem, never out of service for a problem that no event
//! reported, and always in service at the end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::world::{World, gpu, hca};
use crate::health::{Event, Mark, Reason, RecoveryAction};
use crate::resource::DeviceKey;

#[derive(Clone, Debug)]
enum Step {
    Pass(f64),
    Port(u8, bool),
    Xid(u8, u64),
    Recovery(u8, RecoveryAction),
    Driver(bool),
    Fails(u8),
    There(usize, bool),
    Mark(bool, usize, bool),
}

fn devices() -> [DeviceKey; 5] {
    [gpu(0), gpu(1), gpu(2), hca(1), hca(2)]
}

fn recovery() -> impl Strategy<Value = RecoveryAction> {
    use RecoveryAction::{DrainAndReset, DrainP2p, GpuReset, NodeReboot, None, Other, Unsupported};
    let others = [GpuReset, NodeReboot, DrainP2p, DrainAndReset, Other(6)];
    prop::sample::select([vec![None, None, Unsupported, Unsupported], others.to_vec()].concat())
}

fn step() -> impl Strategy<Value = Step> {
    let xid = prop::sample::select(vec![13, 31, 48, 79, 94, 95, 154, 4711]);
    prop_oneof![
        4 => (0.0..70.0).prop_map(Step::Pass),
        3 => (1u8..3, any::<bool>()).prop_map(|(bus, up)| Step::Port(bus, up)),
        2 => (0u8..3, xid).prop_map(|(n, xid)| Step::Xid(n, xid)),
        2 => (0u8..3, recovery()).prop_map(|(n, action)| Step::Recovery(n, action)),
        1 => any::<bool>().prop_map(Step::Driver),
        1 => (0u8..3).prop_map(Step::Fails),
        1 => (0usize..5, any::<bool>()).prop_map(|(at, there)| Step::There(at, there)),
        1 => (any::<bool>(), 0usize..5, any::<bool>()).prop_map(|(kind, at, set)| Step::Mark(kind, at, set)),
    ]
}

/// The reference model: the current problems, with times in seconds since the start.
#[derive(Default)]
struct Wrong {
    port_down: BTreeMap<u8, f64>,
    port_up: BTreeMap<u8, f64>,
    was_out: BTreeSet<u8>,
    last_xid: BTreeMap<u8, (f64, bool)>,
    asked: BTreeMap<u8, RecoveryAction>,
    /// GPUs that were there and had an Xid while the driver reported no recovery actions, until it does or they are
    /// gone.
    not_reset: BTreeSet<u8>,
    /// GPUs that ever had an Xid or a recovery action.
    ever_faulty: BTreeSet<u8>,
    driver: Option<f64>,
    silent: BTreeMap<u8, f64>,
    missing: BTreeSet<usize>,
    /// The devices that are known to be removed. While the driver does not answer, no GPU is.
    gone: BTreeSet<usize>,
    marked: [BTreeSet<usize>; 2],
}

impl Wrong {
    /// Devices that must be out of service.
    fn must_be_out(&self, now: f64) -> BTreeSet<DeviceKey> {
        let all = devices();
        let mut out: BTreeSet<DeviceKey> =
            self.gone.iter().chain(self.marked.iter().flatten()).map(|at| all[*at].clone()).collect();
        out.extend(self.port_down.iter().filter(|(_, since)| now - **since >= 5.001).map(|(bus, _)| hca(*bus)));
        let young = |bus: &&u8| self.port_up.get(*bus).is_some_and(|since| now - since < 29.999);
        out.extend(self.was_out.iter().filter(young).map(|bus| hca(*bus)));
        let is_fine = |action| matches!(action, RecoveryAction::None | RecoveryAction::Unsupported);
        out.extend(self.asked.iter().filter(|(_, action)| !is_fine(**action)).map(|(n, _)| gpu(*n)));
        out.extend(self.not_reset.iter().map(|n| gpu(*n)));
        out.extend(self.silent.iter().filter(|(_, since)| now - **since >= 30.001).map(|(n, _)| gpu(*n)));
        let fresh: Vec<_> = self.last_xid.iter().filter(|(_, (at, _))| now - at < 59.999).collect();
        out.extend(fresh.iter().map(|(n, _)| gpu(**n)));
        let is_node = fresh.iter().any(|(_, (_, node))| *node)
            || self.asked.values().any(|action| *action == RecoveryAction::NodeReboot);
        if is_node || self.driver.is_some_and(|since| now - since >= 30.001) {
            out.extend((0..3).map(gpu));
        }
        out
    }

    /// True if an event justifies that the device is out of service for this reason. For GPU faults, the model does not
    /// check whether the fault has ended, since that also depends on the driver.
    fn explains(&self, device: &DeviceKey, reason: Reason, now: f64) -> bool {
        let at = place_of(device);
        let n = at as u8;
        let is_late = |since: &f64, seconds: f64| now - since >= seconds - 0.001;
        match reason {
            Reason::PortDown => {
                let bus = n - 2;
                let down = self.port_down.get(&bus);
                let is_young = self.port_up.get(&bus).is_some_and(|since| !is_late(since, 30.002));
                down.is_some_and(|since| is_late(since, 5.0))
                    || self.was_out.contains(&bus) && (is_young || down.is_some())
            }
            Reason::GpuFault => self.ever_faulty.contains(&n),
            Reason::DriverSilent => self.driver.iter().chain(self.silent.get(&n)).any(|since| is_late(since, 30.0)),
            Reason::Gone => self.gone.contains(&at),
            Reason::LimitsMissing => self.marked[0].contains(&at),
            Reason::HeldElsewhere => self.marked[1].contains(&at),
            Reason::NotPrepared => false,
        }
    }

    fn concern(&mut self, n: u8, is_node: bool) {
        if is_node {
            self.ever_faulty.extend(0..3);
        } else {
            self.ever_faulty.insert(n);
        }
    }
}

/// The index of a device in [`devices`]. A slice has the index of its GPU.
fn place_of(device: &DeviceKey) -> usize {
    let gpu = match device {
        DeviceKey::Slice(uuid) => gpu(uuid.as_bytes()[4] - b'0'),
        whole => whole.clone(),
    };
    devices().iter().position(|known| *known == gpu).unwrap_or_else(|| panic!("{device} is not there"))
}

fn inventory(world: &mut World, wrong: &mut Wrong) {
    let (missing, is_silent) = (&wrong.missing, wrong.driver.is_some());
    let known = |at: &&usize| **at >= 3 || !is_silent || wrong.gone.contains(*at);
    wrong.gone = missing.iter().filter(known).copied().collect();
    wrong.not_reset.retain(|n| !wrong.gone.contains(&usize::from(*n)));
    let missing: Vec<DeviceKey> = wrong.missing.iter().map(|at| devices()[*at].clone()).collect();
    world.down = wrong.port_down.keys().copied().collect();
    world.machine_without(&missing);
}

fn play(world: &mut World, wrong: &mut Wrong, step: Step) {
    let now = (world.now.instant - world.start.instant).as_secs_f64();
    let note_ports = |wrong: &mut Wrong| {
        let out = wrong.port_down.iter().filter(|(_, since)| now - **since >= 5.0).map(|(bus, _)| *bus);
        let out: Vec<u8> = out.collect();
        wrong.was_out.extend(out);
    };
    match step {
        Step::Pass(seconds) => world.pass(seconds),
        Step::Port(bus, up) => {
            note_ports(wrong);
            if up {
                if wrong.port_down.remove(&bus).is_some() {
                    wrong.port_up.insert(bus, now);
                }
            } else {
                if wrong.port_up.remove(&bus).is_some_and(|since| now - since >= 30.0) {
                    wrong.was_out.remove(&bus);
                }
                wrong.port_down.entry(bus).or_insert(now);
            }
            world.ports(bus, &[up, false]);
        }
        Step::Xid(n, xid) => {
            world.xid(n, xid);
            if [48, 79, 95, 4711].contains(&xid) {
                let node = xid == 79 || wrong.last_xid.get(&n).is_some_and(|(at, node)| *node && now - at < 59.0);
                wrong.last_xid.insert(n, (now, node));
                let is_unknown = wrong.asked.get(&n) == Some(&RecoveryAction::Unsupported);
                if is_unknown && !wrong.gone.contains(&usize::from(n)) {
                    wrong.not_reset.insert(n);
                }
                wrong.concern(n, node);
            }
        }
        Step::Recovery(n, action) => {
            world.recovery(n, action);
            if action != RecoveryAction::Unsupported {
                wrong.not_reset.remove(&n);
            }
            if !matches!(action, RecoveryAction::None | RecoveryAction::Unsupported) {
                wrong.concern(n, action == RecoveryAction::NodeReboot);
            }
            wrong.asked.insert(n, action);
            wrong.silent.remove(&n);
        }
        Step::Driver(answers) => {
            if answers {
                wrong.driver = None;
                wrong.gone.clone_from(&wrong.missing);
                wrong.not_reset.retain(|n| !wrong.gone.contains(&usize::from(*n)));
                world.see(Event::DriverAnswered);
            } else {
                wrong.driver = wrong.driver.or(Some(now));
                world.fails();
            }
        }
        Step::Fails(n) => {
            wrong.silent.entry(n).or_insert(now);
            world.gpu_fails(n);
        }
        Step::There(at, there) => {
            // The intervals of a port restart with its HCA.
            if at < 3 || wrong.port_down.is_empty() && wrong.was_out.is_empty() {
                if there {
                    wrong.missing.remove(&at)
                } else {
                    wrong.missing.insert(at)
                };
                inventory(world, wrong);
            }
        }
        Step::Mark(kind, at, set) => {
            let marked = &mut wrong.marked[usize::from(kind)];
            if set {
                marked.insert(at)
            } else {
                marked.remove(&at)
            };
            let marked: Vec<DeviceKey> = marked.iter().map(|at| devices()[*at].clone()).collect();
            world.marks(if kind { Mark::HeldElsewhere } else { Mark::LimitsMissing }, &marked);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SEMANTICS: D15
    #[test]
    fn a_device_is_out_while_something_is_wrong_with_it_and_back_when_nothing_is(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        let mut wrong = Wrong::default();
        for step in steps {
            play(&mut world, &mut wrong, step);
            let now = (world.now.instant - world.start.instant).as_secs_f64();
            for device in wrong.must_be_out(now) {
                prop_assert!(world.is_out(&device), "{device} is in service at {now}");
            }
            // A device is not out of service for a problem that was never reported.
            for (device, fault) in world.health.faults().iter() {
                prop_assert!(fault.since <= world.now.wall, "{device} {fault:?}");
                prop_assert!(wrong.explains(device, fault.reason, now), "{device} at {now}: {fault:?}");
            }
        }
        let recover = (0..3).map(|n| Step::Recovery(n, RecoveryAction::None));
        let ends: Vec<Step> = [Step::Driver(true)].into_iter().chain(recover).collect();
        wrong.missing.clear();
        inventory(&mut world, &mut wrong);
        for step in ends {
            play(&mut world, &mut wrong, step);
        }
        for (kind, at) in [(true, 0), (false, 0)].into_iter().flat_map(|(kind, _)| (0..5).map(move |at| (kind, at))) {
            play(&mut world, &mut wrong, Step::Mark(kind, at, false));
        }
        for bus in 1..3 {
            play(&mut world, &mut wrong, Step::Port(bus, true));
        }
        // The longest quiet time.
        world.pass(4.0 * 3600.0);
        prop_assert_eq!(world.out(), vec![]);
        prop_assert_eq!(world.next(), None);
    }
}
