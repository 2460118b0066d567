use super::*;
use crate::constraints::has_constraints;

fn refused(body: &str) -> String {
    args(body.as_bytes()).expect_err("refused").0
}

/// The scheduler uses sentences as format strings: it would turn "90 % of it" into "90 %!o(MISSING)f it".
#[test]
fn a_sentence_has_no_percent_sign() {
    let failing = [("n1", "holds 12 % of \"d\""), ("n2", "%"), ("n3", "none")];
    let answer: serde_json::Value =
        serde_json::from_slice(&filter_answer([].into_iter(), failing.into_iter())).unwrap();
    let expected = serde_json::json!({"n1": "holds 12 percent of \"d\"", "n2": "percent", "n3": "none"});
    assert_eq!(answer["FailedAndUnresolvableNodes"], expected);
}

#[test]
fn a_missing_field_is_rejected_by_its_name() {
    assert!(refused(r#"{"NodeNames":["n1"]}"#).starts_with("Pod is missing: "));
    let whole_nodes = r#"{"Pod":{"metadata":{},"spec":{}},"Nodes":{"items":[]},"NodeNames":null}"#;
    assert!(refused(whole_nodes).starts_with("NodeNames is missing: set nodeCacheCapable: true"));
    assert!(refused(r#"{"Pod":{"metadata":{}},"NodeNames":[]}"#).contains("missing field `spec`"));
    assert!(refused("[]").contains("not a request of kube-scheduler"));
    assert!(refused(r#"{"Pod":{"metadata":{},"spec":{}},"NodeNames":[3]}"#).contains("integer `3`"));
    let of_preempt = preempt_args(br#"{"Pod":{"metadata":{},"spec":{}}}"#).expect_err("refused").0;
    assert!(of_preempt.starts_with("NodeNameToMetaVictims is missing: "), "{of_preempt}");
}

#[test]
fn fields_that_are_not_known_are_skipped_and_small_letters_are_read() {
    let body = r#"{"pod":{"metadata":{"name":"p","namespace":"a","labels":null,"new":[{}]},"spec":{"new":1}},
        "nodeNames":["n\u0031"],"More":{"a":[1,2]}}"#;
    let args = args(body.as_bytes()).unwrap();
    assert_eq!((args.pod.key().as_str(), args.names[0].as_str()), ("a/p", "n1"));
    assert_eq!(args.pod.spec().unwrap().spec.priority, None);
}

#[test]
fn a_field_that_cannot_be_read_is_left_out_of_the_spec() {
    let body = |spec: &str| format!(r#"{{"Pod":{{"metadata":{{}},"spec":{spec}}},"NodeNames":[]}}"#);
    let odd = r#"{"priority":5,"hostUsers":"of a newer release","volumes":[{"name":"a","csi":7},{"name":"b"}]}"#;
    let Spec { spec, is_whole } = args(body(odd).as_bytes()).unwrap().pod.spec().unwrap();
    assert_eq!((spec.priority, spec.host_users, is_whole), (Some(5), None, false));
    assert_eq!(spec.volumes.unwrap().iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(args(body("{}").as_bytes()).unwrap().pod.spec().unwrap().is_whole);
    let none = args(body("3").as_bytes()).unwrap().pod.spec().expect_err("refused").0;
    assert!(none.starts_with("Pod.spec: "), "{none}");
}

#[test]
fn names_are_borrowed_from_the_request() {
    let body = br#"{"Pod":{"metadata":{"name":"p"},"spec":{}},"NodeNames":["n1"]}"#;
    let args = args(body).unwrap();
    assert!(matches!(args.names[0], Text(Cow::Borrowed("n1"))));
    assert!(matches!(args.pod.metadata.name, Cow::Borrowed("p")));
}

#[test]
fn victims_are_read_as_pods_and_as_uids() {
    let pod = r#""Pod":{"metadata":{"name":"p"},"spec":{"priority":5}}"#;
    let whole = format!(
        r#"{{{pod},"NodeNameToVictims":{{"n1":{{"Pods":[{{"metadata":{{"uid":"u1"}},"spec":{{}}}}],"NumPDBViolations":1}}}},
        "NodeNameToMetaVictims":null}}"#
    );
    let meta = format!(
        r#"{{{pod},"NodeNameToVictims":null,
        "NodeNameToMetaVictims":{{"n1":{{"Pods":[{{"UID":"u1"}}],"NumPDBViolations":1}}}}}}"#
    );
    let none = format!(r#"{{{pod},"NodeNameToMetaVictims":{{"n1":{{"Pods":null}}}}}}"#);
    let text = |text: &'static str| Text(Cow::Borrowed(text));
    let expected = [Victims { node: text("n1"), uids: vec![text("u1")], budget_violations: 1 }];
    assert_eq!(preempt_args(whole.as_bytes()).unwrap().nodes, expected);
    let args = preempt_args(meta.as_bytes()).unwrap();
    assert_eq!((args.nodes, args.pod.spec().unwrap().spec.priority), (expected.into(), Some(5)));
    assert!(preempt_args(none.as_bytes()).unwrap().nodes[0].uids.is_empty());
}

#[test]
fn a_pod_with_a_port_or_an_affinity_is_entangled() {
    let of = |spec: &str| {
        let body = format!(r#"{{"Pod":{{"metadata":{{}},"spec":{spec}}},"NodeNames":[]}}"#);
        has_constraints(&args(body.as_bytes()).unwrap().pod.spec().unwrap().spec)
    };
    assert!(!of(r#"{"containers":[{"ports":[{"containerPort":80}]}],"affinity":{"nodeAffinity":{}}}"#));
    assert!(of(r#"{"containers":[{"ports":[{"hostPort":80}]}]}"#));
    assert!(of(r#"{"affinity":{"podAntiAffinity":{}}}"#) && of(r#"{"affinity":{"podAffinity":{}}}"#));
}

#[test]
fn answers_are_what_the_scheduler_reads() {
    let text = |answer: Vec<u8>| String::from_utf8(answer).unwrap();
    let failing = [("n2", "n2: \"no\"".to_owned())].into_iter();
    assert_eq!(
        text(filter_answer(["n1", "n3"].into_iter(), failing)),
        r#"{"Nodes":null,"NodeNames":["n1","n3"],"FailedNodes":{},"FailedAndUnresolvableNodes":{"n2":"n2: \"no\""},"Error":""}"#
    );
    // An empty list, never null, which would mean the same but is less clear.
    assert!(text(filter_answer(std::iter::empty(), std::iter::empty::<(_, &str)>())).contains(r#""NodeNames":[]"#));
    let scores = [("n1", 10), ("n2", 1)].into_iter();
    assert_eq!(text(prioritize_answer(scores)), r#"[{"Host":"n1","Score":10},{"Host":"n2","Score":1}]"#);
    assert_eq!(text(prioritize_answer(std::iter::empty())), "[]");
    assert_eq!(
        text(preempt_answer([("n1", vec!["a", "b"], 2)].into_iter())),
        r#"{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"},{"UID":"b"}],"NumPDBViolations":2}}}"#
    );
}
