use serde_json::{Value, json};

use super::super::Placed;
use super::super::sentence::sentence;
use super::*;
use crate::extender::decision::{ServedDecision, read};

/// The extender's golden file of decisions.
const SERVED: &str = include_str!("../../../../../../scheduler-ext/tests/golden/decisions.json");

fn decisions() -> Vec<ServedDecision> {
    let served: Value = serde_json::from_str(SERVED).unwrap();
    served["decisions"].as_array().unwrap().iter().map(|one| read(one).unwrap()).collect()
}

fn pod(node: &str) -> Placed {
    Placed { node: Some(node.to_owned()), scheduler: "larder".to_owned(), may_read: true, ..Placed::default() }
}

#[test]
fn the_served_decisions_are_shown() {
    let (decisions, pod) = (decisions(), pod("n7"));
    let story = Story::new("team-a/notebook", Some(&pod), &decisions);
    let text = view(&sentence(&story, None), &story, false);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "team-a/notebook went to n7, which holds 98 % of team-a/imagenet: the best of 5 candidate nodes",
            "NODE  SCORE  DATA  WARMING  SHARED  ZONE  RACK  WHOLE  WHY NOT",
            "n7    8      9     9        -       7     0     10",
            "n1    7      9     9        -       0     0     10",
            "n2    8      10    10       -       0     0     10     no larderd is ready there",
            "n5    8      10    10       -       0     0     10     its cache is cordoned: fan broken",
            "n3    1      1     1        -       0     0     10     holds 12 % of team-a/imagenet, 90 % is required",
            "  decided   2026-01-31T08:00:02.501Z",
            "  preempted 2026-01-31T08:00:00Z",
            "            for its place on n7: team-b/train worker-3",
        ]
    );
}

#[test]
fn all_possible_preemptions_are_shown_until_one_is_chosen() {
    let decisions = decisions();
    let story = Story::new("team-a/notebook", None, &decisions);
    let text = view("", &story, false);
    assert!(
        text.ends_with("  can preempt on n1: 2 pods\n            can preempt on n7: team-b/train worker-3\n"),
        "{text}"
    );
}

/// A decision about `nodes` nodes, of which the last are the best.
fn many(nodes: usize) -> Vec<ServedDecision> {
    let names = (0..nodes).map(|at| format!("n{at:02}"));
    let shown = names.map(|name| json!({"name": name, "score": u8::from(name.as_str() > "n01"), "terms": {}}));
    let candidates = vec![json!({"look": {"standing": {}}}); nodes];
    let about = json!({"nodes": {"question": {"datasets": ["a/b"]}, "candidates": candidates}});
    let decision = json!({
        "verb": "filter", "at": 1, "age": 600_000, "about": about, "answer": "", "nodes": shown.collect::<Vec<_>>(),
    });
    vec![read(&decision).unwrap()]
}

#[test]
fn the_best_nodes_and_the_chosen_node_are_shown() {
    let (decisions, pod) = (many(25), pod("n01"));
    let story = Story::new("a/p", Some(&pod), &decisions);
    let text = view("", &story, false);
    let names: Vec<&str> = text.lines().skip(2).filter_map(|line| line.split(' ').next()).take(21).collect();
    assert_eq!((names[0], names[19], names[20]), ("n02", "n21", "n01"), "{text}");
    assert!(text.contains("\n  4 nodes more: --all shows them\n"), "{text}");
    assert!(text.contains("from what was known 10 minutes before"), "{text}");
    let text = view("", &story, true);
    assert!(text.contains("\nn24 ") && !text.contains("--all"), "{text}");
}

#[test]
fn a_node_cannot_break_the_table() {
    let mut decisions = many(1);
    decisions[0].nodes[0].name = "n\n1".to_owned();
    decisions[0].nodes[0].refused = Some("n\n1: two\nlines\u{1b}[2J".to_owned());
    let text = view("", &Story::new("a/p", None, &decisions), false);
    assert!(text.lines().any(|line| line.starts_with("n 1 ") && line.ends_with("two lines [2J")), "{text}");
}
