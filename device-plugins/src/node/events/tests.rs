use std::sync::Arc;
use std::time::SystemTime;

use larder_kubelet::podresources::{ContainerDevices, ContainerResources, ListPodResourcesResponse, PodResources};

use super::*;
use crate::config::Kind;
use crate::health::{Fault, Faults, Reason};
use crate::machine::{Machine, MigSlice};
use crate::node::holders::tests::listed;
use crate::node::samples;
use crate::node::uids::Uids;

fn fault(reason: Reason, message: &str) -> Fault {
    let recovery = "port 1 is ACTIVE for 30 s".to_owned();
    Fault { reason, message: message.to_owned(), since: SystemTime::UNIX_EPOCH, recovery }
}

fn view(faults: &[(DeviceKey, Fault)]) -> View {
    View { faults: Arc::new(faults.iter().cloned().collect::<Faults>()), ..samples::view() }
}

/// `a` holds the first HCA with two containers, `b` holds both HCAs.
fn held() -> Held {
    let container = |name: &str, ids: &[&str]| {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let given = ContainerDevices { resource_name: "larder.dev/hca".into(), device_ids, topology: None };
        ContainerResources { name: name.into(), devices: vec![given], ..ContainerResources::default() }
    };
    let pod = |name: &str, containers| PodResources { name: name.into(), namespace: "team".into(), containers };
    let pods = vec![
        pod("a", vec![container("x", &["0000:20:00.0::0"]), container("y", &["0000:20:00.0::1"])]),
        pod("b", vec![container("x", &["0000:20:00.0::2", "0000:21:00.0::0"])]),
    ];
    let listed = ListPodResourcesResponse { pod_resources: pods };
    let mut resources = samples::view().resources.to_vec();
    resources[1].config.share = 3;
    Held::of(&resources, &listed, &Uids::default())
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn shown(events: &[Report]) -> Vec<String> {
    let about = |event: &Report| match &event.about {
        About::Pod { namespace, name, .. } => format!("{namespace}/{name}"),
        About::Node(name) => format!("node {name}"),
    };
    events.iter().map(|event| format!("{} {} {}", about(event), event.reason, event.note)).collect()
}

// SEMANTICS: D23
#[test]
fn each_pod_with_the_device_gets_one_event_when_it_leaves_service_and_one_when_it_returns() {
    let well = view(&[]);
    let down = view(&[(samples::hca(0), fault(Reason::PortDown, "port 1 is DOWN"))]);
    let events = between("n1", Some(&well), &down, &held(), at(1));
    let note = "DeviceOutOfService mlx5_0 (0000:20:00.0) is out of service: port 1 is DOWN (PortDown); it returns to service once port 1 \
                is ACTIVE for 30 s";
    assert_eq!(shown(&events), [format!("team/a {note}"), format!("team/b {note}")]);
    assert!(events.iter().all(|event| event.is_warning && event.at == Some(at(1))));
    assert_eq!(between("n1", Some(&down), &down, &held(), at(2)), []);
    let events = between("n1", Some(&down), &well, &held(), at(3));
    let note = "DeviceInService mlx5_0 (0000:20:00.0) is back in service; it was out because of PortDown";
    assert_eq!(shown(&events), [format!("team/a {note}"), format!("team/b {note}")]);
    assert!(events.iter().all(|event| !event.is_warning));
}

// SEMANTICS: D23
#[test]
fn a_removed_device_is_not_reported_as_back_in_service() {
    let down = view(&[(samples::hca(0), fault(Reason::PortDown, "port 1 is DOWN"))]);
    let mut without = view(&[]);
    Arc::make_mut(&mut without.machine).hcas.remove(0);
    assert_eq!(between("n1", Some(&down), &without, &held(), at(1)), []);
}

// SEMANTICS: D23
#[test]
fn another_reason_is_a_new_event_and_another_message_is_not() {
    let of = |reason, message: &str| view(&[(samples::hca(1), fault(reason, message))]);
    let down = of(Reason::PortDown, "port 1 is DOWN");
    assert_eq!(between("n1", Some(&down), &of(Reason::PortDown, "port 1 is INIT"), &held(), at(1)), []);
    let events = between("n1", Some(&down), &of(Reason::Gone, "it is gone"), &held(), at(1));
    assert_eq!((events.len(), events[0].reason), (1, "DeviceOutOfService"));
    // Nobody holds a GPU.
    let gpu = view(&[(samples::gpu(0), fault(Reason::GpuFault, "Xid 79"))]);
    assert_eq!(between("n1", Some(&view(&[])), &gpu, &held(), at(1)), []);
}

// SEMANTICS: D23
#[test]
fn pods_get_no_event_about_devices_that_are_out_of_service_because_they_hold_them() {
    let well = view(&[]);
    let held_elsewhere = view(&[(samples::hca(0), fault(Reason::HeldElsewhere, "pod team/a has it"))]);
    let down = view(&[(samples::hca(0), fault(Reason::PortDown, "port 1 is DOWN"))]);
    for (before, now, wanted) in [
        (Some(&well), &held_elsewhere, None),
        (Some(&held_elsewhere), &well, None),
        (None, &held_elsewhere, None),
        (Some(&held_elsewhere), &down, Some("DeviceOutOfService")),
        (Some(&down), &held_elsewhere, Some("DeviceInService")),
    ] {
        let events = between("n1", before, now, &held(), at(1));
        assert_eq!(
            events.iter().map(|event| event.reason).collect::<Vec<_>>(),
            vec![wanted; 2].into_iter().flatten().collect::<Vec<_>>()
        );
    }
}

// SEMANTICS: D1
#[test]
fn the_node_gets_events_about_missing_components_and_a_refused_configuration() {
    let missing = |why: &str| View {
        capabilities: crate::health::capabilities::Capabilities { nri: Some(why.into()), ..view(&[]).capabilities },
        refused_config: Some("config.yaml:3: unknown key".into()),
        ..view(&[])
    };
    let events = between("n1", Some(&view(&[])), &missing("it is not connected"), &held(), at(1));
    let expected = [
        "node n1 LimitsMissing container limits cannot be enforced because nri is missing: it is not connected",
        "node n1 ConfigRefused the new configuration is refused and the previous one stays in force: config.yaml:3: unknown key",
    ];
    assert_eq!(shown(&events), expected);
    assert_eq!(between("n1", Some(&missing("a")), &missing("a"), &held(), at(2)), []);
    assert_eq!(between("n1", Some(&missing("a")), &missing("b"), &held(), at(2)).len(), 1);
    assert_eq!(between("n1", Some(&missing("a")), &view(&[]), &held(), at(2)), []);
    // Where no limit needs it, nobody misses it.
    let mut unlimited = missing("a").resources.to_vec();
    unlimited[1].config.limits = None;
    let unlimited = View { resources: unlimited.into(), ..missing("a") };
    assert_eq!(between("n1", None, &unlimited, &held(), at(1)).len(), 1, "but the configuration");
    let mut none = missing("a").resources.to_vec();
    none[1].units.clear();
    let none = View { resources: none.into(), ..missing("a") };
    assert_eq!(between("n1", None, &none, &held(), at(1)).len(), 1, "no device has the limit");
    assert_eq!(between("n1", Some(&none), &missing("a"), &held(), at(1)).len(), 1, "its first device has come");
    let event = events[0].event("n1", at(9));
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    let regarding = event.regarding.unwrap();
    assert_eq!((regarding.kind.as_deref(), regarding.uid.as_deref()), (Some("Node"), Some("n1")));
}

// SEMANTICS: D23
#[test]
fn the_holders_of_a_gpu_get_an_event_about_an_xid() {
    let notice = Notice {
        device: samples::hca(1),
        action: XidAction::RestartWorker,
        xid: 94,
        meaning: "contained memory error",
    };
    let events = noticed(&notice, &view(&[]), &held(), at(1));
    let note = "team/b DeviceXid mlx5_1 (0000:21:00.0): Xid 94: contained memory error; the pod's work on it has failed: restart \
                the pod; the device stays in service";
    assert_eq!(shown(&events), [note]);
}

// SEMANTICS: D23
#[test]
fn an_xid_of_a_gpu_in_mig_mode_is_one_event_for_each_holder_of_its_slices() {
    let slice = |n: u32| MigSlice { uuid: format!("MIG-{n}"), ..MigSlice::default() };
    let mut view = view(&[]);
    let mut machine = Machine::clone(&view.machine);
    machine.gpus[0].mig = Some((0..3).map(slice).collect());
    machine.gpus[1].mig = Some(vec![slice(3)]);
    view.machine = Arc::new(machine);
    let key = |n| DeviceKey::Slice(format!("MIG-{n}"));
    let resources = [samples::resource("larder.dev/mig", Kind::Mig, 1, &[key(0), key(1), key(2), key(3)])];
    let listed = listed(&[("a", "larder.dev/mig", &["MIG-0", "MIG-1"]), ("b", "larder.dev/mig", &["MIG-3"])]);
    let held = Held::of(&resources, &listed, &Uids::default());
    let notice = Notice { device: samples::gpu(0), action: XidAction::RestartWorker, xid: 13, meaning: "an exception" };
    let note = "team-a/a DeviceXid GPU 0 (GPU-0, 0000:10:00.0): Xid 13: an exception; the driver does not report \
                the slice: restart the pod if its work has failed; the device stays in service";
    assert_eq!(shown(&noticed(&notice, &view, &held, at(1))), [note]);
    // One that names a slice is reported to the slice's holders alone.
    let events = noticed(&Notice { device: key(3), ..notice }, &view, &held, at(1));
    assert_eq!(events.len(), 1);
    assert!(shown(&events)[0].starts_with("team-a/b DeviceXid slice"), "{events:?}");
}

// SEMANTICS: D23
#[test]
fn retries_of_an_event_have_one_name_and_another_time_has_another() {
    let down = view(&[(samples::hca(1), fault(Reason::PortDown, "port 1 is DOWN"))]);
    let name = |before: Option<&View>, happened, tried| {
        between("n1", before, &down, &held(), at(happened))[0].event("n1", at(tried)).metadata.name.unwrap()
    };
    let well = view(&[]);
    assert_eq!(name(Some(&well), 1, 5), name(Some(&well), 1, 9));
    assert_ne!(name(Some(&well), 1, 5), name(Some(&well), 2, 5));
    // What two processes find when they start is reported once.
    assert_eq!(name(None, 1, 1), name(None, 2, 2));
    assert_ne!(name(None, 1, 1), name(Some(&well), 1, 1));
}

#[test]
fn names_and_notes_are_cut_to_the_limits_of_the_api() {
    let about =
        About::Pod { namespace: "a".into(), name: format!("{}-{}", "n".repeat(199), "x".repeat(53)), uid: "".into() };
    let down = view(&[(samples::hca(1), fault(Reason::PortDown, &"ä".repeat(2_000)))]);
    let events = between("n1", None, &down, &held(), at(1));
    assert!(events[0].note.len() <= NOTE_BYTES && events[0].note.ends_with('…'));
    let event = Report { about, ..events[0].clone() }.event(&"n".repeat(253), at(1));
    let name = event.metadata.name.unwrap();
    assert!(name.len() <= 253 && name.starts_with(&format!("{}.", "n".repeat(199))), "{name}");
    assert_eq!(event.reporting_instance.unwrap().len(), 128);
    assert_eq!(event.regarding.unwrap().uid, None, "an empty one is left out");
}
