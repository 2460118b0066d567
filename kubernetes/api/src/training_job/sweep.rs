//! The sweep of a TrainingJob: trials of the same job with other parameters.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// A variable of every container.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// The name of the variable.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
        .message("spec.parameters[].name must be the name of a variable: letters, digits and underscores"))]
    pub name: String,
    /// Its value.
    #[schemars(length(max = 256))]
    pub value: String,
}

/// Trials of a job, each a TrainingJob NAME-NUMBER with its own parameters.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("[has(self.grid), has(self.list), has(self.random)].filter(given, given).size() == 1")
        .message("spec.sweep must have one of grid, list and random"),
    validation = Rule::new("has(self.grid) == has(oldSelf.grid) && (!has(self.grid) || self.grid == oldSelf.grid)")
        .message("spec.sweep.grid cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new("has(self.list) == has(oldSelf.list) && (!has(self.list) || self.list == oldSelf.list)")
        .message("spec.sweep.list cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new(
            "has(self.random) == has(oldSelf.random) && (!has(self.random) || self.random == oldSelf.random)"
        )
        .message("spec.sweep.random cannot be changed; delete the TrainingJob and apply another"),
    // Only the best number is known of the trials that have ended.
    validation = Rule::new("has(self.objective) == has(oldSelf.objective)")
        .message("spec.sweep.objective cannot be added or removed; delete the TrainingJob and apply another"),
    validation = Rule::new(
            "!has(self.objective) || !has(oldSelf.objective) || self.objective.goal == oldSelf.objective.goal"
        )
        .message("spec.sweep.objective.goal cannot be changed; delete the TrainingJob and apply another"),
)]
#[serde(rename_all = "camelCase")]
pub struct Sweep {
    /// A trial for every combination of these values. The last parameter changes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub grid: Vec<Choices>,
    /// A trial for each of these sets of parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::parameter_sets")]
    pub list: Vec<BTreeMap<String, String>>,
    /// Trials with random parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<RandomSearch>,
    /// The most trials that exist at a time and have not ended; 10 by default. Their queue decides which of them run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub parallelism: Option<u32>,
    /// The number that trials are compared by, and when the sweep stops because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// The sweep fails when more trials than this have failed; 20 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub max_failed: Option<u32>,
}

/// The values of a parameter.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choices {
    /// The parameter, the name of a variable.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
        .message("spec.sweep.grid[].name must be the name of a variable: letters, digits and underscores"))]
    pub name: String,
    /// Its values.
    #[schemars(length(min = 1, max = 1000), inner(length(max = 256)))]
    pub values: Vec<String>,
}

/// Trials with random parameters. The same seed yields the same trials.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RandomSearch {
    /// The number of trials.
    #[schemars(range(min = 1, max = 10000))]
    pub trials: u32,
    /// The seed; 0 by default.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schemas::count")]
    pub seed: u64,
    /// The parameters.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub parameters: Vec<Distribution>,
}

fn is_zero(seed: &u64) -> bool {
    *seed == 0
}

/// The values that a parameter may have: some `values`, or the numbers from `min` to `max`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.values) ? !has(self.min) && !has(self.max) : has(self.min) && has(self.max)")
    .message("spec.sweep.random.parameters[] must have either values, or min and max"))]
#[serde(rename_all = "camelCase")]
pub struct Distribution {
    /// The parameter, the name of a variable.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
        .message("spec.sweep.random.parameters[].name must be the name of a variable: letters, digits and underscores"))]
    pub name: String,
    /// Values of equal probability.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 256)))]
    pub values: Vec<String>,
    /// The least number, such as `1e-5`. If `min` and `max` are written as whole numbers, without a point and an
    /// exponent, all others are whole numbers, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::number")]
    pub min: Option<String>,
    /// The greatest number, such as `0.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::number")]
    pub max: Option<String>,
    /// How numbers are distributed between the two: `linear` (default), or `log`, so that each power of ten has the
    /// same probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::scale")]
    pub scale: Option<Scale>,
}

/// The distribution of numbers between two bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Even.
    #[default]
    Linear,
    /// Even in their logarithms.
    Log,
}

/// The number that trials are compared by: the one that the first pod that decides a trial's success writes to its
/// termination message.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objective {
    /// Whether the least number is the best (`minimize`), or the greatest (`maximize`).
    #[schemars(schema_with = "schemas::goal")]
    pub goal: Goal,
    /// The sweep stops when a trial reaches this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::number")]
    pub target: Option<String>,
    /// The sweep stops when this many trials in a row have ended without a better number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub patience: Option<u32>,
}

/// The choice of the best number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The least.
    #[default]
    Minimize,
    /// The greatest.
    Maximize,
}

/// The trials of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SweepStatus {
    /// The trials of the sweep.
    pub trials: u32,
    /// The trials that exist and have not ended.
    pub active: u32,
    /// The trials that have succeeded.
    pub succeeded: u32,
    /// The trials that have failed.
    pub failed: u32,
    /// The trial with the best number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestTrial>,
}

/// The trial with the best number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BestTrial {
    /// Its TrainingJob.
    pub name: String,
    /// Its number.
    pub result: String,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
}
