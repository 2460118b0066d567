use super::*;
use crate::load::Size;
use crate::preempt::{NodeCase, PodCase};
use crate::replay::{Replayed, replay};
use crate::{answer, index::Index};

const SIZE: Size = Size { nodes: 30, datasets: 6, pods: 200 };

fn snapshot() -> Arc<Snapshot> {
    let mut index = Index::new(vec!["nvidia.com/gpu".into()]);
    SIZE.events().into_iter().for_each(|event| index.apply(event));
    index.show()
}

fn note(verb: Verb, asked: AskedFor, snapshot: &Arc<Snapshot>, answer: Bytes) -> Note {
    Note {
        verb,
        asked,
        nodes: 0,
        is_troubled: false,
        snapshot: Arc::clone(snapshot),
        age: Duration::from_secs(2),
        answer,
    }
}

fn decide(verb: Verb, request: Bytes, snapshot: &Arc<Snapshot>) -> Option<Decision> {
    let settings = Settings::default();
    let answer = {
        let args = wire::args(&request).unwrap();
        let asked = ask(&args.pod, &settings, snapshot).unwrap();
        let (asked, name) = (asked.as_ref(), |at: usize| args.names[at].as_str());
        match verb {
            Verb::Filter => {
                answer::filter(asked.map(|(question, sight)| (question, |at| sight.glance(name(at)))), &args.names)
            }
            _ => answer::prioritize(asked.map(|(question, sight)| (question, |at| sight.look(name(at)))), &args.names),
        }
    };
    decision(note(verb, AskedFor::Nodes(request), snapshot, answer.into()), &settings)
}

#[test]
fn a_kept_decision_is_decided_again_with_the_same_answer() {
    let snapshot = snapshot();
    let mut ring = Ring::default();
    for dataset in 0..6 {
        for verb in [Verb::Filter, Verb::Prioritize] {
            ring.push(decide(verb, SIZE.request(20, Some(dataset)), &snapshot).unwrap());
            ring.push(decide(verb, SIZE.request(20, Some(dataset)), &snapshot).unwrap());
        }
    }
    let case = Case { pod: "a/p".into(), ..Case::default() };
    let asked = AskedFor::Victims(Box::new(case));
    let answer = Bytes::from_static(br#"{"NodeNameToMetaVictims":{}}"#);
    ring.push(decision(note(Verb::Preempt, asked, &snapshot, answer), &Settings::default()).unwrap());
    assert!(ring.decisions.iter().all(|decision| decision.age == 2_000));
    let text = ring.show(None);
    assert_eq!(replay(&text).unwrap(), Replayed(25));

    let error = replay(&text.replacen(r#"\"Score\":1"#, r#"\"Score\":2"#, 1)).unwrap_err().to_string();
    assert!(error.contains("prioritize for team-") && error.contains("now has a different answer"), "{error}");
}

#[test]
fn readers_see_the_terms_of_each_node() {
    let mut ring = Ring::default();
    ring.push(decide(Verb::Prioritize, SIZE.request(20, Some(1)), &snapshot()).unwrap());
    let shown: serde_json::Value = serde_json::from_str(&ring.show(Some("team-1/pod"))).unwrap();
    let node = &shown["decisions"][0]["nodes"][0];
    assert_eq!(node["name"], "node-00000");
    assert!(node["score"].is_u64() && node["terms"]["data"].is_u64(), "{node}");
    assert_eq!(ring.show(Some("team-1/other")), r#"{"decisions":[]}"#);
}

#[test]
fn a_pod_without_data_is_not_kept() {
    assert_eq!(decide(Verb::Filter, SIZE.request(20, None), &snapshot()), None);
}

#[test]
fn the_oldest_go_when_there_are_too_many() {
    let snapshot = snapshot();
    let mut ring = Ring::default();
    for _ in 0..DECISIONS + 3 {
        ring.push(decide(Verb::Filter, SIZE.request(1, Some(1)), &snapshot).unwrap());
    }
    assert_eq!((ring.decisions.len(), ring.size), (DECISIONS, DECISIONS));
    let large = decide(Verb::Filter, SIZE.request(NODES, Some(1)), &snapshot).unwrap();
    ring.push(large);
    assert_eq!((ring.decisions.len(), ring.size), (1, NODES));
}

#[test]
fn the_pods_of_a_node_count_too() {
    let node =
        NodeCase { victims: vec![PodCase::default(); 2], workers: vec![PodCase::default(); 7], ..NodeCase::default() };
    let case = Case { nodes: vec![node; 300], ..Case::default() };
    let mut ring = Ring::default();
    for _ in 0..20 {
        let asked = AskedFor::Victims(Box::new(case.clone()));
        let note = Note {
            verb: Verb::Preempt,
            asked,
            nodes: 0,
            is_troubled: false,
            snapshot: Arc::default(),
            age: Duration::ZERO,
            answer: Bytes::new(),
        };
        ring.push(decision(note, &Settings::default()).unwrap());
    }
    assert_eq!((ring.decisions.len(), ring.size), (16, 48_000));
}

#[test]
fn of_a_pod_only_the_last_are_shown() {
    let snapshot = snapshot();
    let mut ring = Ring::default();
    for nodes in [9, 3, 2] {
        ring.push(decide(Verb::Filter, SIZE.request(nodes, Some(1)), &snapshot).unwrap());
        ring.push(decide(Verb::Filter, SIZE.request(20, Some(2)), &snapshot).unwrap());
    }
    let sizes = |most| ring.last_about("team-1/pod", most).into_iter().map(size).collect::<Vec<_>>();
    assert_eq!((sizes(14), sizes(13), sizes(5), sizes(4)), (vec![9, 3, 2], vec![3, 2], vec![3, 2], vec![2]));
    assert_eq!(sizes(1), [2], "the last, however large it is");
}

#[test]
fn readers_see_why_a_node_is_refused() {
    let question =
        Question { pod: "a/p".into(), datasets: vec!["a/d".into()], required: Some(90), ..Question::default() };
    let look = |percent, cordon: Option<&'static str>, is_away| Look {
        least: Some(crate::question::Least { dataset: 0, percent }),
        is_away,
        cordon: cordon.map(Into::into),
        ..Look::default()
    };
    let looks = [look(90, None, false), look(89, None, true), look(90, Some("fan"), true), look(90, None, true)];
    let candidates = looks.map(|look| Candidate { name: "n".into(), look }).to_vec();
    let mut decision = Decision {
        verb: Verb::Filter,
        at: 0,
        snapshot: 0,
        age: 0,
        about: About::Nodes { question: question.clone(), candidates: candidates.clone() },
        answer: String::new(),
    };
    let why = |decision: &Decision| {
        let shown = serde_json::to_value(served_nodes(decision)).unwrap();
        let words = |node: &serde_json::Value| (node["reason"].clone(), node["refused"].clone());
        shown.as_array().unwrap().iter().map(words).collect::<Vec<_>>()
    };
    let found = why(&decision);
    assert_eq!(found[0], (serde_json::Value::Null, serde_json::Value::Null));
    assert_eq!(found[1], ("holds".into(), "n: holds 89 % of a/d, 90 % is required".into()));
    assert_eq!(found[2], ("cordoned".into(), "n: its cache is cordoned: fan".into()));
    assert_eq!(found[3], ("away".into(), "n: no larderd is ready there".into()));
    decision.about = About::Nodes { question: Question { trouble: Some("which?".into()), ..question }, candidates };
    assert_eq!(why(&decision)[0], ("trouble".into(), "n: which?, and its data is required".into()));
}

#[test]
fn no_more_is_kept_than_the_ring_has_room_for_in_its_time() {
    let begun = Instant::now();
    let mut allowance = Allowance::new(begun);
    let kept = |allowance: &mut Allowance, now| (0..1_000).filter(|_| allowance.takes(500, now)).count();
    assert_eq!(kept(&mut allowance, begun), 100);
    assert_eq!(kept(&mut allowance, begun + Duration::from_secs(1)), 10);
    // The allowance does not grow beyond the capacity of the ring.
    assert_eq!(kept(&mut allowance, begun + Duration::from_secs(3_600)), 100);
    // A decision larger than the whole allowance is kept, and charged in full.
    let mut allowance = Allowance::new(begun);
    assert!(allowance.takes(200_000, begun) && !allowance.takes(1, begun + Duration::from_secs(30)));
    assert!(allowance.takes(1, begun + Duration::from_secs(31)));
}
