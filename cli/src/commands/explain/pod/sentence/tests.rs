use serde_json::{Value, json};

use super::super::Placed;
use super::*;
use crate::extender::decision::{ServedDecision, read};

const POD: &str = "team-a/nb";

/// A node: its name, the percentage of the data that it holds, its score, and why it is refused.
type Asked = (&'static str, u64, u8, Option<&'static str>);

fn served(verb: &str, at: u64, nodes: &[Asked], question: &Value) -> Value {
    let candidate =
        |node: &Asked| json!({"name": node.0, "look": {"standing": {"wanted_bytes": 200, "held_bytes": 2 * node.1}}});
    let node = |node: &Asked| {
        let refused = node.3.map(|kind| format!("{}: {kind}!", node.0));
        json!({"name": node.0, "score": node.2, "terms": {"data": node.2}, "refused": refused, "reason": node.3})
    };
    let (candidates, nodes): (Vec<_>, Vec<_>) = nodes.iter().map(|one| (candidate(one), node(one))).unzip();
    let about = json!({"nodes": {"question": question, "candidates": candidates}});
    json!({"verb": verb, "at": at, "snapshot": 1, "age": 0, "about": about, "answer": "[]", "nodes": nodes})
}

fn imagenet() -> Value {
    json!({"pod": POD, "datasets": ["team-a/imagenet"], "required": null, "trouble": null})
}

/// A preemption decision that offers room on the first `offered` of three nodes.
fn room(at: u64, offered: usize) -> Value {
    let nodes = ["n1", "n2", "n3"].map(|name| json!({"name": name, "victims": [], "workers": []}));
    let pods = |name: &str| (name.to_owned(), json!({"Pods": [{"UID": "u"}], "NumPDBViolations": 0}));
    let answer: serde_json::Map<_, _> = ["n1", "n2", "n3"].into_iter().take(offered).map(pods).collect();
    let answer = json!({"NodeNameToMetaVictims": answer}).to_string();
    let about = json!({"victims": {"pod": POD, "roles": [], "nodes": nodes}});
    json!({"verb": "preempt", "at": at, "snapshot": 1, "age": 0, "about": about, "answer": answer, "nodes": []})
}

fn pod(node: &str) -> Placed {
    let node = Some(node.to_owned()).filter(|node| !node.is_empty());
    Placed { node, scheduler: "larder".to_owned(), created: 100_000, may_read: true, ..Placed::default() }
}

fn said(pod: Option<&Placed>, decisions: &[Value], asked_at: Option<&str>) -> String {
    let decisions: Vec<ServedDecision> = decisions.iter().map(|served| read(served).unwrap()).collect();
    sentence(&Story::new(POD, pod, &decisions), asked_at)
}

/// The sentence about a pod on `node` (on no node if empty), after one filter and one prioritize decision.
fn of(node: &str, filter: &[Asked], scored: &[Asked], question: &Value) -> String {
    let decisions = [served("filter", 200_000, filter, question), served("prioritize", 200_001, scored, question)];
    said(Some(&pod(node)), &decisions, None)
}

const THREE: [Asked; 3] = [("n1", 0, 0, None), ("n2", 0, 0, None), ("n7", 98, 9, None)];

#[test]
fn a_pod_placed_where_its_data_is() {
    let said = of("n7", &THREE, &THREE, &imagenet());
    assert_eq!(said, "team-a/nb went to n7, which holds 98 % of team-a/imagenet: the best of 3 candidate nodes");
    let two = [("n1", 98, 9, None), ("n2", 0, 0, None), ("n7", 98, 9, None)];
    let said = of("n7", &two, &two, &imagenet());
    assert_eq!(
        said,
        "team-a/nb went to n7, which holds 98 % of team-a/imagenet: one of the 2 best of 3 candidate nodes"
    );
    let equal = [("n1", 0, 0, None), ("n7", 0, 0, None)];
    let said = of("n7", &equal, &equal, &imagenet());
    assert_eq!(
        said,
        "team-a/nb went to n7, which holds 0 % of team-a/imagenet: as good as any other of 2 candidate nodes"
    );
    let one = [("n7", 5, 0, None)];
    let said = of("n7", &one, &one, &imagenet());
    assert_eq!(said, "team-a/nb went to n7, which holds 5 % of team-a/imagenet: the only candidate node");
    let last = [("n1", 0, 0, Some("away")), ("n7", 5, 0, None)];
    let said = of("n7", &last, &[], &imagenet());
    assert_eq!(
        said,
        "team-a/nb went to n7, which holds 5 % of team-a/imagenet: the only one of 2 candidate nodes that fits"
    );
    let mut several = imagenet();
    several["datasets"] = json!(["team-a/imagenet", "team-a/pets"]);
    let said = of("n7", &THREE, &THREE, &several);
    assert_eq!(said, "team-a/nb went to n7, which holds 98 % of its 2 datasets: the best of 3 candidate nodes");
}

#[test]
fn shared_caches_are_named_as_shared() {
    let mut decision = served("filter", 200_000, &THREE, &imagenet());
    decision["about"]["nodes"]["candidates"][2]["look"]["standing"]["shared_bytes"] = json!(1);
    let said = said(Some(&pod("n7")), &[decision], None);
    assert!(said.contains("n7, which shares caches that hold 98 % of team-a/imagenet: "), "{said}");
}

#[test]
fn a_pod_placed_by_other_criteria_of_the_scheduler() {
    let said = of("n2", &THREE, &THREE, &imagenet());
    assert_eq!(
        said,
        "team-a/nb went to n2, which holds 0 % of team-a/imagenet, though n7 has the better score (9 against 0): \
         other criteria of the scheduler decided"
    );
    let said = of("n9", &THREE, &THREE, &imagenet());
    assert_eq!(
        said,
        "team-a/nb went to n9, which was not among the 3 candidate nodes: other criteria of the scheduler decided"
    );
    let refused = [("n1", 0, 0, Some("away")), ("n7", 5, 0, None)];
    let said = of("n1", &refused, &[], &imagenet());
    assert_eq!(
        said,
        "team-a/nb went to n1, though the extender refused it (away!): the scheduler placed it without the extender"
    );
}

#[test]
fn scores_come_from_the_last_attempt() {
    let [old, new] = [[("n7", 0, 1, None), ("n1", 0, 2, None)], [("n7", 0, 4, None), ("n1", 0, 3, None)]];
    let filter = |at| served("filter", at, &[("n7", 0, 0, None), ("n1", 0, 0, None)], &imagenet());
    let scored = |at, nodes: &[Asked]| served("prioritize", at, nodes, &imagenet());
    let both = [filter(200_000), scored(200_001, &old), filter(300_000), scored(300_001, &new)];
    let after = |decisions: &[Value]| said(Some(&pod("n7")), decisions, None);
    assert!(after(&both[..2]).contains("though n1 has the better score (2 against 1)"));
    assert!(after(&both).ends_with("the best of 2 candidate nodes"), "{}", after(&both));
    assert!(after(&both[..3]).contains("as good as any other of 2 candidate nodes"), "{}", after(&both[..3]));
    // The decisions are about an earlier pod of the same name.
    let earlier = [filter(80_000), scored(80_001, &old)];
    assert!(after(&earlier).contains("why is not known: "), "{}", after(&earlier));
    assert!(after(&[filter(95_000)]).contains("as good as"), "clocks differ a little");
}

#[test]
fn a_pod_that_no_node_fits() {
    let mut question = imagenet();
    question["required"] = json!(90);
    let none = |kinds: &[&'static str]| kinds.iter().map(|kind| ("n1", 12, 1, Some(*kind))).collect::<Vec<_>>();
    let said = |kinds: &[&'static str], question: &Value| of("", &none(kinds), &[], question);
    assert_eq!(
        said(&["holds"; 12], &question),
        "team-a/nb waits: none of 12 nodes fits: 12 hold less than 90 % of team-a/imagenet"
    );
    assert_eq!(
        said(&["away", "holds", "cordoned", "away"], &question),
        "team-a/nb waits: none of 4 nodes fits: 1 holds less than 90 % of team-a/imagenet, the caches of 1 are \
         cordoned, no larderd is ready on 2"
    );
    assert_eq!(said(&["holds"], &question), "team-a/nb waits: the only candidate node does not fit: n1: holds!");
    question["datasets"] = json!(["a/b", "c/d"]);
    assert!(said(&["holds"; 2], &question).ends_with("2 hold less than 90 % of one of its datasets"));
    question["trouble"] = json!("there is no Dataset team-a/x that pods of team-a may read");
    assert_eq!(
        said(&["trouble"; 2], &question),
        "team-a/nb waits: there is no Dataset team-a/x that pods of team-a may read, and its data is required"
    );
}

#[test]
fn a_pod_that_waits_for_something_other_than_data() {
    let said = of("", &THREE, &THREE, &imagenet());
    assert_eq!(
        said,
        "team-a/nb waits for something other than its data: 3 of 3 nodes have what it needs of that, n7 best; `kubectl describe \
         pod -n team-a nb` says what"
    );
}

#[test]
fn a_pod_that_others_are_preempted_for() {
    let waiting = |decisions: &[Value]| said(Some(&pod("")), decisions, None);
    assert_eq!(
        waiting(&[room(200_000, 2)]),
        "team-a/nb waits for room: no node has what it asks for; pods can be preempted for it on 2 of 3 nodes"
    );
    assert!(waiting(&[room(200_000, 0)]).ends_with("; pods can be preempted for it on none of 3 nodes"));
    let refused = served("filter", 200_000, &[("n1", 0, 0, Some("away")); 2], &imagenet());
    let said = waiting(&[refused.clone(), room(200_001, 1)]);
    assert!(said.ends_with("no larderd is ready on 2; pods can be preempted for it on 1 of 3 nodes"), "{said}");
    let said = waiting(&[room(199_999, 1), refused]);
    assert!(said.ends_with("no larderd is ready on 2"), "{said}");
}

#[test]
fn a_pod_with_an_unknown_dataset() {
    let mut question = imagenet();
    question["trouble"] = json!("there is no Dataset team-a/x that pods of team-a may read");
    let trouble = "there is no Dataset team-a/x that pods of team-a may read: all nodes are equal for team-a/nb";
    assert_eq!(of("n1", &THREE, &THREE, &question), format!("{trouble}, which went to n1"));
    assert_eq!(of("", &THREE, &THREE, &question), format!("{trouble}, which waits"));
    assert_eq!(said(None, &[served("filter", 1, &THREE, &question)], None), trouble);
}

#[test]
fn a_pod_that_is_gone() {
    let gone = |nodes: &[Asked]| said(None, &[served("filter", 1, nodes, &imagenet())], None);
    let begin = "team-a/nb no longer exists; at its last scheduling attempt, ";
    assert_eq!(
        gone(&THREE),
        format!("{begin}n7, which holds 98 % of team-a/imagenet, was the best of 3 candidate nodes")
    );
    assert_eq!(
        gone(&[("n1", 0, 0, Some("away")); 2]),
        format!("{begin}none of 2 nodes fits: no larderd is ready on 2")
    );
    assert_eq!(
        said(None, &[room(1, 1)], None),
        "team-a/nb no longer exists; pods can be preempted for it on 1 of 3 nodes"
    );
}

#[test]
fn a_pod_that_the_extender_does_not_know() {
    let unknown = |change: fn(&mut Placed), at: Option<&str>| {
        let mut pod = pod("");
        change(&mut pod);
        said(Some(&pod), &[], at)
    };
    assert_eq!(unknown(|pod| pod.may_read = false, None), "team-a/nb reads no dataset: all nodes are equal for it");
    assert_eq!(
        unknown(|pod| pod.gates = vec!["kueue.x-k8s.io/admission".to_owned()], None),
        "team-a/nb waits: its scheduler does not see it until another controller removes its gate \
         kueue.x-k8s.io/admission"
    );
    let held = |pod: &mut Placed| {
        (pod.gates, pod.held_by) = (vec!["larder.dev/queue".to_owned()], Some("vision".to_owned()));
    };
    assert_eq!(
        unknown(held, None),
        "team-a/nb waits in the queue vision until that has quota and a node has room for it: `larder queue vision`"
    );
    let default = |pod: &mut Placed| pod.scheduler = "default-scheduler".to_owned();
    assert_eq!(
        unknown(default, None),
        "team-a/nb is not known to the extender: its scheduler is `default-scheduler`, which does not ask it; if it asks \
         another one, --extender URL names that"
    );
    let url = Some("http://10.0.0.5:9468");
    assert_eq!(
        unknown(default, url),
        "team-a/nb waits, and its scheduler `default-scheduler` has not asked the extender at http://10.0.0.5:9468 about it"
    );
    assert!(
        unknown(|_| (), None).starts_with("team-a/nb waits, and its scheduler `larder` has not asked the extender of")
    );
    // A policy requires the label of its data, and the scheduler checks labels before it calls an extender.
    let refused = |pod: &mut Placed| pod.unscheduled = Some("0/2 nodes are available".to_owned());
    assert!(unknown(refused, None).ends_with(" about it; the scheduler says: 0/2 nodes are available"));
    let placed = |pod: &mut Placed| pod.node = Some("n7".to_owned());
    assert!(unknown(placed, None).starts_with("team-a/nb went to n7, and why is not known: "));
    let unmarked = |pod: &mut Placed| {
        pod.node = Some("n7".to_owned());
        pod.is_unmarked = true;
    };
    assert_eq!(
        unknown(unmarked, None),
        "team-a/nb went to n7: its scheduler `larder` asks the extender only about pods that have a container with the \
         limit larder.dev/reads-data: \"0\""
    );
}

#[test]
fn a_pod_is_converted_from_its_object() {
    let read = |change: fn(&mut Value)| {
        let mut pod = json!({
            "metadata": {"creationTimestamp": "2026-01-31T08:00:00Z"},
            "spec": {"nodeName": "", "schedulerName": "larder", "containers": [], "volumes": [{"name": "v"}]},
            "status": {"nominatedNodeName": "n3"},
        });
        change(&mut pod);
        Placed::from(serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(pod).unwrap())
    };
    let plain = read(|_| ());
    assert_eq!((plain.node, plain.nominated.as_deref(), plain.may_read), (None, Some("n3"), false));
    assert_eq!((plain.scheduler.as_str(), plain.created), ("larder", 1_769_846_400_000));
    let changes: [fn(&mut Value); 3] = [
        |pod| pod["spec"]["volumes"][0]["persistentVolumeClaim"] = json!({"claimName": "c"}),
        |pod| pod["spec"]["volumes"][0]["csi"] = json!({"driver": "csi.larder.dev"}),
        |pod| pod["metadata"]["annotations"] = json!({"larder.dev/datasets": "x"}),
    ];
    assert!(changes.into_iter().all(|change| read(change).may_read));
    assert!(!read(|pod| pod["spec"]["volumes"][0]["csi"] = json!({"driver": "other"})).may_read);
    let limits = |pod: &mut Value| {
        pod["spec"]["containers"] = json!([{"name": "c", "resources": {"limits": {"larder.dev/reads-data": "0"}}}]);
    };
    assert!(plain.is_unmarked && !read(limits).is_unmarked);
}
