//! The rules for pods that crash, and the order in which roles start.

use std::ops::RangeInclusive;

use crate::checked::InvalidField;
use crate::training_job::{RestartAction, RestartRule, Role, Until};

/// The exit codes of failures.
const CODES: RangeInclusive<u8> = 1..=u8::MAX;

/// A rule for pods that crash, validated and parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedRule {
    /// The positions of the roles in the job's list.
    roles: Vec<usize>,
    /// The exit codes; `None` for all, known or not.
    codes: Option<Vec<RangeInclusive<u8>>>,
    /// The action when it matches.
    pub action: RestartAction,
}

impl CheckedRule {
    /// True if the rule is about pods of the role at this position that end with this exit code. The code is `None` if
    /// it is unknown.
    pub fn matches(&self, role: usize, code: Option<u8>) -> bool {
        self.is_about(role) && self.has(code)
    }

    /// True if the rule is about pods of the role at this position.
    pub fn is_about(&self, role: usize) -> bool {
        self.roles.contains(&role)
    }

    fn has(&self, code: Option<u8>) -> bool {
        let has = |codes: &Vec<RangeInclusive<u8>>| code.is_some_and(|code| codes.iter().any(|of| of.contains(&code)));
        self.codes.as_ref().is_none_or(has)
    }
}

/// A role that comes before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Its position in the job's list.
    pub role: usize,
    /// The awaited state of its pods.
    pub until: Until,
}

/// Checks the rules of a job with these roles. Each must apply to something that no rule before it applies to: another
/// rule for the same pods would contradict it.
pub(super) fn check(rules: &[RestartRule], roles: &[Role]) -> Result<Vec<CheckedRule>, InvalidField> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let mut checked: Vec<CheckedRule> = Vec::new();
    // By role and exit code, the first rule that matches. The code 0 stands for an unknown one.
    let mut first: Vec<[Option<usize>; 256]> = vec![[None; 256]; roles.len()];
    for (at, rule) in rules.iter().enumerate() {
        let rule = parse(at, rule, roles)?;
        let codes: Vec<u8> = (0..=u8::MAX).filter(|code| rule.has(Some(*code).filter(|code| *code > 0))).collect();
        let (mut decides, mut other) = (false, None);
        for role in &rule.roles {
            for code in &codes {
                let decided_by = &mut first[*role][usize::from(*code)];
                decides |= decided_by.is_none();
                other = other.or(*decided_by);
                decided_by.get_or_insert(at);
            }
        }
        if !decides {
            let other = other.unwrap_or(0);
            return Err(InvalidField::new(
                format!("spec.restart.rules[{at}]"),
                format!(
                    "contradicts a rule before it: spec.restart.rules[{other}] matches the same roles and exit codes \
                     first; remove one of them, or put the narrower one first"
                ),
            ));
        }
        checked.push(rule);
    }
    Ok(checked)
}

fn parse(at: usize, rule: &RestartRule, roles: &[Role]) -> Result<CheckedRule, InvalidField> {
    let position = |name: &String| {
        let found = roles.iter().position(|role| role.name == *name);
        let unknown = || format!("has {name}, which is not a role of the job");
        found.ok_or_else(|| InvalidField::new(format!("spec.restart.rules[{at}].roles"), unknown()))
    };
    let of = match rule.roles.is_empty() {
        true => (0..roles.len()).collect(),
        false => rule.roles.iter().map(position).collect::<Result<Vec<_>, _>>()?,
    };
    let form = "must list codes from 1 to 255 and ranges of them, such as 2,126-127";
    let codes = rule.exit_codes.as_deref().map(|text| codes(text).ok_or(form)).transpose();
    let codes = codes.map_err(|form| InvalidField::new(format!("spec.restart.rules[{at}].exitCodes"), form))?;
    Ok(CheckedRule { roles: of, codes, action: rule.action })
}

/// The ranges of a text such as `2,126-127`.
fn codes(text: &str) -> Option<Vec<RangeInclusive<u8>>> {
    let code = |text: &str| text.trim().parse::<u8>().ok().filter(|code| CODES.contains(code));
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = code(first)?..=code(last)?;
        (!range.is_empty()).then_some(range)
    };
    text.split(',').map(range).collect()
}

/// The roles that come before a role. Each of them is one of `before`, so there are no cycles.
pub(super) fn predecessors(role: &Role, before: &[Role]) -> Result<Vec<Predecessor>, InvalidField> {
    let position = |name: &str| {
        let found = before.iter().position(|role| role.name == name);
        let what = || format!("has {name}, which is not a role before {} in spec.roles; put it there", role.name);
        found.ok_or_else(|| InvalidField::new(format!("spec.roles[{}].startsAfter", role.name), what()))
    };
    let all = role.starts_after.iter();
    all.map(|one| Ok(Predecessor { role: position(&one.role)?, until: one.until.unwrap_or_default() })).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn roles(names: &[&str]) -> Vec<Role> {
        names.iter().map(|name| Role { name: (*name).to_owned(), ..Role::default() }).collect()
    }

    fn rules(rules: Value) -> Result<Vec<CheckedRule>, InvalidField> {
        let rules: Vec<RestartRule> = serde_json::from_value(rules).expect("of the schema's form");
        check(&rules, &roles(&["ps", "worker"]))
    }

    fn decides(rules: &[CheckedRule], role: usize, code: Option<u8>) -> Option<RestartAction> {
        rules.iter().find(|rule| rule.matches(role, code)).map(|rule| rule.action)
    }

    #[test]
    fn the_first_rule_for_a_role_and_an_exit_code_decides() {
        let rules = rules(json!([
            {"exitCodes": "2, 126-127", "action": "fail"},
            {"roles": ["ps"], "action": "restartRole"},
            {"exitCodes": "128-255", "action": "ignore"},
        ]))
        .expect("valid");
        for (role, code, action) in [
            (0, Some(2), Some(RestartAction::Fail)),
            (1, Some(127), Some(RestartAction::Fail)),
            (0, Some(1), Some(RestartAction::RestartRole)),
            (0, None, Some(RestartAction::RestartRole)),
            (1, Some(137), Some(RestartAction::Ignore)),
            (1, Some(1), None),
            (1, None, None),
        ] {
            assert_eq!(decides(&rules, role, code), action, "{role} {code:?}");
        }
    }

    #[test]
    fn mistakes_in_rules_are_named_by_their_field() {
        for (field, what, given) in [
            ("spec.restart.rules[0].roles", "chief", json!([{"roles": ["chief"], "action": "fail"}])),
            ("spec.restart.rules[0].exitCodes", "1 to 255", json!([{"exitCodes": "0", "action": "fail"}])),
            ("spec.restart.rules[0].exitCodes", "1 to 255", json!([{"exitCodes": "256", "action": "fail"}])),
            ("spec.restart.rules[0].exitCodes", "1 to 255", json!([{"exitCodes": "9-2", "action": "fail"}])),
            ("spec.restart.rules[0].exitCodes", "1 to 255", json!([{"exitCodes": "", "action": "fail"}])),
            (
                "spec.restart.rules[1]",
                "spec.restart.rules[0]",
                json!([{"exitCodes": "1", "action": "fail"}, {"exitCodes": "1", "action": "restartPod"}]),
            ),
            (
                "spec.restart.rules[2]",
                "spec.restart.rules[1]",
                json!([
                    {"roles": ["ps"], "action": "fail"}, {"roles": ["worker"], "exitCodes": "1-200", "action": "fail"},
                    {"roles": ["worker"], "exitCodes": "7,9", "action": "ignore"},
                ]),
            ),
        ] {
            let error = rules(given.clone()).expect_err(field);
            assert!(error.field == field && error.what.contains(what), "{given}: {error}");
        }
        // A wider rule after a narrower one has a part of its own.
        rules(json!([{"exitCodes": "1", "action": "fail"}, {"exitCodes": "1-2", "action": "ignore"}])).expect("valid");
    }

    #[test]
    fn a_role_starts_after_roles_before_it() {
        let role = |name: &str, after: Value| {
            let starts_after = serde_json::from_value(after).expect("of the schema's form");
            Role { name: name.to_owned(), starts_after, ..Role::default() }
        };
        let worker = role("worker", json!([{"role": "data", "until": "done"}, {"role": "ps"}]));
        let got = predecessors(&worker, &roles(&["ps", "data"])).expect("valid");
        let at = |role, until| Predecessor { role, until };
        assert_eq!(got, [at(1, Until::Done), at(0, Until::Ready)]);
        for name in ["worker", "ghost"] {
            let error = predecessors(&role("worker", json!([{"role": name}])), &roles(&["ps"])).expect_err(name);
            assert!(error.field == "spec.roles[worker].startsAfter" && error.what.contains(name), "{error}");
        }
    }

    fn any_rule() -> impl Strategy<Value = RestartRule> {
        let codes = prop::collection::vec((1..=255_u8, 0..40_u8), 0..3).prop_map(|ranges| {
            let range = |(first, more): &(u8, u8)| format!("{first}-{}", first.saturating_add(*more));
            (!ranges.is_empty()).then(|| ranges.iter().map(range).collect::<Vec<_>>().join(","))
        });
        let roles = prop::sample::subsequence(vec!["ps".to_owned(), "worker".to_owned()], 0..=2);
        let action = prop::sample::select(vec![RestartAction::Fail, RestartAction::RestartPod, RestartAction::Ignore]);
        (roles, codes, action).prop_map(|(roles, exit_codes, action)| RestartRule { roles, exit_codes, action })
    }

    proptest! {
        #[test]
        fn every_accepted_rule_decides_about_something(given in prop::collection::vec(any_rule(), 0..5)) {
            let roles = roles(&["ps", "worker"]);
            // A refused rule is left out, as a user would do.
            let mut kept: Vec<RestartRule> = Vec::new();
            for rule in given {
                kept.push(rule);
                if check(&kept, &roles).is_err() {
                    let refused = parse(0, &kept.pop().expect("a rule"), &roles).expect("valid alone");
                    let before = check(&kept, &roles).expect("valid");
                    for code in (1..=255).map(Some).chain([None]) {
                        let is_open = |role| !before.iter().any(|rule| rule.matches(role, code));
                        prop_assert!((0..2).all(|role| !(refused.matches(role, code) && is_open(role))), "{code:?}");
                    }
                }
            }
            let checked = check(&kept, &roles).expect("valid");
            for (at, _) in checked.iter().enumerate() {
                let decides = |role: usize, code: Option<u8>| {
                    checked.iter().position(|rule| rule.matches(role, code)) == Some(at)
                };
                let codes = || (1..=255).map(Some).chain([None]);
                prop_assert!((0..2).any(|role| codes().any(|code| decides(role, code))), "{at} of {kept:?}");
            }
        }
    }
}
