//! A sweep, validated and parsed.

use std::collections::{BTreeMap, BTreeSet};

use crate::checked::InvalidField;
use crate::names::TRIAL_VARIABLE;
use crate::training_job::{Choices, Distribution, Goal, Objective, Parameter, RandomSearch, Role, Scale, Sweep};

/// The most trials of a sweep.
pub const TRIALS_MAX: u32 = 10_000;
/// The default for the most trials that have not ended.
const PARALLELISM: u32 = 10;
/// The default for the most trials that may fail.
const FAILED_MAX: u32 = 20;
/// The longest name of a sweep: that of a trial adds a hyphen and its number.
const SWEEP_NAME_MAX: usize = 58;

/// A sweep, validated and parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedSweep {
    /// The parameters of the trials.
    pub space: Space,
    /// The number of trials, at least 1.
    pub trials: u32,
    /// The most trials that have not ended.
    pub parallelism: u32,
    /// The number that trials are compared by.
    pub objective: Option<CheckedObjective>,
    /// The sweep fails when more trials have failed.
    pub max_failed: u32,
}

/// The parameters of the trials of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// All combinations of values.
    Grid(Vec<(String, Vec<String>)>),
    /// These sets.
    List(Vec<BTreeMap<String, String>>),
    /// Random ones.
    Random {
        /// The seed.
        seed: u64,
        /// The distributions of the parameters.
        parameters: Vec<(String, Draw)>,
    },
}

/// The distribution of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    /// Values of equal probability.
    OneOf(Vec<String>),
    /// Whole numbers, both bounds included.
    Whole {
        /// The least.
        min: i64,
        /// The greatest.
        max: i64,
        /// Their distribution.
        scale: Scale,
    },
    /// Numbers.
    Real {
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
        /// Their distribution.
        scale: Scale,
    },
}

/// The number that trials are compared by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckedObjective {
    /// The choice of the best number.
    pub goal: Goal,
    /// The sweep stops when a trial reaches it.
    pub target: Option<f64>,
    /// The sweep stops when this many trials in a row were not better.
    pub patience: Option<u32>,
}

impl CheckedObjective {
    /// True if one number is better than another.
    pub fn is_better(&self, one: f64, other: f64) -> bool {
        match self.goal {
            Goal::Minimize => one < other,
            Goal::Maximize => one > other,
        }
    }

    /// True if a number reaches the target.
    pub fn is_reached(&self, number: f64) -> bool {
        self.target.is_some_and(|target| number == target || self.is_better(number, target))
    }
}

/// Checks a sweep of a job with this name and these roles.
pub(super) fn check(sweep: &Sweep, name: &str, roles: &[Role]) -> Result<CheckedSweep, InvalidField> {
    if name.len() > SWEEP_NAME_MAX {
        let what = format!("has more than {SWEEP_NAME_MAX} characters, and the names of trials add a number to it");
        return Err(InvalidField::new("metadata.name", what));
    }
    let (space, trials) = match (&sweep.grid[..], &sweep.list[..], &sweep.random) {
        (grid @ [_, ..], [], None) => space_of_grid(grid)?,
        ([], list @ [_, ..], None) => space_of_list(list)?,
        ([], [], Some(random)) => space_of_random(random)?,
        _ => return Err(InvalidField::new("spec.sweep", "must have one of grid, list and random")),
    };
    let names = space.names();
    for name in &names {
        if !is_variable(name) {
            let what = format!("has the parameter {name:?}, which cannot be the name of a variable");
            return Err(InvalidField::new("spec.sweep", what));
        }
    }
    if names.contains(TRIAL_VARIABLE) {
        let what = format!("has the parameter {TRIAL_VARIABLE}, which is the number of the trial: rename it");
        return Err(InvalidField::new("spec.sweep", what));
    }
    for role in roles {
        if let Some(own) = variables(role).find(|own| names.contains(own)) {
            let what = format!("has the parameter {own}, which the template of the role {} sets itself", role.name);
            return Err(InvalidField::new("spec.sweep", what));
        }
    }
    Ok(CheckedSweep {
        space,
        trials,
        parallelism: sweep.parallelism.unwrap_or(PARALLELISM).max(1),
        objective: sweep.objective.as_ref().map(objective).transpose()?,
        max_failed: sweep.max_failed.unwrap_or(FAILED_MAX),
    })
}

/// Checks the parameters of a job.
pub(super) fn check_parameters(parameters: &[Parameter]) -> Result<Vec<(String, String)>, InvalidField> {
    let mut names = BTreeSet::new();
    for parameter in parameters {
        if !is_variable(&parameter.name) || !names.insert(&parameter.name) {
            let what = format!("has {:?}, which is not the name of a variable or occurs twice", parameter.name);
            return Err(InvalidField::new("spec.parameters", what));
        }
    }
    Ok(parameters.iter().map(|parameter| (parameter.name.clone(), parameter.value.clone())).collect())
}

impl Space {
    /// The names of all parameters.
    fn names(&self) -> BTreeSet<&str> {
        match self {
            Self::Grid(grid) => grid.iter().map(|(name, _)| name.as_str()).collect(),
            Self::List(list) => list.iter().flat_map(BTreeMap::keys).map(String::as_str).collect(),
            Self::Random { parameters, .. } => parameters.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }
}

fn space_of_grid(grid: &[Choices]) -> Result<(Space, u32), InvalidField> {
    let field = "spec.sweep.grid";
    let mut names = BTreeSet::new();
    for one in grid {
        if one.values.is_empty() || !names.insert(&one.name) {
            return Err(InvalidField::new(field, format!("has {} twice or without values", one.name)));
        }
    }
    // A thousand values of each of 16 parameters are more than any integer holds.
    let trials = grid.iter().fold(1_u128, |product, one| product.saturating_mul(one.values.len() as u128));
    let trials = bounded(field, trials)?;
    Ok((Space::Grid(grid.iter().map(|one| (one.name.clone(), one.values.clone())).collect()), trials))
}

fn space_of_list(list: &[BTreeMap<String, String>]) -> Result<(Space, u32), InvalidField> {
    let trials = bounded("spec.sweep.list", list.len() as u128)?;
    Ok((Space::List(list.to_vec()), trials))
}

fn space_of_random(random: &RandomSearch) -> Result<(Space, u32), InvalidField> {
    let trials = bounded("spec.sweep.random.trials", u128::from(random.trials))?;
    let mut names = BTreeSet::new();
    let draw = |one: &Distribution| {
        if !names.insert(one.name.clone()) {
            return Err(InvalidField::new("spec.sweep.random.parameters", format!("has {} twice", one.name)));
        }
        Ok((one.name.clone(), draw(one)?))
    };
    let parameters = random.parameters.iter().map(draw).collect::<Result<Vec<_>, _>>()?;
    if parameters.is_empty() {
        return Err(InvalidField::new("spec.sweep.random.parameters", "must have a parameter"));
    }
    Ok((Space::Random { seed: random.seed, parameters }, trials))
}

fn bounded(field: &'static str, trials: u128) -> Result<u32, InvalidField> {
    match u32::try_from(trials) {
        Ok(trials @ 1..=TRIALS_MAX) => Ok(trials),
        _ => {
            let what = format!(
                "has {trials} trials, and a sweep has at least 1 and at most {TRIALS_MAX}: use fewer values, or random"
            );
            Err(InvalidField::new(field, what))
        }
    }
}

fn draw(one: &Distribution) -> Result<Draw, InvalidField> {
    let field = |rest: &str| format!("spec.sweep.random.parameters[{}]{rest}", one.name);
    let (min, max) = match (&one.min, &one.max) {
        (None, None) if !one.values.is_empty() => return Ok(Draw::OneOf(one.values.clone())),
        (Some(min), Some(max)) if one.values.is_empty() => (min, max),
        _ => return Err(InvalidField::new(field(""), "must have either values, or min and max")),
    };
    let scale = one.scale.unwrap_or_default();
    let (low, high) = (number(&field(".min"), min)?, number(&field(".max"), max)?);
    let whole = min.parse::<i64>().ok().zip(max.parse::<i64>().ok());
    // Large whole numbers that differ may be equal as fractions.
    if whole.map_or(low > high, |(low, high)| low > high) {
        return Err(InvalidField::new(field(".min"), format!("is {min}, more than max, which is {max}")));
    }
    if scale == Scale::Log && low <= 0.0 {
        return Err(InvalidField::new(field(".min"), format!("is {min}; with the scale log it must be more than 0")));
    }
    Ok(match whole {
        Some((min, max)) => Draw::Whole { min, max, scale },
        None => Draw::Real { min: low, max: high, scale },
    })
}

fn objective(objective: &Objective) -> Result<CheckedObjective, InvalidField> {
    let target = objective.target.as_deref().map(|text| number("spec.sweep.objective.target", text)).transpose()?;
    Ok(CheckedObjective { goal: objective.goal, target, patience: objective.patience })
}

fn number(field: &str, text: &str) -> Result<f64, InvalidField> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| InvalidField::new(field.to_owned(), format!("is {text:?}, and must be a number such as 1e-5")))
}

fn is_variable(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The names of the variables that the template of a role sets.
fn variables(role: &Role) -> impl Iterator<Item = &str> {
    let containers = role.template.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|container| container.env.iter().flatten()).map(|one| one.name.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(sweep: Value) -> Result<CheckedSweep, InvalidField> {
        let role = json!({"name": "worker", "template": {"spec": {"containers": [
            {"name": "main", "env": [{"name": "OWN", "value": "1"}]}]}}});
        let role: Role = serde_json::from_value(role).expect("of the schema's form");
        check(&serde_json::from_value(sweep).expect("of the schema's form"), "tune", &[role])
    }

    fn random(parameter: &Value) -> Value {
        let mut parameter = parameter.clone();
        parameter["name"] = "LR".into();
        json!({"random": {"trials": 5, "seed": 7, "parameters": [parameter]}})
    }

    #[test]
    fn the_spaces_of_sweeps_are_understood() {
        let values = |count: usize| (0..count).map(|value| value.to_string()).collect::<Vec<_>>();
        let grid = json!({"grid": [{"name": "LR", "values": values(100)}, {"name": "BS", "values": values(100)}]});
        let got = checked(grid).expect("valid");
        assert_eq!((got.trials, got.parallelism, got.max_failed), (TRIALS_MAX, PARALLELISM, FAILED_MAX));
        let list = json!({"list": [{"LR": "1"}, {"BS": "2"}], "parallelism": 3, "maxFailed": 0});
        let got = checked(list).expect("valid");
        assert_eq!((got.trials, got.parallelism, got.max_failed), (2, 3, 0));
        for (given, expected) in [
            (json!({"values": ["a", "b"]}), Draw::OneOf(vec!["a".into(), "b".into()])),
            (json!({"min": "1", "max": "8"}), Draw::Whole { min: 1, max: 8, scale: Scale::Linear }),
            (json!({"min": "1e-5", "max": "1", "scale": "log"}), Draw::Real { min: 1e-5, max: 1.0, scale: Scale::Log }),
        ] {
            let got = checked(random(&given)).expect("valid");
            assert_eq!(got.space, Space::Random { seed: 7, parameters: vec![("LR".into(), expected)] });
        }
        let objective = json!({"goal": "maximize", "target": "0.9", "patience": 4});
        let got = checked(json!({"list": [{"LR": "1"}], "objective": objective})).expect("valid");
        let objective = got.objective.expect("an objective");
        assert_eq!((objective.goal, objective.target, objective.patience), (Goal::Maximize, Some(0.9), Some(4)));
        assert!(objective.is_reached(0.9) && objective.is_reached(1.0) && !objective.is_reached(0.8));
    }

    #[test]
    fn mistakes_in_sweeps_are_named_by_their_field() {
        let values: Vec<String> = (0..1_000).map(|value| value.to_string()).collect();
        let one = |name: &str| json!({"name": name, "values": values});
        let twice = json!([{"name": "A", "values": ["1"]}, {"name": "A", "values": ["1"]}]);
        for (field, what, sweep) in [
            ("spec.sweep", "one of grid, list and random", json!({})),
            ("spec.sweep", "one of", json!({"list": [{"A": "1"}], "grid": [{"name": "A", "values": ["1"]}]})),
            ("spec.sweep.grid", "has 1000000000 trials", json!({"grid": [one("A"), one("B"), one("C")]})),
            ("spec.sweep.grid", "twice", json!({"grid": twice})),
            ("spec.sweep", "the role worker sets itself", json!({"list": [{"OWN": "1"}]})),
            ("spec.sweep", "name of a variable", json!({"list": [{"a-b": "1"}]})),
            ("spec.sweep", "the number of the trial", json!({"list": [{"LARDER_TRIAL": "1"}]})),
            ("spec.sweep.random.parameters[LR]", "either values", random(&json!({}))),
            ("spec.sweep.random.parameters[LR]", "either values", random(&json!({"min": "1"}))),
            ("spec.sweep.random.parameters[LR].min", "more than max", random(&json!({"min": "2", "max": "1"}))),
            // As fractions they are equal.
            (
                "spec.sweep.random.parameters[LR].min",
                "more than max",
                random(&json!({"min": "9007199254740993", "max": "9007199254740992", "scale": "log"})),
            ),
            ("spec.sweep.random.parameters[LR].max", "a number", random(&json!({"min": "2", "max": "1e999"}))),
            (
                "spec.sweep.random.parameters[LR].min",
                "more than 0",
                random(&json!({"min": "0", "max": "1", "scale": "log"})),
            ),
            (
                "spec.sweep.objective.target",
                "a number",
                json!({"list": [{"A": "1"}], "objective": {"goal": "minimize", "target": "low"}}),
            ),
        ] {
            let error = checked(sweep.clone()).expect_err(field);
            assert!(error.field == field && error.what.contains(what), "{sweep}: {error}");
        }
        // 16 parameters of a thousand values each.
        let huge: Vec<Value> = ('A'..='P').map(|name| one(&name.to_string())).collect();
        assert_eq!(checked(json!({"grid": huge})).expect_err("too many").field, "spec.sweep.grid");
        let sweep: Sweep = serde_json::from_value(json!({"list": [{"A": "1"}]})).expect("of the schema's form");
        assert_eq!(check(&sweep, &"n".repeat(59), &[]).expect_err("too long").field, "metadata.name");
    }
}
