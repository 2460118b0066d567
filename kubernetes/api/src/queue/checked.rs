//! The spec of a Queue, validated and parsed.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{QueueSpec, Stop};
use crate::checked::InvalidField;
use crate::form::is_label;
use crate::quantity::{amount, is_device, milli};

/// The spec of a Queue, validated and parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedQueue {
    /// The namespaces whose jobs may use the queue; `*` for all.
    pub namespaces: Vec<String>,
    /// The quota that the queue's jobs share, by resource.
    pub quota: BTreeMap<String, CheckedQuota>,
    /// The cohort: the queues with this name lend to each other. `None` if the queue is in no cohort.
    pub cohort: Option<String>,
    /// The queue's share of what the cohort lends, relative to the weights of other queues.
    pub weight: u32,
    /// Set if the queue is stopped.
    pub stop: Option<Stop>,
}

/// The quota of a resource, in the unit of [`amount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedQuota {
    /// The queue's own amount.
    pub nominal: u64,
    /// The most that the queue borrows; `None` for everything that other queues lend.
    pub borrow: Option<u64>,
    /// The most of its own amount that the queue lends; `None` for all of it.
    pub lend: Option<u64>,
}

impl QueueSpec {
    /// Checks every value. Errors: the first invalid field.
    pub fn check(&self) -> Result<CheckedQueue, InvalidField> {
        if !self.namespaces.iter().all(|name| name == "*" || is_label(name, 63)) {
            return Err(InvalidField::new("spec.namespaces", "must list names of namespaces, or \"*\" for all"));
        }
        if self.cohort.as_ref().is_some_and(|cohort| !is_label(cohort, 63)) {
            let form = "must consist of lower-case letters, digits and hyphens";
            return Err(InvalidField::new("spec.cohort", form));
        }
        if self.weight == Some(0) {
            return Err(InvalidField::new("spec.weight", "must be at least 1"));
        }
        let mut quota = BTreeMap::new();
        for (resource, given) in &self.quota {
            let of = |field: &str, quantity: &Quantity| amount_of(resource, field, quantity);
            let checked = CheckedQuota {
                nominal: of("nominal", &given.nominal)?,
                borrow: given.borrow.as_ref().map(|quantity| of("borrow", quantity)).transpose()?,
                lend: given.lend.as_ref().map(|quantity| of("lend", quantity)).transpose()?,
            };
            if self.cohort.is_none() && (checked.borrow.is_some() || checked.lend.is_some()) {
                return Err(InvalidField::new(
                    "spec.cohort",
                    "is missing: spec.quota has `borrow` or `lend`, and only queues of a cohort lend to each other",
                ));
            }
            quota.insert(resource.clone(), checked);
        }
        Ok(CheckedQueue {
            namespaces: self.namespaces.clone(),
            quota,
            cohort: self.cohort.clone(),
            weight: self.weight.unwrap_or(1),
            stop: self.stop,
        })
    }
}

fn amount_of(resource: &str, field: &str, quantity: &Quantity) -> Result<u64, InvalidField> {
    let refuse = |what: &str| Err(InvalidField::new(format!("spec.quota[{resource}].{field}"), what));
    match (milli(&quantity.0), amount(resource, quantity)) {
        (None, _) => refuse("must be an amount such as 8, 500m or 512Gi"),
        (Some(..0), _) => refuse("must be at least 0"),
        (Some(milli), _) if is_device(resource) && milli % 1_000 != 0 => refuse("must be a whole number of devices"),
        (_, None) => refuse("is too large"),
        (_, Some(amount)) => Ok(amount),
    }
}

impl CheckedQueue {
    /// True if jobs of `namespace` may use the queue.
    pub fn is_granted(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name == "*" || name == namespace)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(spec: Value) -> Result<CheckedQueue, InvalidField> {
        serde_json::from_value::<QueueSpec>(spec).expect("of the schema's form").check()
    }

    #[test]
    fn a_full_spec_is_understood() {
        let got = checked(json!({
            "namespaces": ["team-a"], "cohort": "research", "weight": 3, "stop": "hold",
            "quota": {"cpu": {"nominal": "1500m"}, "nvidia.com/gpu": {"nominal": 8, "borrow": "4", "lend": 0}},
        }))
        .expect("valid");
        assert_eq!(got.quota["cpu"], CheckedQuota { nominal: 1_500, borrow: None, lend: None });
        assert_eq!(got.quota["nvidia.com/gpu"], CheckedQuota { nominal: 8, borrow: Some(4), lend: Some(0) });
        assert_eq!((got.weight, got.stop), (3, Some(Stop::Hold)));
        assert!(got.is_granted("team-a") && !got.is_granted("team-b"));
        let least = checked(json!({"namespaces": ["*"]})).expect("valid");
        assert!(least.is_granted("team-b") && least.weight == 1 && least.stop.is_none());
    }

    #[test]
    fn every_mistake_is_named_by_its_field() {
        let quota = |quota: Value| json!({"cohort": "a", "quota": {"nvidia.com/gpu": quota}});
        for (field, spec) in [
            ("spec.namespaces", json!({"namespaces": ["Team A"]})),
            ("spec.cohort", json!({"cohort": "A"})),
            ("spec.cohort", json!({"quota": {"cpu": {"nominal": 1, "borrow": 1}}})),
            ("spec.weight", json!({"weight": 0})),
            ("spec.quota[nvidia.com/gpu].nominal", quota(json!({"nominal": -1}))),
            ("spec.quota[nvidia.com/gpu].nominal", quota(json!({"nominal": "500m"}))),
            ("spec.quota[nvidia.com/gpu].nominal", quota(json!({"nominal": "many"}))),
            ("spec.quota[nvidia.com/gpu].borrow", quota(json!({"nominal": 1, "borrow": "-1"}))),
            ("spec.quota[nvidia.com/gpu].lend", quota(json!({"nominal": 1, "lend": "9e30"}))),
        ] {
            let error = checked(spec.clone()).expect_err(field);
            assert_eq!(error.field, field, "{spec}: {error}");
        }
    }
}
