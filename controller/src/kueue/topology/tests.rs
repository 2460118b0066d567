use proptest::prelude::*;
use serde_json::json;

use super::*;

fn decoded(assignment: &Value) -> Vec<Vec<String>> {
    domains(assignment).unwrap_or_else(|error| panic!("{error}: {assignment}")).values.into_iter().collect()
}

fn error(assignment: &Value) -> String {
    domains(assignment).expect_err("unreadable").to_string()
}

#[test]
fn what_kueue_has_encoded_is_decoded() {
    #[derive(Deserialize)]
    struct Golden {
        levels: Vec<String>,
        domains: BTreeSet<Vec<String>>,
        encoded: Value,
    }
    // Written by Kueue 0.19's own encoder (`tests/cluster/kueue/topology`).
    let lines = include_str!("../../../tests/golden/kueue/topology.jsonl").lines();
    let golden: Vec<Golden> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for Golden { levels, domains: values, encoded } in &golden {
        let read = domains(encoded).unwrap();
        assert_eq!((&read.levels, &read.values), (levels, values), "{encoded}");
    }
    let is_divided = |golden: &Golden| golden.encoded["slices"].as_array().is_some_and(|slices| slices.len() > 1);
    assert!(golden.iter().any(is_divided));
}

/// The longest common start of texts.
fn common(texts: &[&str]) -> usize {
    let first = texts[0];
    let is_common = |length: &usize| texts.iter().all(|text| text.starts_with(&first[..*length]));
    (0..=first.len()).rev().find(is_common).unwrap_or(0)
}

/// The values of domains at one level, with at most so many characters of what they have in common at each end.
fn values(texts: &[&str], prefix_max: usize, suffix_max: usize) -> Value {
    let all_same = texts.iter().all(|text| *text == texts[0]);
    if all_same && prefix_max > 0 {
        return json!({"universal": texts[0]});
    }
    let shortest = texts.iter().map(|text| text.len()).min().unwrap_or(0);
    let prefix = common(texts).min(prefix_max).min(shortest);
    let reversed: Vec<String> = texts.iter().map(|text| text.chars().rev().collect()).collect();
    let reversed: Vec<&str> = reversed.iter().map(String::as_str).collect();
    let suffix = common(&reversed).min(suffix_max).min(shortest - prefix);
    let roots: Vec<&str> = texts.iter().map(|text| &text[prefix..text.len() - suffix]).collect();
    let mut individual = json!({"roots": roots});
    if prefix > 0 {
        individual["prefix"] = json!(&texts[0][..prefix]);
    }
    if suffix > 0 {
        individual["suffix"] = json!(&texts[0][texts[0].len() - suffix..]);
    }
    json!({"individual": individual})
}

/// Domains in slices of so many, each encoded with these limits.
fn slices(levels: usize, domains: &[Vec<String>], sizes: &[(usize, usize, usize)]) -> Vec<Value> {
    let mut left = domains;
    let mut sizes = sizes.iter().cycle();
    let mut slices = Vec::new();
    while !left.is_empty() {
        let (size, prefix_max, suffix_max) = *sizes.next().expect("an endless list");
        let (now, later) = left.split_at(size.min(left.len()));
        let at = |level: usize| now.iter().map(|domain| domain[level].as_str()).collect::<Vec<_>>();
        let per_level: Vec<Value> = (0..levels).map(|level| values(&at(level), prefix_max, suffix_max)).collect();
        slices.push(json!({"domainCount": now.len(), "valuesPerLevel": per_level, "podCounts": {"universal": 1}}));
        left = later;
    }
    slices
}

proptest! {
    /// Both encodings of the same domains give the same domains, however they are divided into slices, and however much
    /// of what they have in common is stored once.
    #[test]
    fn every_encoding_of_domains_is_decoded(
        (levels, domains) in (1_usize..4).prop_flat_map(|levels| {
            let domain = prop::collection::vec("[ab]{0,3}(-[a-c]{1,2})?", levels);
            (Just(levels), prop::collection::vec(domain, 1..20))
        }),
        sizes in prop::collection::vec((1_usize..8, 0_usize..6, 0_usize..6), 1..5),
    ) {
        let names: Vec<String> = (0..levels).map(|level| format!("level-{level}")).collect();
        let expected: BTreeSet<Vec<String>> = domains.iter().cloned().collect();
        let listed: Vec<Value> = domains.iter().map(|values| json!({"values": values, "count": 1})).collect();
        let old = super::domains(&json!({"levels": names, "domains": listed})).unwrap();
        let new = super::domains(&json!({"levels": names, "slices": slices(levels, &domains, &sizes)})).unwrap();
        prop_assert_eq!(&old.values, &expected);
        prop_assert_eq!(&new, &old);
        prop_assert_eq!(new.levels, names);
    }

    #[test]
    fn a_slice_has_as_many_values_as_domains(count in 0_usize..6) {
        let slice = json!({"domainCount": count, "valuesPerLevel": [{"individual": {"roots": ["a", "b", "c"]}}],
            "podCounts": {"universal": 1}});
        let read = super::domains(&json!({"levels": ["host"], "slices": [slice]}));
        if count == 3 {
            prop_assert_eq!(read.unwrap().values.len(), 3);
        } else {
            prop_assert_eq!(read, Err(Unreadable::Count { values: 3, domains: count }));
        }
    }
}

#[test]
fn equal_domains_count_once_however_many_are_claimed() {
    let slice = json!({"domainCount": 2_000_000_000, "valuesPerLevel": [{"universal": "rack-1"}], "podCounts": {"universal": 1}});
    assert_eq!(decoded(&json!({"levels": ["rack"], "slices": [slice, slice]})), [["rack-1"]]);
}

#[test]
fn domains_have_a_limit() {
    let names = |prefix: &str, count: usize| {
        let roots: Vec<String> = (0..count).map(|node| node.to_string()).collect();
        json!({"domainCount": count, "valuesPerLevel": [{"individual": {"prefix": prefix, "roots": roots}}],
            "podCounts": {"universal": 1}})
    };
    let host = |slices: Value| json!({"levels": ["kubernetes.io/hostname"], "slices": slices});
    let prefix = "gke-a-cluster-of-usual-name-lengths-pool-";
    assert_eq!(decoded(&host(json!([names(prefix, 100_000)]))).len(), 100_000);
    let too_many: Vec<Value> = (0..4).map(|pool| names(&format!("{prefix}{pool}-"), 100_000)).collect();
    assert_eq!(error(&host(too_many.into())), "its domains take more than 16 MiB");
}

#[test]
fn an_assignment_that_cannot_be_read_says_why() {
    let slice = |values: Value| json!([{"domainCount": 2, "valuesPerLevel": values, "podCounts": {"universal": 1}}]);
    let roots = json!({"individual": {"roots": ["a", "b"]}});
    for (assignment, why) in [
        (json!({}), "it has no levels"),
        (json!({"levels": ["host"]}), "it has neither domains nor slices"),
        (json!({"levels": ["host"], "ranges": []}), "it has neither domains nor slices"),
        (json!({"levels": [], "slices": slice(json!([roots]))}), "it has no levels"),
        (json!({"levels": ["rack", "host"], "slices": slice(json!([roots]))}), "1 values for 2 levels"),
        (json!({"levels": ["host"], "domains": [{"values": ["a", "b"]}]}), "2 values for 1 levels"),
        (json!({"levels": ["host"], "slices": slice(json!([{"pattern": "a*"}]))}), "unknown variant `pattern`"),
        (json!({"levels": ["host"], "slices": slice(json!([{}]))}), "map with a single key"),
        (json!({"levels": ["host"], "slices": [{"domainCount": -1, "valuesPerLevel": []}]}), "integer `-1`"),
        (json!({"levels": "host"}), "invalid type"),
        (json!("n1"), "invalid type"),
    ] {
        let said = error(&assignment);
        assert!(said.contains(why), "{assignment}: {said}");
    }
    // A domain without pods has no nodes, and is not any node.
    assert_eq!(decoded(&json!({"levels": ["host"], "slices": []})), Vec::<Vec<String>>::new());
}
