//! Where pods go.

use k8s_openapi::api::core::v1::Toleration as PodToleration;

use super::*;
use crate::jobs::kueue::places::{NoPlace, confine, place};
use crate::jobs::render::Place;
use larder_kube::pod::node_affinity::Places;

fn place_of(status: Value, role: usize) -> Result<Place, NoPlace> {
    let (sample, flavors) = (sample(), flavors());
    let name = &sample.job.roles[role].name;
    place(&there(&sample, status), name, &sample.pods[role], |name| flavors.get(&Key::cluster(name)))
}

/// An admission to which a check adds updates for workers.
fn updated(updates: Value) -> Value {
    let mut status = admission(8);
    let updates = json!([{"name": "server", "labels": {"other": "role"}}, updates]);
    status["admissionChecks"] = json!([{"name": "nodes", "state": "Ready", "podSetUpdates": updates}]);
    status
}

fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn pods_go_where_both_of_their_flavors_are() {
    let worker = place_of(admission(8), 1).unwrap();
    assert_eq!(worker.selector, labels(&[("gpu", "h100")]));
    assert_eq!(worker.labels, labels(&[("kueue.x-k8s.io/podset", "worker")]));
    assert_eq!(worker.annotations, labels(&[("kueue.x-k8s.io/workload", NAME)]));
    let spot = PodToleration {
        key: Some("spot".into()),
        operator: Some("Exists".into()),
        toleration_seconds: Some(30),
        ..PodToleration::default()
    };
    assert_eq!((worker.tolerations.as_slice(), worker.gates.len()), (&[spot][..], 0));
    assert_eq!(place_of(admission(8), 0).unwrap().selector, labels(&[]));
    // The plan sees the constraint, too.
    let mut places = Places { labels: labels(&[("zone", "a")]), ..Places::default() };
    confine(&mut places, &worker);
    assert_eq!(places.labels, labels(&[("gpu", "h100"), ("zone", "a")]));
    assert_eq!(places.tolerations, flavors().get(&Key::cluster("h100")).expect("known").tolerations);
}

#[test]
fn checks_add_to_the_pods_of_their_role() {
    let update = json!({
        "name": "worker",
        "labels": {"team": "a"},
        "annotations": {"cluster-autoscaler.kubernetes.io/consume-provisioning-request": "req"},
        "nodeSelector": {"pool": "reserved"},
        "tolerations": [{"key": "reserved", "operator": "Exists"}, {"key": "spot", "operator": "Exists", "tolerationSeconds": 30}],
    });
    let place = place_of(updated(update), 1).unwrap();
    assert_eq!(place.selector, labels(&[("gpu", "h100"), ("pool", "reserved")]));
    assert_eq!(place.labels, labels(&[("kueue.x-k8s.io/podset", "worker"), ("team", "a")]));
    assert_eq!(place.annotations["cluster-autoscaler.kubernetes.io/consume-provisioning-request"], "req");
    assert_eq!(place.tolerations.len(), 2, "none twice");
}

#[test]
fn a_check_that_contradicts_the_pod_or_its_flavors_finishes_the_workload() {
    let why = "nodeSelector of worker, and the check nodes: gpu is \"h100\" in one and \"a100\" in the other";
    let update = json!({"name": "worker", "nodeSelector": {"gpu": "a100"}});
    match place_of(updated(update.clone()), 1) {
        Err(NoPlace::Contradiction(contradiction)) => assert_eq!(contradiction.to_string(), why),
        other => panic!("{other:?}"),
    }
    let mut case = Case::queued(Some(there(&sample(), updated(update))));
    case.observed.pods = vec![Pod { leaving: Some(NOW + 300), ..Pod::default() }];
    assert_eq!(case.held_up(), (false, why.to_owned(), Vec::new()), "an earlier pod of the job uses the quota");
    case.observed.pods.clear();
    let (_, said, writes) = case.held_up();
    assert_eq!(said, why);
    let (conditions, _) = status_of(&writes);
    assert_eq!(conditions["Finished"], pair("True", "FailedToStart"));
    // The update contradicts the role's own label and its own selector.
    let update = json!({"name": "worker", "labels": {"larder.dev/job": "another"}});
    assert!(matches!(place_of(updated(update), 1), Err(NoPlace::Contradiction(_))));
    let (mut sample, flavors) = (sample(), flavors());
    sample.pods[1].spec.as_mut().unwrap().node_selector = Some(labels(&[("gpu", "a100")]));
    let workload = there(&super::sample(), admission(8));
    let refused = place(&workload, "worker", &sample.pods[1], |name| flavors.get(&Key::cluster(name)));
    assert!(matches!(refused, Err(NoPlace::Contradiction(_))));
}

#[test]
fn kueue_opens_the_gate_of_pods_whose_nodes_it_chooses() {
    let mut status = admission(8);
    let domains = json!([{"values": ["rack-1", "n1"], "count": 8}]);
    status["admission"]["podSetAssignments"][1]["topologyAssignment"] =
        json!({"levels": ["rack", "host"], "domains": domains});
    let place = place_of(status.clone(), 1).unwrap();
    assert_eq!(place.gates, ["kueue.x-k8s.io/topology"]);
    assert_eq!(place.annotations["kueue.x-k8s.io/podset-unconstrained-topology"], "true");
    // A topology request of the pod's own is left alone.
    let (mut sample, flavors) = (sample(), flavors());
    sample.pods[1].metadata.annotations = Some(labels(&[("kueue.x-k8s.io/podset-preferred-topology", "rack")]));
    let place = super::super::places::place(&there(&super::sample(), status), "worker", &sample.pods[1], |name| {
        flavors.get(&Key::cluster(name))
    });
    assert_eq!(place.unwrap().annotations, labels(&[("kueue.x-k8s.io/workload", NAME)]));
}

#[test]
fn pods_carry_all_of_a_place_and_no_queue_of_their_own() {
    let sample = Sample::of(
        "parameter-server",
        json!({"roles": [role("server", 1, 1), {
            "name": "worker",
            "template": {
                "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "another", "team": "a"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]},
            },
        }]}),
    );
    let place = Place {
        annotations: labels(&[("a", "b")]),
        gates: vec!["g".into()],
        labels: labels(&[("c", "d")]),
        ..Place::default()
    };
    let facts = crate::jobs::render::Facts::default();
    let renderer = crate::jobs::render::Renderer::new(sample.rendered(), &facts);
    let pod = renderer.pod("worker", 0, 0, &place).unwrap();
    let there = pod.metadata.labels.unwrap();
    assert_eq!((there.get("kueue.x-k8s.io/queue-name"), &*there["c"], &*there["team"]), (None, "d", "a"));
    assert_eq!(pod.metadata.annotations.unwrap()["a"], "b");
    assert_eq!(pod.spec.unwrap().scheduling_gates.unwrap()[0].name, "g");
}
