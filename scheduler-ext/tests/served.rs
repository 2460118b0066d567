//! The output of `/decisions`, which `larder explain pod` reads: the CLI's tests read the same file.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::path::Path;

use larder_dataset::score::{Devices, NodeFacts};
use larder_scheduler_ext::preempt::{Case, NodeCase, PodCase, RoleRoom};
use larder_scheduler_ext::question::{Least, Look, Question};
use larder_scheduler_ext::replay::{self, Replayed};
use larder_scheduler_ext::ring::{About, Candidate, Decision, Ring, Verb};

const POD: &str = "team-a/notebook";
/// 2026-01-31T08:00:00Z
const AT: u64 = 1_769_846_400_000;

/// A node that holds this percentage of a 1 GB dataset, with this many pods of the group in its zone.
fn candidate(name: &str, percent: u8, group_in_zone: u32) -> Candidate {
    let mut standing = NodeFacts { group: 4, group_in_zone, group_in_rack: 0, ..NodeFacts::default() };
    standing.reads(u64::from(percent) * 10_000_000, 1_000_000_000);
    standing.devices = Devices { asked: 1, all: 8, free: 7, together: 4, awaited: true };
    Candidate {
        name: name.into(),
        look: Look { standing, least: Some(Least { dataset: 0, percent }), ..Look::default() },
    }
}

fn nodes(verb: Verb, after_ms: u64, candidates: Vec<Candidate>) -> Decision {
    let question = Question {
        pod: POD.into(),
        datasets: vec!["team-a/imagenet".into()],
        required: Some(90),
        ..Question::default()
    };
    made(verb, after_ms, About::Nodes { question, candidates })
}

fn made(verb: Verb, after_ms: u64, about: About) -> Decision {
    let mut decision =
        Decision { verb, at: AT + after_ms, snapshot: 41 + after_ms, age: 12_300, about, answer: String::new() };
    decision.answer = String::from_utf8(replay::answer(&decision).unwrap()).unwrap();
    decision
}

fn victims() -> Case {
    let pod = |uid: &str, seat| PodCase {
        uid: uid.into(),
        known: true,
        priority: 1,
        seat,
        requests: BTreeMap::from([("nvidia.com/gpu".into(), 1)]),
        ..PodCase::default()
    };
    let node = |name: &str, victims, workers| NodeCase { name: name.into(), victims, workers, budget_violations: 0 };
    Case {
        pod: POD.into(),
        priority: 9,
        roles: vec![RoleRoom { name: "team-b/train worker".into(), live: 4, spoken_for: 0, floor: Some(3) }],
        nodes: vec![
            // A worker above the minimum is preempted in place of another pod.
            node("n7", vec![pod("u1", None)], vec![pod("u2", Some((0, 3)))]),
            node("n1", vec![pod("u3", None), pod("u4", None)], Vec::new()),
            node("n3", vec![pod("u5", Some((0, 0)))], Vec::new()),
        ],
        ..Case::default()
    }
}

#[test]
fn decisions_are_served_as_readers_expect_them() {
    let (mut cordoned, mut away) = (candidate("n5", 100, 0), candidate("n2", 100, 0));
    cordoned.look.cordon = Some("fan broken".into());
    away.look.is_away = true;
    let (best, good) = (candidate("n7", 98, 3), candidate("n1", 95, 0));
    let mut ring = Ring::default();
    ring.push(made(Verb::Preempt, 0, About::Victims(victims())));
    let asked = vec![good.clone(), away, candidate("n3", 12, 0), cordoned, best.clone()];
    ring.push(nodes(Verb::Filter, 2500, asked));
    ring.push(nodes(Verb::Prioritize, 2501, vec![good, best]));
    let text = ring.show(Some(POD));
    assert_eq!(replay::replay(&text).unwrap(), Replayed(3));

    let made: serde_json::Value = serde_json::from_str(&text).unwrap();
    let made = format!("{}\n", serde_json::to_string_pretty(&made).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decisions.json");
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made, "run this test with LARDER_WRITE_GOLDEN=1");
}
